package main

import (
	"context"
	"slices"
	"sync"
	"time"

	failsafe "github.com/failsafe-go/failsafe-go/ratelimiter"
	juju "github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	sethvargo "github.com/sethvargo/go-limiter"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// rivals are the limiters that Go programs use today, called as their documentation
// says. Those without keys are kept per key in the named container, as their users do.
var rivals = []library{
	{"x/time/rate, map and mutex", "golang.org/x/time", true, openRateMap},
	{"x/time/rate, sync.Map", "golang.org/x/time", true, openRateSyncMap},
	{"sethvargo/go-limiter", "github.com/sethvargo/go-limiter", true, openSethvargo},
	{"throttled, GCRA", "github.com/throttled/throttled/v2", true, openThrottled},
	{"ulule/limiter", "github.com/ulule/limiter/v3", true, openUlule},
	{"failsafe-go bursty, sync.Map", "github.com/failsafe-go/failsafe-go", true, openFailsafeBursty},
	{"failsafe-go smooth, sync.Map", "github.com/failsafe-go/failsafe-go", true, openFailsafeSmooth},
	{"juju/ratelimit, sync.Map", "github.com/juju/ratelimit", true, openJuju},
	{"uber-go/ratelimit, no keys", "go.uber.org/ratelimit", false, openUber},
}

func openRateMap(p benchLimit, _ int) limiter {
	var mu sync.Mutex
	each, burst, keys := rate.Every(p.every), int(p.burst), map[string]*rate.Limiter{}
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			key := w.key()
			mu.Lock()
			l := keys[key]
			if l == nil {
				l = rate.NewLimiter(each, burst)
				keys[key] = l
			}
			mu.Unlock()
			t.Count(l.Allow(), nil)
		}
		return t
	})
}

func openRateSyncMap(p benchLimit, _ int) limiter {
	var keys sync.Map
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			key := w.key()
			l, ok := keys.Load(key)
			if !ok {
				l, _ = keys.LoadOrStore(key, rate.NewLimiter(rate.Every(p.every), int(p.burst)))
			}
			t.Count(l.(*rate.Limiter).Allow(), nil)
		}
		return t
	})
}

// A sethvargoStore has background work.
type sethvargoStore struct {
	sethvargo.Store
	loop
}

func openSethvargo(p benchLimit, _ int) limiter {
	s, ctx := harness.Must(memorystore.New(&memorystore.Config{Tokens: uint64(p.burst), Interval: p.window()})), context.Background()
	return sethvargoStore{s, func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			_, _, _, ok, err := s.Take(ctx, w.key())
			t.Count(ok, err)
		}
		return t
	}}
}

func (s sethvargoStore) close() { _ = s.Close(context.Background()) }

func openThrottled(p benchLimit, _ int) limiter {
	const unbounded = 0 // Its bounded form takes a lock and two allocations more.
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, p.every), MaxBurst: int(p.burst) - 1}
	lim, ctx := harness.Must(throttled.NewGCRARateLimiterCtx(harness.Must(memstore.NewCtx(unbounded)), quota)), context.Background()
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			limited, _, err := lim.RateLimitCtx(ctx, w.key(), 1)
			t.Count(err == nil && !limited, err)
		}
		return t
	})
}

// openUlule disables its cleaner during the run: a sweep would disturb one round, and
// without it ulule is no slower.
func openUlule(p benchLimit, _ int) limiter {
	store := ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: "limiter", CleanUpInterval: time.Hour})
	lim, ctx := ulule.New(store, ulule.Rate{Period: p.window(), Limit: p.burst}), context.Background()
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			c, err := lim.Get(ctx, w.key())
			t.Count(err == nil && !c.Reached, err)
		}
		return t
	})
}

func openFailsafeBursty(p benchLimit, _ int) limiter {
	return failsafeSyncMap(func() failsafe.RateLimiter[any] { return failsafe.NewBursty[any](uint(p.burst), p.window()) })
}

// openFailsafeSmooth uses one nanosecond for a burst: it has no bursts, so only a rate
// above any rate of calls allows every call.
func openFailsafeSmooth(p benchLimit, _ int) limiter {
	every := p.every
	if p.burst > 1 {
		every = time.Nanosecond
	}
	return failsafeSyncMap(func() failsafe.RateLimiter[any] { return failsafe.NewSmoothWithMaxRate[any](every) })
}

func failsafeSyncMap(open func() failsafe.RateLimiter[any]) limiter {
	var keys sync.Map
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			key := w.key()
			l, ok := keys.Load(key)
			if !ok {
				l, _ = keys.LoadOrStore(key, open())
			}
			t.Count(l.(failsafe.RateLimiter[any]).TryAcquirePermit(), nil)
		}
		return t
	})
}

func openJuju(p benchLimit, _ int) limiter {
	var keys sync.Map
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			key := w.key()
			b, ok := keys.Load(key)
			if !ok {
				b, _ = keys.LoadOrStore(key, juju.NewBucket(p.every, p.burst))
			}
			t.Count(b.(*juju.Bucket).TakeAvailable(1) == 1, nil)
		}
		return t
	})
}

// openUber uses the highest rate that it supports, since Take blocks: at a billion a
// second it never does.
func openUber(benchLimit, int) limiter {
	lim := uber.New(1_000_000_000)
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			w.key() // as the others
			lim.Take()
			t.Count(true, nil)
		}
		return t
	})
}

// rivalModules are the modules of the rivals, for their versions.
func rivalModules() (modules []string) {
	for _, l := range rivals {
		modules = append(modules, l.module)
	}
	return modules
}

func keyed(libraries []library) []library {
	return slices.DeleteFunc(slices.Clone(libraries), func(l library) bool { return !l.keyed })
}
