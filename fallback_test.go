package penstock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

// A fastStore bounds its calls itself, so a fallback sets no timer.
type fastStore struct{ *penstock.Memory }

func (fastStore) Timeout() time.Duration { return time.Millisecond }

// While the primary store is up, a fallback behaves like it.
func TestFallbackConformsToStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		return penstock.WithFallback(fastStore{memory}, penstock.DenyAll, &penstock.FallbackOptions{Now: clock.Now})
	})
}

// While the primary store is down, a fallback with a share of 1 behaves like the
// secondary.
func TestFallbackConformsToStoreWhileDown(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		failing := &remoteStore{}
		failing.down.Store(true)
		fallback := penstock.WithFallback(failing, memory, &penstock.FallbackOptions{Failures: 1})
		if d, err := fallback.Take(ctx, penstock.Request{Key: "key", Limit: penstock.PerHour(1)}); err != nil {
			t.Fatal(d, err)
		}
		return &asPlainStore{Fallback: fallback, secondary: memory}
	})
}

// asPlainStore hides the source of decisions, after checking that it is the fallback. A
// settlement of an ID that the secondary does not know is left to it: the fallback keeps
// that for the primary. So settlements are decided twice, alone.
type asPlainStore struct {
	*penstock.Fallback
	secondary *penstock.Memory
	settling  sync.RWMutex
}

func (s *asPlainStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	defer s.lock(r.Settle)()
	if r.Settle {
		if d, err := s.secondary.Take(ctx, r); err != nil {
			return d, err
		}
	}
	d, err := s.Fallback.Take(ctx, r)
	s.hide(err, &d)
	return d, err
}

func (s *asPlainStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	defer s.lock(false)()
	err := s.Fallback.TakeEach(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.hide(err, &ds[i])
	}
	return err
}

func (s *asPlainStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	settle := len(rs) > 0 && rs[0].Settle
	defer s.lock(settle)()
	if settle {
		if err := s.secondary.TakeAll(ctx, rs, ds); err != nil {
			return err
		}
	}
	err := s.Fallback.TakeAll(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.hide(err, &ds[i])
	}
	return err
}

// lock lets a settlement run alone, and returns the function that ends that.
func (s *asPlainStore) lock(settle bool) (unlock func()) {
	if settle {
		s.settling.Lock()
		return s.settling.Unlock
	}
	s.settling.RLock()
	return s.settling.RUnlock
}

func (s *asPlainStore) hide(err error, d *penstock.Decision) {
	if err == nil && d.Source == penstock.SourceFallback {
		d.Source = penstock.SourceStore
	} else if err == nil {
		d.Source = penstock.SourceLease // fails the test
	}
}

// A fallbackFixture is a primary store that can go down, and a fallback in front of
// it, in a synctest bubble.
type fallbackFixture struct {
	*testing.T
	primary  *remoteStore
	fallback *penstock.Fallback
	changes  []penstock.FallbackChange
}

func withFallback(t *testing.T, o penstock.FallbackOptions, test func(*fallbackFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &fallbackFixture{T: t, primary: &remoteStore{store: penstock.NewMemory(nil), hang: time.Hour}}
		var mu sync.Mutex
		o.OnChange = func(c penstock.FallbackChange) {
			mu.Lock()
			defer mu.Unlock()
			s.changes = append(s.changes, c)
		}
		s.fallback = penstock.WithFallback(s.primary, nil, &o)
		test(s)
		time.Sleep(time.Second) // for calls in flight
	})
}

// sleep lets time pass in the bubble.
func (s *fallbackFixture) sleep(d time.Duration) { time.Sleep(d) }

func (s *fallbackFixture) limiter(text string) *penstock.Limiter {
	s.Helper()
	return limiter(s.T, s.fallback, text)
}

// allow takes units and checks how many are granted, and the source.
func (s *fallbackFixture) allow(lim *penstock.Limiter, key string, n, want int64, by penstock.Source) penstock.Decision {
	s.Helper()
	d, err := lim.AllowAtMost(ctx, key, n)
	if err != nil || d.Granted != want || d.Source != by {
		s.Errorf("%d of %q: %v, %v, want %d by the %v", n, key, d, err, want, by)
	}
	return d
}

// goDown lets the primary store fail until the breaker is open.
func (s *fallbackFixture) goDown() {
	s.Helper()
	s.primary.down.Store(true)
	lim := s.limiter("1000/1h name=detect")
	for range 5 {
		if _, err := lim.Allow(ctx, "detect"); err != nil {
			s.Fatal(err)
		}
	}
	if down, shards := s.fallback.Down(); down != 1 || shards != 1 {
		s.Fatalf("%d of %d shards are down, want one of one", down, shards)
	}
}

// comeUp repairs the primary store, and waits until the fallback has noticed and
// settled.
func (s *fallbackFixture) comeUp() {
	s.Helper()
	s.primary.down.Store(false)
	s.primary.hung.Store(false)
	lim := s.limiter("1000/1h name=detect")
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		if _, err := lim.Allow(ctx, "detect"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		if down, _ := s.fallback.Down(); down == 0 {
			return
		}
	}
	s.Fatal("the primary store is up, and still counts as down")
}

func TestFallbackSecondaryDecidesWhileDown(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.25}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.allow(lim, "key", 60, 60, penstock.SourceStore)
		s.goDown()
		s.allow(lim, "key", 60, 25, penstock.SourceFallback)
		n := s.primary.callsDuring(func() { s.allow(lim, "key", 1, 0, penstock.SourceFallback) })
		if n != 0 {
			s.Errorf("%d calls to a store that is down, want none", n)
		}
		s.comeUp()
		synctest.Wait()
		if len(s.changes) != 2 || !s.changes[0].Down || !errors.Is(s.changes[0].Err, penstock.ErrUnavailable) || s.changes[1].Down {
			s.Errorf("reported %+v, want that it went down, why, and that it came up", s.changes)
		}
		s.allow(lim, "key", 60, 15, penstock.SourceStore) // 100 - 60 - 25
	})
}

// Concurrent callers see no error while the store goes down and up, and never get more
// than both stores allow together.
func TestFallbackConcurrentCallersDuringOutages(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.5, Retry: 50 * time.Millisecond}, func(s *fallbackFixture) {
		lim := s.limiter("1000/1h")
		var granted [2]atomic.Int64 // by the store, by the fallback
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 40 {
				s.primary.down.Store(i%2 == 0)
				time.Sleep(100 * time.Millisecond)
			}
		})
		for worker := range 20 {
			wg.Go(func() {
				for range 400 {
					d, err := lim.Allow(ctx, "key")
					if err != nil {
						s.Errorf("a caller saw %v", err)
					}
					if d.Allowed {
						granted[d.Source/penstock.SourceFallback].Add(1)
					}
					time.Sleep(time.Duration(9+worker%3) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		synctest.Wait() // for the last report
		store, fallback := granted[0].Load(), granted[1].Load()
		if store+fallback > 1502 || fallback > 501 || store == 0 || fallback < 100 {
			s.Errorf("%d by the store and %d by the fallback, want at most 1000 and 500, and some of each", store, fallback)
		}
		if len(s.changes) < 10 {
			s.Errorf("%d changes: too few for the test to mean anything", len(s.changes))
		}
		for i, c := range s.changes {
			if c.Down != (i%2 == 0) {
				s.Fatalf("change %d of %+v: want down and up in turn", i, s.changes)
			}
		}
	})
}

func TestFallbackAllocatesNothing(t *testing.T) {
	lim := limiter(t, penstock.WithFallback(fastStore{penstock.NewMemory(nil)}, nil, nil), "1000000/1h")
	if n := testing.AllocsPerRun(100, func() { _, _ = lim.Allow(ctx, "key") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	rs, ds := []penstock.Request{lim.Request("a"), lim.Request("b")}, make([]penstock.Decision, 2)
	memory := fastStore{penstock.NewMemory(nil)}
	plain := testing.AllocsPerRun(100, func() { _ = penstock.TakeAll(ctx, memory, rs, ds) })
	store := penstock.WithFallback(memory, nil, nil)
	if n := testing.AllocsPerRun(100, func() { _ = penstock.TakeAll(ctx, store, rs, ds) }); n > plain+1 {
		t.Errorf("TakeAll: %v allocations, want one more than the %v of the store", n, plain)
	}
}

func TestFallbackWithoutStoreReturnsError(t *testing.T) {
	store := penstock.WithFallback(nil, nil, nil)
	r := penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}
	if _, err := store.Take(ctx, r); err == nil {
		t.Error("no store: want an error")
	}
	if err := store.TakeAll(ctx, []penstock.Request{r}, make([]penstock.Decision, 1)); err == nil {
		t.Error("no store: want an error")
	}
}

// A refund in a batch is postponed as a single one is, while the primary store is being told of its
// ID: a refund that came first would refund nothing, and the charge after it would stay.
func TestFallbackTakeEachPostponesRefundOfDebtInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := &remoteStore{store: penstock.NewMemory(nil)}
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
		lim := limiter(t, fallback, "100/1h fixed-window")
		primary.down.Store(true)
		var refunds []penstock.Request
		for _, id := range []string{"a", "b"} { // a probe settles one of them, and a batch the other
			r := lim.Request("key")
			r.ID, r.Cost = id, 5
			if d, err := fallback.Take(ctx, r); err != nil || d.Source != penstock.SourceFallback {
				t.Fatal(d, err)
			}
			r.Cost = -5
			refunds = append(refunds, r)
		}
		primary.down.Store(false)
		primary.requestDelay = func(r penstock.Request) time.Duration {
			if r.Cost > 0 {
				return 20 * time.Millisecond
			}
			return 0
		}
		time.Sleep(time.Second)
		fallback.Down()                   // a probe, of two calls
		time.Sleep(50 * time.Millisecond) // the batch is in flight
		ds, postponed := make([]penstock.Decision, 2), 0
		if err := penstock.TakeEach(ctx, fallback, refunds, ds); err != nil {
			t.Fatal(err)
		}
		for i, d := range ds {
			if d.Granted == 0 {
				postponed++
			}
			if d.Granted == 0 && d.Source == penstock.SourceStore {
				t.Errorf("%s: %v, want a refund that the caller has to repeat", refunds[i].ID, d)
			}
		}
		if postponed != 1 {
			t.Errorf("%d refunds were postponed, want that of the debt in flight", postponed)
		}
		time.Sleep(time.Second)
		if err := penstock.TakeEach(ctx, fallback, refunds, ds); err != nil {
			t.Fatal(err)
		}
		expectRemaining(t, lim, "key", 100)
	})
}

// A refund does not shorten how long the primary store remembers the rest of the grant.
func TestFallbackRefundKeepsHoldOfID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := penstock.NewMemory(nil)
		primary := &remoteStore{store: memory}
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
		r := limiter(t, fallback, "100/1s").Request("key")
		r.ID, r.Cost, r.Hold = "a", 50, time.Hour
		primary.down.Store(true)
		refund := r
		refund.Cost, refund.Hold = -5, 0
		for _, r := range []penstock.Request{r, refund} {
			if d, err := fallback.Take(ctx, r); err != nil || d.Granted != r.Cost {
				t.Fatal(d, err)
			}
		}
		primary.down.Store(false)
		for range 4 { // the debt is charged before time pays it back
			time.Sleep(100 * time.Millisecond)
			fallback.Down()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		r.Cost, r.Settle = 10, true
		if d, err := memory.Take(ctx, r); err != nil {
			t.Errorf("a settlement within the hold: %v, %v", d, err)
		}
	})
}

// A refund whose response was lost is not made a second time, of units that the secondary granted.
func TestFallbackRefundsOnceAfterLostResponse(t *testing.T) {
	for _, inBatch := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			primary, secondary := &remoteStore{store: penstock.NewMemory(nil)}, penstock.NewMemory(nil)
			fallback := penstock.WithFallback(primary, secondary, nil)
			lim, local := limiter(t, fallback, "100/1h fixed-window"), limiter(t, secondary, "100/1h fixed-window")
			if d, err := lim.AllowN(ctx, "key", 20); err != nil || d.Source != penstock.SourceStore {
				t.Fatal(d, err)
			}
			primary.loseResponse = func([]penstock.Request) bool {
				// Meanwhile, another call fails, and the secondary decides it.
				if _, err := local.AllowN(ctx, "key", 10); err != nil {
					t.Error(err)
				}
				return true
			}
			refund, ds := lim.Request("key"), make([]penstock.Decision, 1)
			refund.Cost = -10
			var err error
			if inBatch {
				err = penstock.TakeEach(ctx, fallback, []penstock.Request{refund}, ds)
			} else {
				ds[0], err = fallback.Take(ctx, refund)
			}
			if err != nil || !ds[0].Allowed || ds[0].Granted != 0 {
				t.Errorf("batch=%v: %v, %v, want none that is known to be refunded", inBatch, ds[0], err)
			}
			expectRemaining(t, local, "key", 90)
		})
	}
}
