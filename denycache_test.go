package penstock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/storetest"
)

// asPlain hides the source of decisions, and completes Remaining, which the cache
// knows only as a lower bound if more than one unit was denied.
type asPlain struct {
	t      testing.TB
	cache  *penstock.DenyCache
	behind penstock.Store
	hits   *atomic.Int64 // decisions by the cache

	begun      atomic.Int64 // calls that have begun
	inFlight   atomic.Int64 // calls that have begun and not ended
	overlapped atomic.Bool  // whether a call ever ran beside another
}

func (s *asPlain) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	before := s.begin(r)
	defer s.end()
	d, err := s.cache.Take(ctx, r)
	s.complete(before, 0, r, &d)
	return d, err
}

func (s *asPlain) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	before := s.begin(rs...)
	defer s.end()
	err := s.cache.TakeEach(ctx, rs, ds)
	s.completeEach(before, rs, ds)
	return err
}

func (s *asPlain) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	before := s.begin(rs...)
	defer s.end()
	err := s.cache.TakeAll(ctx, rs, ds)
	if err == nil && slices.ContainsFunc(ds[:len(rs)], fromDenyCache) {
		return s.completeAll(ctx, before, rs, ds)
	}
	s.completeEach(before, rs, ds)
	return err
}

func fromDenyCache(d penstock.Decision) bool { return d.Source == penstock.SourceDenyCache }

// completeAll replaces the decisions of a cached denial by the store's, since the cache does
// not know the state of the other keys. Unless there were concurrent calls, the store denies
// what the cache has denied.
func (s *asPlain) completeAll(ctx context.Context, b snapshotBefore, rs []penstock.Request, ds []penstock.Decision) error {
	s.hits.Add(1)
	cached := slices.Clone(ds[:len(rs)])
	err := s.behind.(penstock.AtomicStore).TakeAll(ctx, rs, ds)
	overlapped, alone := s.haveOverlapped(b), s.isAlone(b)
	for i, d := range cached {
		switch {
		case !alone || overlapped && !ds[i].Allowed:
		case d.Granted != 0 || d.Source != penstock.SourceDenyCache:
			s.t.Errorf("%+v: %v in a cached denial", rs[i], d)
		case !d.Allowed && (ds[i].Allowed || ds[i].RetryAfter != d.RetryAfter || ds[i].ResetAfter != d.ResetAfter || ds[i].Remaining < d.Remaining):
			s.t.Errorf("%+v: cached as %v, but the store says %v", rs[i], d, ds[i])
		}
	}
	return err
}

// A snapshotBefore is the state of the keys of a call before it.
type snapshotBefore struct {
	begun int64 // calls before it
	first bool  // whether no other call was in flight
	peeks []penstock.Decision
}

// begin peeks at the keys of requests. For a malformed one the result is zero.
func (s *asPlain) begin(rs ...penstock.Request) snapshotBefore {
	b := snapshotBefore{begun: s.begun.Load(), first: s.inFlight.Add(1) == 1}
	s.begun.Add(1) // after inFlight, so that a call which is not counted there is counted here
	for _, r := range rs {
		r.Cost, r.ID = 0, ""
		peek, _ := s.behind.Take(context.Background(), r)
		b.peeks = append(b.peeks, peek)
	}
	return b
}

func (s *asPlain) end() { s.inFlight.Add(-1) }

// isAlone reports whether no other call has run beside this one.
func (s *asPlain) isAlone(b snapshotBefore) bool { return b.first && s.begun.Load() == b.begun+1 }

// haveOverlapped reports whether this call, or one before it, ran beside another.
func (s *asPlain) haveOverlapped(b snapshotBefore) bool {
	if !s.isAlone(b) {
		s.overlapped.Store(true)
	}
	return s.overlapped.Load()
}

func (s *asPlain) completeEach(b snapshotBefore, rs []penstock.Request, ds []penstock.Decision) {
	for i := range rs[:min(len(rs), len(ds))] {
		s.complete(b, i, rs[i], &ds[i])
	}
}

// complete makes the decision about request i equal to the store's. If calls have overlapped,
// the cache may hold the numbers of the one that the store decided first, so the store decides
// again.
func (s *asPlain) complete(b snapshotBefore, i int, r penstock.Request, d *penstock.Decision) {
	overlapped := s.haveOverlapped(b)
	if !fromDenyCache(*d) {
		d.Source = penstock.SourceStore
		return
	}
	s.hits.Add(1)
	if overlapped {
		s.decideAgain(b, r, d)
		return
	}
	d.Source = penstock.SourceStore
	if r.Cost > 1 && !r.AtMost || r.KeepFree > 0 {
		if d.Remaining > b.peeks[i].Remaining {
			s.t.Errorf("%+v: cached as %v, but there was only %v", r, *d, b.peeks[i])
		}
		d.Remaining = b.peeks[i].Remaining
	}
}

// decideAgain replaces a cached denial by the store's. Unless there were concurrent calls, the
// store denies too.
func (s *asPlain) decideAgain(b snapshotBefore, r penstock.Request, d *penstock.Decision) {
	cached := *d
	*d, _ = s.behind.Take(context.Background(), r)
	if s.isAlone(b) && d.Allowed {
		s.t.Errorf("%+v: cached as %v, but the store says %v", r, cached, *d)
	}
}

// withoutRounding changes the source of the decision that takes a bucket's last
// unit, if units do not last whole milliseconds. The cache does not learn from such
// a decision, so it computes no times that it may round.
type withoutRounding struct{ *penstock.Memory }

func (s withoutRounding) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.Memory.Take(ctx, r)
	s.mark(r, &d)
	return d, err
}

func (s withoutRounding) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := s.Memory.TakeAll(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.mark(rs[i], &ds[i])
	}
	return err
}

func (s withoutRounding) mark(r penstock.Request, d *penstock.Decision) {
	bucket := r.Limit.Algorithm == penstock.TokenBucket || r.Limit.Algorithm == penstock.LeakyBucket
	if bucket && d.Allowed && d.Remaining == 0 && r.Limit.Count > 0 &&
		r.Limit.Period%(time.Duration(r.Limit.Count)*time.Millisecond) != 0 {
		d.Source = penstock.SourceLease
	}
}

func TestDenyCacheConformsToStore(t *testing.T) {
	var hits atomic.Int64
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		cache := penstock.WithDenyCache(withoutRounding{memory}, &penstock.DenyCacheOptions{Now: clock.Now, MaxKeys: 64})
		return &asPlain{t: t, cache: cache, behind: memory, hits: &hits}
	})
	if hits.Load() < 1000 {
		t.Errorf("only %d decisions came from the cache: too few for the test to mean anything", hits.Load())
	}
}

// remoteDenyCache returns a remote store, and a limiter on a deny cache in front of
// it.
func remoteDenyCache(t *testing.T, text string) (*remoteStore, *penstock.Limiter) {
	t.Helper()
	store := &remoteStore{store: penstock.NewMemory(nil)}
	return store, limiter(t, penstock.WithDenyCache(store, nil), text)
}

func TestDenyCacheCachesDenialUntilRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "10/1s sliding-log")
		if _, err := lim.AllowN(ctx, "key", 10); err != nil {
			t.Fatal(err)
		}
		expectDenied(t, lim, "key") // by the store
		time.Sleep(400 * time.Millisecond)
		n := store.callsDuring(func() {
			for range 100 {
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.Source != penstock.SourceDenyCache || d.Remaining != 0 || d.Limit != 10 ||
					d.RetryAfter != 600*time.Millisecond || d.ResetAfter != 600*time.Millisecond {
					t.Fatalf("cached: %v, %v, want a denial for 600ms", d, err)
				}
			}
		})
		if n != 0 {
			t.Errorf("%d calls for cached denials, want none", n)
		}
		time.Sleep(600*time.Millisecond - 1)
		expectDenied(t, lim, "key")
		time.Sleep(time.Nanosecond)
		if d, err := lim.Allow(ctx, "key"); err != nil || !d.Allowed || d.Source != penstock.SourceStore {
			t.Errorf("after RetryAfter: %v, %v, want the store's grant", d, err)
		}
	})
}

// The store is called once in MaxAge about a denial that lasts an hour: once a second, unless
// it is set.
func TestDenyCacheCachesDenialForMaxAge(t *testing.T) {
	for age, want := range map[time.Duration]int64{0: 10, 500 * time.Millisecond: 20, 5 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			store := &remoteStore{store: penstock.NewMemory(nil)}
			lim := limiter(t, penstock.WithDenyCache(store, &penstock.DenyCacheOptions{MaxAge: age}), "1/1h sliding-log")
			allowOne(t, lim, "key")
			n := store.callsDuring(func() {
				for range 100 { // ten seconds
					expectDenied(t, lim, "key")
					time.Sleep(100 * time.Millisecond)
				}
			})
			if n != want {
				t.Errorf("MaxAge %v: %d calls in ten seconds, want %d", age, n, want)
			}
		})
	}
}

func allowOne(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.Allow(ctx, key); err != nil || !d.Allowed {
		t.Fatalf("%q: %v, %v, want a grant", key, d, err)
	}
}

// A request that takes the last unit of a bucket, or of a window whose end is known,
// shows when the next unit is due, so the store need not deny first.
func TestDenyCacheLearnsFromLastUnit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10/1s":                         100 * time.Millisecond,
		"10/1s burst=1":                 100 * time.Millisecond,
		"10/1s leaky-bucket":            100 * time.Millisecond,
		"10/500ms fixed-window":         500 * time.Millisecond,
		"7/1s":                          142_857_143, // rounded up to whole nanoseconds
		"1/1m fixed-window align=clock": time.Minute,
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, lim := remoteDenyCache(t, text)
				if d, err := lim.AllowN(ctx, "key", lim.Limit().Normal().Count); err != nil && !d.Allowed {
					t.Fatal(d, err)
				}
				if strings.Contains(text, "burst=1") {
					allowOne(t, lim, "key")
				}
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.Source != penstock.SourceDenyCache || d.RetryAfter != want {
					t.Errorf("after the last unit: %v, %v, want a cached denial for %v", d, err, want)
				}
				if n := store.callsDuring(func() { expectDenied(t, lim, "key") }); n != 0 {
					t.Errorf("%d calls, want none", n)
				}
			})
		})
	}
}

// A charge is never answered from the cache. What it owes lengthens the denial that is
// cached, and a limit whose next unit only the store knows is asked about again.
func TestDenyCacheChargeLengthensDenial(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10/1s":                 600 * time.Millisecond,
		"10/1s leaky-bucket":    600 * time.Millisecond,
		"10/1s fixed-window":    time.Second,
		"10/1s sliding-window":  1100 * time.Millisecond,
		"10/1s debt=0 burst=10": 100 * time.Millisecond,
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, lim := remoteDenyCache(t, text)
				if d, err := lim.AllowN(ctx, "key", 10); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
				expectDenied(t, lim, "key")
				var d penstock.Decision
				var err error
				if n := store.callsDuring(func() { d, err = lim.Charge(ctx, "key", 5) }); n != 1 || err != nil || !d.Allowed {
					t.Fatalf("a charge after a denial: %v, %v, %d calls, want it charged by the store", d, err, n)
				}
				if d, err = lim.Allow(ctx, "key"); err != nil || d.Allowed || d.RetryAfter != want {
					t.Errorf("after the charge: %v, %v, want a denial for %v", d, err, want)
				}
			})
		})
	}
}

// A denial of three units says nothing about two, and answers for four.
func TestDenyCacheDenialAppliesToItsCostAndAbove(t *testing.T) {
	for text, retryForFour := range map[string]time.Duration{
		"10/1s":                300 * time.Millisecond,
		"10/1s leaky-bucket":   300 * time.Millisecond,
		"10/1s fixed-window":   time.Second,
		"10/1s sliding-log":    0, // only the store knows
		"10/1s rolling-window": 0,
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, lim := remoteDenyCache(t, text)
				take := func(n int64) penstock.Decision {
					t.Helper()
					d, err := lim.AllowN(ctx, "key", n)
					if err != nil {
						t.Fatal(err)
					}
					return d
				}
				take(9)
				take(3) // denied: one is left
				if n := store.callsDuring(func() { take(2) }); n != 1 {
					t.Errorf("two: %d calls, want one", n)
				}
				take(3)
				var d penstock.Decision
				n := store.callsDuring(func() { d = take(4) })
				if d.Allowed || (n == 0) != (retryForFour > 0) || n == 0 && d.RetryAfter != retryForFour {
					t.Errorf("four: %v in %d calls, want a denial for %v, or one call", d, n, retryForFour)
				}
				if d := take(11); d.Allowed || d.RetryAfter != penstock.Never {
					t.Errorf("eleven: %v, want Never", d)
				}
				if d := take(1); !d.Allowed {
					t.Errorf("the last unit: %v", d)
				}
			})
		})
	}
}

func TestDenyCacheRefundDropsDenial(t *testing.T) {
	for name, refund := range map[string]func(lim *penstock.Limiter) error{
		"refund": func(lim *penstock.Limiter) error { _, err := lim.Refund(ctx, "key", 1); return err },
		"reset":  func(lim *penstock.Limiter) error { return lim.Reset(ctx, "key") },
		"in a batch": func(lim *penstock.Limiter) error {
			r := lim.Request("key")
			r.Cost = -1
			return penstock.TakeEach(ctx, lim.Store(), []penstock.Request{lim.Request("else"), r}, make([]penstock.Decision, 2))
		},
		"under another count": func(lim *penstock.Limiter) error {
			larger, err := penstock.New(lim.Store(), lim.Limit().WithBurst(100))
			if err == nil {
				_, err = larger.Refund(ctx, "key", 1)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, lim := remoteDenyCache(t, "3/1h name=n")
			if _, err := lim.AllowN(ctx, "key", 3); err != nil {
				t.Fatal(err)
			}
			expectDenied(t, lim, "key")
			expectDenied(t, lim, "key")
			if err := refund(lim); err != nil {
				t.Fatal(err)
			}
			allowOne(t, lim, "key")
		})
	}
}

// A denial that was in flight during a refund is not cached, whichever of the two
// calls returns first.
func TestDenyCacheIgnoresDenialFromBeforeARefund(t *testing.T) {
	for _, back := range []map[bool]time.Duration{
		{true: 5 * time.Millisecond, false: time.Millisecond},
		{true: time.Millisecond, false: 5 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &remoteStore{store: penstock.NewMemory(nil)}
			store.requestDelay = func(r penstock.Request) time.Duration {
				if r.Cost < 0 {
					return 2 * time.Millisecond // decided after the denial
				}
				return time.Millisecond
			}
			lim := limiter(t, penstock.WithDenyCache(store, nil), "2/1h sliding-log")
			if _, err := lim.AllowN(ctx, "key", 2); err != nil {
				t.Fatal(err)
			}
			store.responseDelay = func(r penstock.Request) time.Duration { return back[r.Cost < 0] }
			var wg sync.WaitGroup
			wg.Go(func() { expectDenied(t, lim, "key") })
			wg.Go(func() {
				if _, err := lim.Refund(ctx, "key", 1); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			allowOne(t, lim, "key")
		})
	}
}

// After a denial has ended, one caller calls the store and the others wait for it.
func TestDenyCacheCoalescesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil), requestDelay: fixedDelay(time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/500ms")
		allowOne(t, lim, "key")
		expectDenied(t, lim, "key")
		time.Sleep(500 * time.Millisecond)
		var allowed atomic.Int64
		n := store.callsDuring(func() {
			concurrently(100, func() {
				d, err := lim.Allow(ctx, "key")
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
			})
		})
		if n != 1 || allowed.Load() != 1 {
			t.Errorf("100 callers for one unit: %d calls, %d allowed, want 1 and 1", n, allowed.Load())
		}
	})
}

// A busy key costs few calls even if a call takes longer than a unit, so that every
// call finds a unit.
func TestDenyCacheBusyKeyCostsFewCallsToSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(&penstock.MemoryOptions{Tick: time.Millisecond}), requestDelay: fixedDelay(time.Millisecond)}
		store.responseDelay = fixedDelay(time.Millisecond)
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1000/1s burst=100")
		const callers, times = 32, 1000
		var allowed atomic.Int64
		start := time.Now()
		calls := store.callsDuring(func() {
			concurrently(callers, func() {
				for range times {
					if d, err := lim.Allow(ctx, "key"); err != nil {
						t.Error(err)
					} else if d.Allowed {
						allowed.Add(1)
					}
					time.Sleep(2 * time.Millisecond)
				}
			})
		})
		ideal := 100 + int64(time.Since(start)/time.Millisecond)
		if allowed.Load() < ideal*97/100 || allowed.Load() > ideal {
			t.Errorf("%d allowed, want nearly the %d that there are", allowed.Load(), ideal)
		}
		// Which of the callers that come at one instant calls the store is not certain.
		if calls > callers*times/2 {
			t.Errorf("%d calls for %d decisions, want few", calls, callers*times)
		}
		t.Logf("%d calls for %d decisions, %d of %d allowed", calls, callers*times, allowed.Load(), ideal)
	})
}

// A denial that has ended when it arrives still answers the callers that began to
// wait while it held. Otherwise they would call the store one after the other.
func TestDenyCacheWaitersShareLateDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "500/1s burst=1")
		allowOne(t, lim, "key")
		time.Sleep(2 * time.Millisecond)
		allowOne(t, limiter(t, store.store, "500/1s burst=1"), "key") // another node was faster
		// The denial arrives after 3 ms, when the 2 ms that it lasts have passed.
		store.responseDelay = fixedDelay(3 * time.Millisecond)
		n := store.callsDuring(func() {
			concurrently(50, func() {
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > 2*time.Millisecond {
					t.Errorf("%v, %v, want a denial for 2ms at most", d, err)
				}
			})
		})
		if n != 1 {
			t.Errorf("%d calls for 50 callers, want one", n)
		}
	})
}

// concurrently runs f in n goroutines, and waits for them.
func concurrently(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

// When the store has many units again, all waiting callers call it at once.
func TestDenyCacheWaitersCallStoreAtOnceWhenItHasUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil), requestDelay: fixedDelay(time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "100/1s fixed-window")
		if _, err := lim.AllowN(ctx, "key", 100); err != nil {
			t.Fatal(err)
		}
		expectDenied(t, lim, "key")
		time.Sleep(time.Second)
		start := time.Now()
		concurrently(50, func() { allowOne(t, lim, "key") })
		if got, want := time.Since(start), 2*time.Millisecond; got != want {
			t.Errorf("50 callers took %v, want %v: one call to find out, then all others at once", got, want)
		}
	})
}

// A store that hangs delays waiting callers by at most five milliseconds more than
// the caller that calls it.
func TestDenyCacheHungStoreDelaysWaitersByMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/100ms")
		allowOne(t, lim, "key")
		time.Sleep(100 * time.Millisecond)
		store.hang = 50 * time.Millisecond
		store.hung.Store(true)
		start := time.Now()
		concurrently(100, func() {
			if d, err := lim.Allow(ctx, "key"); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("a hung store: %v, %v, want it to be unavailable", d, err)
			}
		})
		if got := time.Since(start); got > 55*time.Millisecond {
			t.Errorf("100 callers took %v, want at most 55ms", got)
		}
	})
}

// When the context of the calling caller ends, one other caller takes over.
func TestDenyCacheCancelledLeaderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/500ms")
		allowOne(t, lim, "key")
		time.Sleep(500 * time.Millisecond)
		store.hang = time.Second
		store.hung.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			defer cancel()
			if _, err := lim.Allow(ctx, "key"); err == nil {
				t.Error("a hung store has answered")
			}
		})
		synctest.Wait()
		store.hung.Store(false)
		store.requestDelay = fixedDelay(time.Millisecond)
		n := store.callsDuring(func() { concurrently(100, func() { _, _ = lim.Allow(ctx, "key") }) })
		wg.Wait()
		if n != 1 {
			t.Errorf("%d calls for 100 callers after the first was cancelled, want one", n)
		}
	})
}

// A denial caused by units that a failing TakeAll took and refunded is not cached.
func TestDenyCacheIgnoresDenialDuringFailedTakeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil), requestDelay: fixedDelay(time.Millisecond)}
		store.refuse = func(r penstock.Request) bool { return r.Key == "broken" }
		oneByOne := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			d, err := store.Take(ctx, r)
			if r.Cost < 0 {
				time.Sleep(time.Millisecond)
			}
			return d, err
		})
		lim := limiter(t, penstock.WithDenyCache(oneByOne, nil), "1/1h")
		var wg sync.WaitGroup
		wg.Go(func() {
			rs := []penstock.Request{lim.Request("key"), lim.Request("broken")}
			if err := penstock.TakeAll(ctx, lim.Store(), rs, make([]penstock.Decision, 2)); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
		})
		time.Sleep(500 * time.Microsecond)
		expectDenied(t, lim, "key") // while it is taken
		wg.Wait()
		allowOne(t, lim, "key")
	})
}

// An error names the index of its request, even if a wrapper decided some of the
// requests without the store.
func TestBatchErrorsNameTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := func(r penstock.Request) bool { return r.Key == "broken" }
		cached := &remoteStore{store: penstock.NewMemory(nil)}
		leased := &remoteStore{store: penstock.NewMemory(nil)}
		sharded := newShardedStore()
		lease := penstock.WithLease(penstock.StoreFunc(leased.Take), nil)
		fallback := penstock.WithFallback(sharded, nil, nil)
		for name, store := range map[string]penstock.Store{
			"deny cache": penstock.WithDenyCache(penstock.StoreFunc(cached.Take), nil),
			"lease":      lease,
			"fallback":   fallback,
		} {
			lim := limiter(t, store, "10000/300d name=n")
			if name == "deny cache" {
				lim = limiter(t, store, "1/1h")
			}
			sharded.down[1].Store(true)
			for range 20 {
				if _, err := lim.Allow(ctx, "1"); err != nil {
					t.Fatal(err)
				}
			}
			sharded.store = rejectingStore{sharded.store}
			cached.refuse, leased.refuse = broken, broken
			odd := lim.Request("0")
			odd.Limit.Name = "odd"
			if name != "fallback" {
				odd = lim.Request("broken")
			}
			rs := []penstock.Request{lim.Request("1"), lim.Request("2"), odd}
			err := penstock.TakeEach(ctx, store, rs, make([]penstock.Decision, 3))
			var about *penstock.RequestError
			if !errors.As(err, &about) || about.Index != 2 || !strings.Contains(err.Error(), "request 2:") {
				t.Errorf("%s: %v, want an error about request 2", name, err)
			}
		}
		_ = lease.Close(ctx)
	})
}

func TestDenyCacheWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil), requestDelay: fixedDelay(4 * time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/100ms")
		allowOne(t, lim, "key")
		time.Sleep(100 * time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { allowOne(t, lim, "key") })
		wg.Go(func() {
			time.Sleep(time.Microsecond)
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := lim.Allow(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's error", err)
			}
		})
		wg.Wait()
	})
}

// IDs that were granted are granted again although no units are left, and a denial
// does not apply to a request that may be delayed.
func TestDenyCachePassesOtherRequests(t *testing.T) {
	_, lim := remoteDenyCache(t, "2/1h")
	granted := lim.Request("key")
	granted.ID, granted.Cost = "id", 2
	for range 2 {
		if d, err := lim.Store().Take(ctx, granted); err != nil || !d.Allowed || d.Granted != 2 {
			t.Fatalf("under an ID: %v, %v", d, err)
		}
		expectDenied(t, lim, "key")
		expectDenied(t, lim, "key")
	}
	delayed := lim.Request("key")
	delayed.MaxDelay = time.Hour
	if d, err := lim.Store().Take(ctx, delayed); err != nil || !d.Allowed || d.Delay == 0 {
		t.Errorf("with a delay: %v, %v, want a grant with a delay", d, err)
	}
	if d, err := lim.Peek(ctx, "key"); err != nil || !d.Allowed || d.Source != penstock.SourceStore {
		t.Errorf("peek: %v, %v, want the store's", d, err)
	}
}

// Denials of a lease or a fallback are not cached.
func TestDenyCacheCachesOnlyStoreDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, source := range []penstock.Source{penstock.SourceStore, penstock.SourceLease, penstock.SourceFallback} {
			calls := 0
			store := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
				calls++
				return penstock.Decision{Limit: 1, RetryAfter: time.Hour, ResetAfter: time.Hour, Source: source}, nil
			})
			lim := limiter(t, penstock.WithDenyCache(store, nil), "1/1h")
			for range 3 {
				expectDenied(t, lim, "key")
			}
			if want := map[bool]int{true: 1, false: 3}[source == penstock.SourceStore]; calls != want {
				t.Errorf("denied three times by the %v: %d calls, want %d", source, calls, want)
			}
		}
	})
}

func TestDenyCacheTakeEachCallsStoreForUnknownKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "1/1h")
		allowOne(t, lim, "a")
		allowOne(t, lim, "c")
		var keys []string
		store.onRequest = func(rs ...penstock.Request) {
			for _, r := range rs {
				keys = append(keys, r.Key)
			}
		}
		rs := []penstock.Request{lim.Request("a"), lim.Request("b"), lim.Request("c"), lim.Request("d")}
		ds := make([]penstock.Decision, len(rs))
		for range 2 {
			if err := penstock.TakeEach(ctx, lim.Store(), rs, ds); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(keys, ""); got != "bd" {
			t.Errorf("called about %q, want b and d once", got)
		}
		for i, d := range ds {
			if d.Allowed || d.Source != penstock.SourceDenyCache {
				t.Errorf("%s: %v, want a cached denial", rs[i].Key, d)
			}
		}
	})
}

// If one request causes the denial of a TakeAll, that denial is cached.
func TestDenyCacheTakeAllCachesDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "2/1h")
		if _, err := lim.AllowN(ctx, "spent", 1); err != nil {
			t.Fatal(err)
		}
		two := lim.Request("spent")
		two.Cost = 2
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, lim.Store(), []penstock.Request{lim.Request("free"), two}, ds); err != nil {
			t.Fatal(err)
		}
		n := store.callsDuring(func() {
			if d, err := lim.AllowN(ctx, "spent", 2); err != nil || d.Allowed {
				t.Error(d, err)
			}
		})
		if n != 0 {
			t.Errorf("%d calls, want none", n)
		}
		// Two requests of one key are denied for the sum of their costs, which says
		// nothing about one of them.
		twice := []penstock.Request{lim.Request("spent"), lim.Request("spent")}
		if err := penstock.TakeAll(ctx, lim.Store(), twice, ds); err != nil || ds[0].Allowed {
			t.Fatal(ds, err)
		}
		allowOne(t, lim, "spent")
	})
}

// A TakeAll of which one request is known to be denied makes no call and charges nothing.
func TestDenyCacheTakeAllAnswersFromCachedDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "2/1h")
		if d, err := lim.AllowN(ctx, "spent", 2); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		time.Sleep(time.Minute)
		expectDenied(t, lim, "spent")
		want, err := lim.AllowN(ctx, "spent", 2)
		if err != nil || want.Source != penstock.SourceDenyCache {
			t.Fatal(want, err)
		}
		two := lim.Request("spent")
		two.Cost = 2
		ds := make([]penstock.Decision, 3)
		n := store.callsDuring(func() {
			err = penstock.TakeAll(ctx, lim.Store(), []penstock.Request{lim.Request("a"), two, lim.Request("b")}, ds)
		})
		idle := penstock.Decision{Allowed: true, Limit: 2, Remaining: 2, Source: penstock.SourceDenyCache}
		if n != 0 || err != nil || !slices.Equal(ds, []penstock.Decision{idle, want, idle}) {
			t.Errorf("%v, %v in %d calls, want %v between two peeks at idle keys, and no call", ds, err, n, want)
		}
		if d, err := lim.AllowN(ctx, "a", 2); err != nil || !d.Allowed {
			t.Errorf("two of a key that was not charged: %v, %v", d, err)
		}
		time.Sleep(time.Hour)
		if err := penstock.TakeAll(ctx, lim.Store(), []penstock.Request{lim.Request("a"), two}, ds[:2]); err != nil || !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("after the denial has ended: %v, %v", ds[:2], err)
		}
	})
}

// What a cached denial does not decide alone, it does not decide in a TakeAll.
func TestDenyCacheTakeAllCallsStoreWhereOnlyItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "1/1h")
		allowOne(t, lim, "spent")
		spent, free := lim.Request("spent"), lim.Request("free")
		with := func(r penstock.Request, change func(*penstock.Request)) penstock.Request {
			change(&r)
			return r
		}
		setID := func(r *penstock.Request) { r.ID = "id" }
		for name, c := range map[string]struct {
			rs    []penstock.Request
			fails bool
		}{
			"under an ID":    {rs: []penstock.Request{with(free, setID), with(spent, setID)}},
			"with a delay":   {rs: []penstock.Request{free, with(spent, func(r *penstock.Request) { r.MaxDelay = time.Second })}},
			"a charge":       {rs: []penstock.Request{free, with(spent, func(r *penstock.Request) { r.Overdraw = true })}},
			"a peek":         {rs: []penstock.Request{free, with(spent, func(r *penstock.Request) { r.Cost = 0 })}},
			"one key twice":  {rs: []penstock.Request{spent, spent}},
			"another's ID":   {rs: []penstock.Request{with(free, setID), spent}, fails: true},
			"at most":        {rs: []penstock.Request{with(free, func(r *penstock.Request) { r.AtMost = true }), spent}, fails: true},
			"a refund":       {rs: []penstock.Request{with(free, func(r *penstock.Request) { r.Cost = -1 }), spent}, fails: true},
			"too few places": {rs: []penstock.Request{free, free, free, spent}, fails: true},
		} {
			for i := range c.rs {
				if c.rs[i].Key == "free" {
					c.rs[i].Key += name // some of them are granted
				}
			}
			ds := make([]penstock.Decision, 3)
			var err error
			n := store.callsDuring(func() { err = penstock.TakeAll(ctx, lim.Store(), c.rs, ds) })
			if n != 1 && !c.fails || (err != nil) != c.fails || slices.ContainsFunc(ds, fromDenyCache) {
				t.Errorf("%s: %v, %v in %d calls, want it from the store", name, ds, err, n)
			}
			if _, err := lim.Allow(ctx, "spent"); err != nil { // caches the denial again
				t.Fatal(err)
			}
		}
	})
}

// The denial of a smaller cost is kept, until a decision shows that the key has
// changed since.
func TestDenyCacheKeepsDenialOfSmallerCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := remoteDenyCache(t, "10/1h sliding-log")
		take := func(n int64) penstock.Decision {
			t.Helper()
			d, err := lim.AllowN(ctx, "key", n)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		take(8)
		take(3)
		take(5)
		if n := store.callsDuring(func() { take(3) }); n != 0 {
			t.Errorf("three, denied before five were: %d calls, want none", n)
		}
		if _, err := limiter(t, store.store, "10/1h sliding-log").Allow(ctx, "key"); err != nil {
			t.Fatal(err)
		}
		take(5)
		if d := take(3); d.Remaining != 1 || d.Source != penstock.SourceStore {
			t.Errorf("after another node took one: %v, want the store's decision, and one left", d)
		}
	})
}

// Denials beyond MaxKeys are dropped, and keys are never mixed up.
func TestDenyCacheIsBounded(t *testing.T) {
	store := &remoteStore{store: penstock.NewMemory(nil)}
	lim := limiter(t, penstock.WithDenyCache(store, &penstock.DenyCacheOptions{MaxKeys: 8}), "1/1h")
	for i := range 1000 {
		key := strconv.Itoa(i)
		allowOne(t, lim, key)
		expectDenied(t, lim, key)
	}
	for i := range 1000 {
		expectDenied(t, lim, strconv.Itoa(i))
	}
	allowOne(t, lim, "new")
}

func TestDenyCacheFullKeepsLongestDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &remoteStore{store: penstock.NewMemory(nil)}
		cache := penstock.WithDenyCache(store, &penstock.DenyCacheOptions{MaxKeys: 4})
		long, short := limiter(t, cache, "1/1h"), limiter(t, cache, "1/900ms")
		for _, key := range []string{"a", "b", "c"} {
			allowOne(t, long, key)
		}
		for i := range 10 {
			allowOne(t, short, strconv.Itoa(i))
		}
		n := store.callsDuring(func() {
			for _, key := range []string{"a", "b", "c"} {
				expectDenied(t, long, key)
			}
		})
		if n != 0 {
			t.Errorf("%d of three long denials were dropped for shorter ones", n)
		}
	})
}

// For random requests at random times the cache denies only if the store would. The
// store has a clock tick of a millisecond and units of any duration.
func TestDenyCacheAgreesWithStore(t *testing.T) {
	for seed := range uint64(fixedseed.FewerUnderRace(300)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		clock := newFakeClock()
		options := &penstock.MemoryOptions{Now: clock.now, Tick: time.Millisecond}
		cached, plain := penstock.NewMemory(options), penstock.NewMemory(options)
		cache := penstock.WithDenyCache(cached, &penstock.DenyCacheOptions{Now: clock.now})
		limit := penstock.Limit{
			Algorithm: penstock.Algorithm(rng.IntN(6)), Count: rng.Int64N(30) + 1,
			Period: time.Duration(rng.Int64N(3000)+1) * time.Millisecond,
		}
		if limit.Validate() != nil {
			continue
		}
		for range 300 {
			r := penstock.Request{Key: "key", Limit: limit, Cost: rng.Int64N(limit.Count+2) - 1, AtMost: rng.IntN(3) == 0}
			r.AtMost = r.AtMost && r.Cost >= 0
			if charge := r; rng.IntN(5) == 0 {
				charge.AtMost, charge.Overdraw = false, true
				if charge.Validate() == nil {
					r = charge
				}
			}
			got, err := cache.Take(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			want, err := plain.Take(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			late := got.RetryAfter - want.RetryAfter
			if got.Allowed != want.Allowed || got.Granted != want.Granted || late < 0 || late > time.Millisecond {
				t.Fatalf("seed %d: %+v:\n got %v\nwant %v", seed, r, got, want)
			}
			clock.advance(time.Duration(rng.Int64N(int64(limit.Period) * 2 / limit.Count)).Truncate(time.Millisecond))
		}
	}
}

// A denial that the cache answers never reaches the store, and one that reaches the store
// leaves no trace. So later answers are the same, also after reservations and refunds, and
// after the limit is lowered.
func TestDenyCacheLeavesSameFuture(t *testing.T) {
	for seed := range uint64(fixedseed.FewerUnderRace(300)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		clock := newFakeClock()
		options := &penstock.MemoryOptions{Now: clock.now, Tick: time.Millisecond}
		cached, plain := penstock.NewMemory(options), penstock.NewMemory(options)
		cache := penstock.WithDenyCache(cached, &penstock.DenyCacheOptions{Now: clock.now})
		high := penstock.Limit{Name: "changed", Count: 1000, Period: 100 * time.Second, Burst: rng.Int64N(50) + 2}
		if seed%2 > 0 {
			high.Algorithm = penstock.LeakyBucket
		}
		limit := high
		for range 300 {
			r := penstock.Request{Key: "key", Limit: limit, Cost: rng.Int64N(limit.Burst) + 1}
			switch rng.IntN(7) {
			case 0:
				r.MaxDelay = time.Duration(rng.Int64N(2000)) * time.Millisecond
			case 6:
				r.Cost = -r.Cost
			case 1:
				limit = high
				limit.Burst = rng.Int64N(high.Burst) + 1
				r.Limit, r.Cost = limit, 1
			case 2:
				r.Overdraw = true
			}
			got, err := cache.Take(ctx, r)
			want, errPlain := plain.Take(ctx, r)
			if err != nil || errPlain != nil {
				t.Fatal(err, errPlain)
			}
			late := got.RetryAfter - want.RetryAfter
			if got.Allowed != want.Allowed || got.Granted != want.Granted || got.Delay != want.Delay || late < 0 || late > time.Millisecond {
				t.Fatalf("seed %d: %+v:\n got %v\nwant %v", seed, r, got, want)
			}
			clock.advance(time.Duration(rng.Int64N(600)) * time.Millisecond)
		}
	}
}

func TestDenyCacheWithoutStoreReturnsError(t *testing.T) {
	if _, err := penstock.WithDenyCache(nil, nil).Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}); err == nil {
		t.Error("no store: want an error")
	}
}

func TestDenyCacheAllocatesNothing(t *testing.T) {
	lim := limiter(t, penstock.WithDenyCache(penstock.NewMemory(nil), nil), "1/1h")
	allowOne(t, lim, "spent")
	free := limiter(t, lim.Store(), "1000000/1h")
	for name, call := range map[string]func(){
		"denied": func() { _, _ = lim.Allow(ctx, "spent") },
		"called": func() { _, _ = free.Allow(ctx, "free") },
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func TestDenyCacheOnlySelectsLimits(t *testing.T) {
	uncached := penstock.PerHour(1).WithName("uncached")
	cache := penstock.WithDenyCache(penstock.NewMemory(nil), &penstock.DenyCacheOptions{
		Only:   func(l penstock.Limit) bool { return l.Name != "uncached" },
		MaxAge: time.Hour,
	})
	for limit, want := range map[penstock.Limit]penstock.Source{
		uncached:            penstock.SourceStore,
		penstock.PerHour(1): penstock.SourceDenyCache,
	} {
		r := penstock.Request{Key: "k", Limit: limit, Cost: 1}
		var d penstock.Decision
		for range 3 {
			var err error
			if d, err = cache.Take(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if d.Allowed || d.Source != want {
			t.Errorf("%v: %v, want a denial by the %v", limit, d, want)
		}
		if _, cached := cache.Cached(r, cache.Now()); cached != (want == penstock.SourceDenyCache) {
			t.Errorf("%v: cached is %v", limit, cached)
		}
	}
}

// A caller that finds denials by itself can keep them in a cache that has no store.
func TestDenyCacheNotesDenialsOfCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := penstock.WithDenyCache(nil, &penstock.DenyCacheOptions{MaxAge: time.Hour})
		limit := penstock.Limit{Algorithm: penstock.FixedWindow, Count: 10, Period: time.Minute}
		r := penstock.Request{Key: "key", Limit: limit, Cost: 1}
		denial := penstock.Decision{Limit: 10, RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}
		expect := func(when string, want time.Duration) {
			t.Helper()
			d, denied := cache.Cached(r, cache.Now())
			if denied != (want > 0) || d.RetryAfter != want {
				t.Errorf("%s: denied %t for %v, want %v", when, denied, d.RetryAfter, want)
			}
		}
		expect("before a denial", 0)
		asked := cache.Now()
		time.Sleep(time.Second)
		cache.Note(r, denial, asked)
		expect("a second after it was asked", 29*time.Second)

		asked = cache.Now()
		time.Sleep(time.Second)
		cache.Forget(r)
		expect("forgotten", 0)
		cache.Note(r, denial, asked)
		expect("denied before units were returned", 0)

		time.Sleep(time.Second)
		cache.Note(r, denial, cache.Now())
		expect("denied afterwards", 30*time.Second)
		time.Sleep(30 * time.Second)
		expect("ended", 0)
		if n := testing.AllocsPerRun(100, func() {
			cache.Note(r, denial, cache.Now())
			_, _ = cache.Cached(r, cache.Now())
			cache.Forget(r)
		}); n != 0 {
			t.Errorf("%v allocations, want none", n)
		}
	})
}

// A denial in flight during a refund is not cached, also if the refund has a MaxDelay, which means
// nothing to it.
func TestDenyCacheRefundWithMaxDelayEndsDenialInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote := &remoteStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(remote, nil), "10/1h")
		if d, err := lim.AllowN(ctx, "key", 8); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		remote.responseDelay = func(r penstock.Request) time.Duration { return time.Duration(max(r.Cost, 0)) * time.Millisecond }
		denied := make(chan penstock.Decision)
		go func() {
			d, _ := lim.AllowN(ctx, "key", 5)
			denied <- d
		}()
		time.Sleep(time.Millisecond)
		refund := lim.Request("key")
		refund.Cost, refund.MaxDelay = -8, time.Second
		if d, err := lim.Store().Take(ctx, refund); err != nil || d.Granted != -8 {
			t.Fatal(d, err)
		}
		if d := <-denied; d.Allowed {
			t.Fatalf("%v, want a denial in flight", d)
		}
		if d, err := lim.AllowN(ctx, "key", 5); err != nil || !d.Allowed {
			t.Errorf("after the refund: %v, %v, want it allowed", d, err)
		}
	})
}
