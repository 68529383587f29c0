package penstock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

// asPlain hides who decided, and completes what a cache knows less of than its
// store: how much has come back meanwhile, when more than one unit was denied.
type asPlain struct {
	t      testing.TB
	cache  *penstock.DenyCache
	behind penstock.Store
	steps  atomic.Int64  // calls that have begun, and calls that have ended
	known  *atomic.Int64 // decisions that the cache made
}

func (s *asPlain) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	before := s.begin(r)
	d, err := s.cache.Take(ctx, r)
	s.end(before, []penstock.Request{r}, &d)
	return d, err
}

func (s *asPlain) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	before := s.begin(rs...)
	err := s.cache.TakeEach(ctx, rs, ds)
	s.endAll(before, rs, ds)
	return err
}

func (s *asPlain) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	before := s.begin(rs...)
	err := s.cache.TakeAll(ctx, rs, ds)
	s.endAll(before, rs, ds)
	return err
}

// A standing is how the keys of a call stood before it.
type standing struct {
	step  int64
	looks []penstock.Decision
}

// begin looks at the keys of requests. A malformed one has no answer.
func (s *asPlain) begin(rs ...penstock.Request) standing {
	b := standing{step: s.steps.Add(1)}
	for _, r := range rs {
		r.Cost, r.ID = 0, ""
		look, _ := s.behind.Take(context.Background(), r)
		b.looks = append(b.looks, look)
	}
	return b
}

func (s *asPlain) endAll(b standing, rs []penstock.Request, ds []penstock.Decision) {
	for i := range rs[:min(len(rs), len(ds))] {
		s.end(standing{b.step, b.looks[i:]}, rs[i:], &ds[i])
		b.step = s.steps.Load()
	}
}

// end makes a decision what the store's would be, unless others were asking at
// the same time: then nobody knows how the key stood.
func (s *asPlain) end(b standing, rs []penstock.Request, d *penstock.Decision) {
	alone := s.steps.Add(1) == b.step+1
	if d.Source == penstock.SourceDenyCache {
		s.known.Add(1)
		if alone && rs[0].Cost > 1 && !rs[0].AtMost {
			if d.Remaining > b.looks[0].Remaining {
				s.t.Errorf("%+v: remembered as %v, but there was only %v", rs[0], *d, b.looks[0])
			}
			d.Remaining = b.looks[0].Remaining
		}
	}
	d.Source = penstock.SourceStore
}

// unfinished is a store that says of a bucket's last unit, where units do not
// last whole milliseconds, that somebody else has decided. Nothing is learnt from
// that, so what the cache works out by itself and may round is left out.
type unfinished struct{ *penstock.Memory }

func (s unfinished) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.Memory.Take(ctx, r)
	s.mark(r, &d)
	return d, err
}

func (s unfinished) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := s.Memory.TakeAll(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.mark(rs[i], &ds[i])
	}
	return err
}

func (s unfinished) mark(r penstock.Request, d *penstock.Decision) {
	bucket := r.Limit.Algorithm == penstock.TokenBucket || r.Limit.Algorithm == penstock.LeakyBucket
	if bucket && d.Allowed && d.Remaining == 0 && r.Limit.Count > 0 &&
		r.Limit.Period%(time.Duration(r.Limit.Count)*time.Millisecond) != 0 {
		d.Source = penstock.SourceLease
	}
}

func TestDenyCacheIsAStore(t *testing.T) {
	var remembered atomic.Int64
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		cache := penstock.WithDenyCache(unfinished{memory}, &penstock.DenyCacheOptions{Now: clock.Now, MaxKeys: 64})
		return &asPlain{t: t, cache: cache, behind: memory, known: &remembered}
	})
	if remembered.Load() < 1000 {
		t.Errorf("only %d decisions came from the cache: this has tested nothing", remembered.Load())
	}
}

// far returns a cache before a store that counts trips, and a limiter on it.
func far(t *testing.T, text string) (*farStore, *penstock.Limiter) {
	t.Helper()
	store := &farStore{store: penstock.NewMemory(nil)}
	return store, limiter(t, penstock.WithDenyCache(store, nil), text)
}

func TestDenialIsRememberedUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := far(t, "10/1s sliding-log")
		if _, err := lim.AllowN(ctx, "key", 10); err != nil {
			t.Fatal(err)
		}
		denied(t, lim, "key") // which the store says
		time.Sleep(400 * time.Millisecond)
		n := store.tripsFor(func() {
			for range 100 {
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.Source != penstock.SourceDenyCache || d.Remaining != 0 || d.Limit != 10 ||
					d.RetryAfter != 600*time.Millisecond || d.ResetAfter != 600*time.Millisecond {
					t.Fatalf("remembered: %v, %v, want a denial for 600ms", d, err)
				}
			}
		})
		if n != 0 {
			t.Errorf("%d trips for what was known, want none", n)
		}
		time.Sleep(600*time.Millisecond - 1)
		denied(t, lim, "key")
		time.Sleep(time.Nanosecond)
		if d, err := lim.Allow(ctx, "key"); err != nil || !d.Allowed || d.Source != penstock.SourceStore {
			t.Errorf("after RetryAfter: %v, %v, want the store's grant", d, err)
		}
	})
}

// A denial for an hour is asked about again every second, by one caller.
func TestDenialIsForgottenAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := far(t, "1/1h sliding-log")
		spendOne(t, lim, "key")
		n := store.tripsFor(func() {
			for range 100 { // ten seconds
				denied(t, lim, "key")
				time.Sleep(100 * time.Millisecond)
			}
		})
		if n != 10 {
			t.Errorf("%d trips in ten seconds, want one a second", n)
		}
	})
}

func spendOne(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.Allow(ctx, key); err != nil || !d.Allowed {
		t.Fatalf("%q: %v, %v, want a grant", key, d, err)
	}
}

// Whoever takes the last unit of a bucket, or of a window whose end is known,
// learns when there will be another without being denied first.
func TestLastUnitIsLearntFrom(t *testing.T) {
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
				store, lim := far(t, text)
				if d, err := lim.AllowN(ctx, "key", lim.Limit().Normal().Count); err != nil && !d.Allowed {
					t.Fatal(d, err)
				}
				if strings.Contains(text, "burst=1") {
					spendOne(t, lim, "key")
				}
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.Source != penstock.SourceDenyCache || d.RetryAfter != want {
					t.Errorf("after the last unit: %v, %v, want a remembered denial for %v", d, err, want)
				}
				if n := store.tripsFor(func() { denied(t, lim, "key") }); n != 0 {
					t.Errorf("%d trips, want none", n)
				}
			})
		})
	}
}

// A denial of three says nothing about two, and all about four.
func TestDenialIsForItsCostAndAbove(t *testing.T) {
	for text, retryForFour := range map[string]time.Duration{
		"10/1s":                300 * time.Millisecond,
		"10/1s leaky-bucket":   300 * time.Millisecond,
		"10/1s fixed-window":   time.Second,
		"10/1s sliding-log":    0, // only the store can tell
		"10/1s rolling-window": 0,
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, lim := far(t, text)
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
				if n := store.tripsFor(func() { take(2) }); n != 1 {
					t.Errorf("two: %d trips, want the store to be asked", n)
				}
				take(3)
				var d penstock.Decision
				n := store.tripsFor(func() { d = take(4) })
				if d.Allowed || (n == 0) != (retryForFour > 0) || n == 0 && d.RetryAfter != retryForFour {
					t.Errorf("four: %v in %d trips, want a denial for %v, or a trip", d, n, retryForFour)
				}
				if d := take(11); d.Allowed || d.RetryAfter != penstock.Never {
					t.Errorf("eleven: %v, want never", d)
				}
				if d := take(1); !d.Allowed {
					t.Errorf("one, which is left: %v", d)
				}
			})
		})
	}
}

func TestGivingBackForgetsTheDenial(t *testing.T) {
	for name, give := range map[string]func(lim *penstock.Limiter) error{
		"refund": func(lim *penstock.Limiter) error { _, err := lim.Refund(ctx, "key", 1); return err },
		"reset":  func(lim *penstock.Limiter) error { return lim.Reset(ctx, "key") },
		"among others": func(lim *penstock.Limiter) error {
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
			_, lim := far(t, "3/1h name=n")
			if _, err := lim.AllowN(ctx, "key", 3); err != nil {
				t.Fatal(err)
			}
			denied(t, lim, "key")
			denied(t, lim, "key")
			if err := give(lim); err != nil {
				t.Fatal(err)
			}
			spendOne(t, lim, "key")
		})
	}
}

// A denial that was on its way while units were given back is not remembered,
// whichever of the two returns first.
func TestDenialFromBeforeARefundIsNotRemembered(t *testing.T) {
	for _, back := range []map[bool]time.Duration{
		{true: 5 * time.Millisecond, false: time.Millisecond},
		{true: time.Millisecond, false: 5 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &farStore{store: penstock.NewMemory(nil)}
			store.there = func(r penstock.Request) time.Duration {
				if r.Cost < 0 {
					return 2 * time.Millisecond // decided after the denial
				}
				return time.Millisecond
			}
			lim := limiter(t, penstock.WithDenyCache(store, nil), "2/1h sliding-log")
			if _, err := lim.AllowN(ctx, "key", 2); err != nil {
				t.Fatal(err)
			}
			store.back = func(r penstock.Request) time.Duration { return back[r.Cost < 0] }
			var wg sync.WaitGroup
			wg.Go(func() { denied(t, lim, "key") })
			wg.Go(func() {
				if _, err := lim.Refund(ctx, "key", 1); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			spendOne(t, lim, "key")
		})
	}
}

// Of a key that was denied one caller asks again, and the rest wait for it.
func TestOneAskerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil), there: after(time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/500ms")
		spendOne(t, lim, "key")
		denied(t, lim, "key")
		time.Sleep(500 * time.Millisecond)
		var allowed atomic.Int64
		n := store.tripsFor(func() {
			crowd(100, func() {
				d, err := lim.Allow(ctx, "key")
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
			})
		})
		if n != 1 || allowed.Load() != 1 {
			t.Errorf("100 callers for one unit: %d trips, %d allowed, want 1 and 1", n, allowed.Load())
		}
	})
}

// A key that is asked for all the time costs few trips also where a trip takes
// longer than a unit, so that some unit is granted during every trip.
func TestBusyKeyFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(&penstock.MemoryOptions{Tick: time.Millisecond}), there: after(time.Millisecond)}
		store.back = after(time.Millisecond)
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1000/1s burst=100")
		const callers, times = 32, 1000
		var allowed atomic.Int64
		start := time.Now()
		trips := store.tripsFor(func() {
			crowd(callers, func() {
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
		if trips > callers*times/4 {
			t.Errorf("%d trips for %d decisions, want few", trips, callers*times)
		}
		t.Logf("%d trips for %d decisions, %d of %d allowed", trips, callers*times, allowed.Load(), ideal)
	})
}

// A denial that took longer to arrive than it lasts is still the answer to those
// who had begun to wait while it held, or else they would ask one after the other.
func TestWaitersShareALateDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "500/1s burst=1")
		spendOne(t, lim, "key")
		time.Sleep(2 * time.Millisecond)
		spendOne(t, limiter(t, store.store, "500/1s burst=1"), "key") // somebody else was faster
		store.back = after(3 * time.Millisecond)
		n := store.tripsFor(func() {
			crowd(50, func() {
				d, err := lim.Allow(ctx, "key")
				if err != nil || d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > 2*time.Millisecond {
					t.Errorf("%v, %v, want a denial for 2ms at most", d, err)
				}
			})
		})
		if n != 1 {
			t.Errorf("%d trips for 50 callers, want one", n)
		}
	})
}

// crowd runs n of the same at once, and waits for them.
func crowd(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

// When there is more than one unit again, everybody asks at once.
func TestCrowdIsLetThroughWhenThereIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil), there: after(time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "100/1s fixed-window")
		if _, err := lim.AllowN(ctx, "key", 100); err != nil {
			t.Fatal(err)
		}
		denied(t, lim, "key")
		time.Sleep(time.Second)
		start := time.Now()
		crowd(50, func() { spendOne(t, lim, "key") })
		if got, want := time.Since(start), 2*time.Millisecond; got != want {
			t.Errorf("50 callers took %v, want %v: one trip to find out, one for all others at once", got, want)
		}
	})
}

// A store that hangs keeps those who wait for somebody's answer no longer than
// five milliseconds more than the one who asked.
func TestNobodyQueuesAtAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/100ms")
		spendOne(t, lim, "key")
		time.Sleep(100 * time.Millisecond)
		store.hang = 50 * time.Millisecond
		store.hung.Store(true)
		start := time.Now()
		crowd(100, func() {
			if d, err := lim.Allow(ctx, "key"); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("a hung store: %v, %v, want it to be unavailable", d, err)
			}
		})
		if got := time.Since(start); got > 55*time.Millisecond {
			t.Errorf("100 callers took %v, want at most 55ms", got)
		}
	})
}

// When the one who asks goes away, another one asks, and not all.
func TestAskerThatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/500ms")
		spendOne(t, lim, "key")
		time.Sleep(500 * time.Millisecond)
		store.hang = time.Second
		store.hung.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			defer cancel()
			if _, err := lim.Allow(ctx, "key"); err == nil {
				t.Error("a store that hangs has answered")
			}
		})
		synctest.Wait()
		store.hung.Store(false)
		store.there = after(time.Millisecond)
		n := store.tripsFor(func() { crowd(100, func() { _, _ = lim.Allow(ctx, "key") }) })
		wg.Wait()
		if n != 1 {
			t.Errorf("%d trips for 100 callers behind one that went away, want one", n)
		}
	})
}

// What was taken for several together, and given back because one of them failed,
// is nobody's denial.
func TestDenialDuringATakeAllThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil), there: after(time.Millisecond)}
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
				t.Errorf("got %v, want that the store is unavailable", err)
			}
		})
		time.Sleep(500 * time.Microsecond)
		denied(t, lim, "key") // for the moment that it is taken
		wg.Wait()
		spendOne(t, lim, "key")
	})
}

// An error says which of the requests it is about, also when some of them were
// answered before the store was asked.
func TestErrorsNameTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := func(r penstock.Request) bool { return r.Key == "broken" }
		cached := &farStore{store: penstock.NewMemory(nil)}
		leased := &farStore{store: penstock.NewMemory(nil)}
		away := newSharded()
		lease := penstock.WithLease(penstock.StoreFunc(leased.Take), nil)
		fallback := penstock.WithFallback(away, nil, nil)
		for name, store := range map[string]penstock.Store{
			"a cache":    penstock.WithDenyCache(penstock.StoreFunc(cached.Take), nil),
			"a lease":    lease,
			"a fallback": fallback,
		} {
			lim := limiter(t, store, "10000/300d name=n")
			if name == "a cache" {
				lim = limiter(t, store, "1/1h")
			}
			away.away[1].Store(true)
			for range 20 {
				if _, err := lim.Allow(ctx, "1"); err != nil {
					t.Fatal(err)
				}
			}
			away.store = choosy{away.store}
			cached.refuse, leased.refuse = broken, broken
			odd := lim.Request("0")
			odd.Limit.Name = "odd"
			if name != "a fallback" {
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

// Whoever waits for somebody else's answer stops when its own time is up.
func TestWaitingForAnAnswerEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil), there: after(4 * time.Millisecond)}
		lim := limiter(t, penstock.WithDenyCache(store, nil), "1/100ms")
		spendOne(t, lim, "key")
		time.Sleep(100 * time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { spendOne(t, lim, "key") })
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

// IDs that were granted are answered again, however little is left, and a request
// that may be delayed is not denied for one that may not.
func TestSomeRequestsAreNeverAnsweredFromMemory(t *testing.T) {
	_, lim := far(t, "2/1h")
	granted := lim.Request("key")
	granted.ID, granted.Cost = "id", 2
	for range 2 {
		if d, err := lim.Store().Take(ctx, granted); err != nil || !d.Allowed || d.Granted != 2 {
			t.Fatalf("under an ID: %v, %v", d, err)
		}
		denied(t, lim, "key")
		denied(t, lim, "key")
	}
	delayed := lim.Request("key")
	delayed.MaxDelay = time.Hour
	if d, err := lim.Store().Take(ctx, delayed); err != nil || !d.Allowed || d.Delay == 0 {
		t.Errorf("with a delay: %v, %v, want it granted for later", d, err)
	}
	if d, err := lim.Peek(ctx, "key"); err != nil || !d.Allowed || d.Source != penstock.SourceStore {
		t.Errorf("a look: %v, %v, want the store's", d, err)
	}
}

// What somebody else decided in the store's place is not remembered.
func TestOnlyTheStoresDenialsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, source := range []penstock.Source{penstock.SourceStore, penstock.SourceLease, penstock.SourceFallback} {
			asked := 0
			store := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
				asked++
				return penstock.Decision{Limit: 1, RetryAfter: time.Hour, ResetAfter: time.Hour, Source: source}, nil
			})
			lim := limiter(t, penstock.WithDenyCache(store, nil), "1/1h")
			for range 3 {
				denied(t, lim, "key")
			}
			if want := map[bool]int{true: 1, false: 3}[source == penstock.SourceStore]; asked != want {
				t.Errorf("denied thrice by the %v: asked %d times, want %d", source, asked, want)
			}
		}
	})
}

// Requests that are asked together are answered from memory one by one, where
// each is decided by itself.
func TestTakeEachAsksOnlyWhatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := far(t, "1/1h")
		spendOne(t, lim, "a")
		spendOne(t, lim, "c")
		var keys []string
		store.seen = func(rs ...penstock.Request) {
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
			t.Errorf("asked about %q, want b and d, once: the rest is known", got)
		}
		for i, d := range ds {
			if d.Allowed || d.Source != penstock.SourceDenyCache {
				t.Errorf("%s: %v, want a remembered denial", rs[i].Key, d)
			}
		}
	})
}

// A refusal of several that is due to one of them is remembered of that one.
func TestTakeAllTeachesTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := far(t, "2/1h")
		if _, err := lim.AllowN(ctx, "spent", 1); err != nil {
			t.Fatal(err)
		}
		two := lim.Request("spent")
		two.Cost = 2
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, lim.Store(), []penstock.Request{lim.Request("free"), two}, ds); err != nil {
			t.Fatal(err)
		}
		n := store.tripsFor(func() {
			if d, err := lim.AllowN(ctx, "spent", 2); err != nil || d.Allowed {
				t.Error(d, err)
			}
		})
		if n != 0 {
			t.Errorf("%d trips, want none", n)
		}
		// Twice the same key is refused for what both cost, which says nothing of one.
		twice := []penstock.Request{lim.Request("spent"), lim.Request("spent")}
		if err := penstock.TakeAll(ctx, lim.Store(), twice, ds); err != nil || ds[0].Allowed {
			t.Fatal(ds, err)
		}
		spendOne(t, lim, "spent")
	})
}

// Of two costs that take turns, the smaller one's denial is the one to keep, until
// it turns out that somebody else has taken something since.
func TestSmallerDenialIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lim := far(t, "10/1h sliding-log")
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
		if n := store.tripsFor(func() { take(3) }); n != 0 {
			t.Errorf("three, denied before five were: %d trips, want none", n)
		}
		if _, err := limiter(t, store.store, "10/1h sliding-log").Allow(ctx, "key"); err != nil {
			t.Fatal(err)
		}
		take(5)
		if d := take(3); d.Remaining != 1 || d.Source != penstock.SourceStore {
			t.Errorf("after somebody else took one: %v, want the store's answer, and one left", d)
		}
	})
}

// More denials than there is room for are asked about again, and never mixed up.
func TestDenyCacheIsBounded(t *testing.T) {
	store := &farStore{store: penstock.NewMemory(nil)}
	lim := limiter(t, penstock.WithDenyCache(store, &penstock.DenyCacheOptions{MaxKeys: 8}), "1/1h")
	for i := range 1000 {
		key := strconv.Itoa(i)
		spendOne(t, lim, key)
		denied(t, lim, key)
	}
	for i := range 1000 {
		denied(t, lim, strconv.Itoa(i))
	}
	spendOne(t, lim, "stranger")
}

// Where there is no room for all, the denials that last longest stay.
func TestLongestDenialsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &farStore{store: penstock.NewMemory(nil)}
		cache := penstock.WithDenyCache(store, &penstock.DenyCacheOptions{MaxKeys: 4})
		long, short := limiter(t, cache, "1/1h"), limiter(t, cache, "1/900ms")
		for _, key := range []string{"a", "b", "c"} {
			spendOne(t, long, key)
		}
		for i := range 10 {
			spendOne(t, short, strconv.Itoa(i))
		}
		n := store.tripsFor(func() {
			for _, key := range []string{"a", "b", "c"} {
				denied(t, long, key)
			}
		})
		if n != 0 {
			t.Errorf("%d of three long denials were forgotten for the sake of shorter ones", n)
		}
	})
}

// Whatever is asked, at whatever moment, the cache says no only when the store
// would. Its store here is one whose clock moves in milliseconds, and whose units
// last anything.
func TestDenyCacheAgreesWithItsStore(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		clock := newHand()
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

func TestDenyCacheWithoutAStore(t *testing.T) {
	if _, err := penstock.WithDenyCache(nil, nil).Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}); err == nil {
		t.Error("a cache before no store: want an error")
	}
}

func TestDenyCacheAllocatesNothing(t *testing.T) {
	lim := limiter(t, penstock.WithDenyCache(penstock.NewMemory(nil), nil), "1/1h")
	spendOne(t, lim, "spent")
	free := limiter(t, lim.Store(), "1000000/1h")
	for name, call := range map[string]func(){
		"denied": func() { _, _ = lim.Allow(ctx, "spent") },
		"asked":  func() { _, _ = free.Allow(ctx, "free") },
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// Denials under a limit that is to be left alone are asked for each time.
func TestDenyCacheLeavesLimitsAlone(t *testing.T) {
	asked := penstock.PerHour(1).WithName("asked")
	cache := penstock.WithDenyCache(penstock.NewMemory(nil), &penstock.DenyCacheOptions{
		Only: func(l penstock.Limit) bool { return l.Name != "asked" },
	})
	for limit, want := range map[penstock.Limit]penstock.Source{
		asked:               penstock.SourceStore,
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
		if _, known := cache.Cached(r); known != (want == penstock.SourceDenyCache) {
			t.Errorf("%v: known %v", limit, known)
		}
	}
}
