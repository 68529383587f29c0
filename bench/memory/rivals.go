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

type rateMap struct {
	mu    sync.Mutex
	each  rate.Limit
	burst int
	keys  map[string]*rate.Limiter
}

func openRateMap(p benchLimit, _ int) limiter {
	return &rateMap{each: rate.Every(p.every), burst: int(p.burst), keys: map[string]*rate.Limiter{}}
}

func (r *rateMap) take(key string) (bool, error) {
	r.mu.Lock()
	l := r.keys[key]
	if l == nil {
		l = rate.NewLimiter(r.each, r.burst)
		r.keys[key] = l
	}
	r.mu.Unlock()
	return l.Allow(), nil
}

func (r *rateMap) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(r.take(w.key()))
	}
	return t
}

type rateSyncMap struct {
	each  rate.Limit
	burst int
	keys  sync.Map
}

func openRateSyncMap(p benchLimit, _ int) limiter {
	return &rateSyncMap{each: rate.Every(p.every), burst: int(p.burst)}
}

func (r *rateSyncMap) take(key string) (bool, error) {
	l, ok := r.keys.Load(key)
	if !ok {
		l, _ = r.keys.LoadOrStore(key, rate.NewLimiter(r.each, r.burst))
	}
	return l.(*rate.Limiter).Allow(), nil
}

func (r *rateSyncMap) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(r.take(w.key()))
	}
	return t
}

type sethvargoStore struct {
	store sethvargo.Store
	ctx   context.Context
}

func openSethvargo(p benchLimit, _ int) limiter {
	s := harness.Must(memorystore.New(&memorystore.Config{Tokens: uint64(p.burst), Interval: p.window()}))
	return &sethvargoStore{store: s, ctx: context.Background()}
}

func (s *sethvargoStore) take(key string) (bool, error) {
	_, _, _, ok, err := s.store.Take(s.ctx, key)
	return ok, err
}

func (s *sethvargoStore) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(s.take(w.key()))
	}
	return t
}

func (s *sethvargoStore) close() { _ = s.store.Close(s.ctx) }

type throttledGCRA struct {
	lim *throttled.GCRARateLimiterCtx
	ctx context.Context
}

func openThrottled(p benchLimit, _ int) limiter {
	const unbounded = 0 // Its bounded form takes a lock and two allocations more.
	store := harness.Must(memstore.NewCtx(unbounded))
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, p.every), MaxBurst: int(p.burst) - 1}
	return &throttledGCRA{lim: harness.Must(throttled.NewGCRARateLimiterCtx(store, quota)), ctx: context.Background()}
}

func (g *throttledGCRA) take(key string) (bool, error) {
	limited, _, err := g.lim.RateLimitCtx(g.ctx, key, 1)
	return err == nil && !limited, err
}

func (g *throttledGCRA) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(g.take(w.key()))
	}
	return t
}

type ululeMemory struct {
	lim *ulule.Limiter
	ctx context.Context
}

// openUlule disables its cleaner during the run: a sweep would disturb one round, and
// without it ulule is no slower.
func openUlule(p benchLimit, _ int) limiter {
	store := ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: "limiter", CleanUpInterval: time.Hour})
	lim := ulule.New(store, ulule.Rate{Period: p.window(), Limit: p.burst})
	return &ululeMemory{lim: lim, ctx: context.Background()}
}

func (u *ululeMemory) take(key string) (bool, error) {
	c, err := u.lim.Get(u.ctx, key)
	return err == nil && !c.Reached, err
}

func (u *ululeMemory) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(u.take(w.key()))
	}
	return t
}

type failsafeSyncMap struct {
	open func() failsafe.RateLimiter[any]
	keys sync.Map
}

func openFailsafeBursty(p benchLimit, _ int) limiter {
	return &failsafeSyncMap{open: func() failsafe.RateLimiter[any] { return failsafe.NewBursty[any](uint(p.burst), p.window()) }}
}

// openFailsafeSmooth uses one nanosecond for a burst: it has no bursts, so only a rate
// above any rate of calls allows every call.
func openFailsafeSmooth(p benchLimit, _ int) limiter {
	every := p.every
	if p.burst > 1 {
		every = time.Nanosecond
	}
	return &failsafeSyncMap{open: func() failsafe.RateLimiter[any] { return failsafe.NewSmoothWithMaxRate[any](every) }}
}

func (f *failsafeSyncMap) take(key string) (bool, error) {
	l, ok := f.keys.Load(key)
	if !ok {
		l, _ = f.keys.LoadOrStore(key, f.open())
	}
	return l.(failsafe.RateLimiter[any]).TryAcquirePermit(), nil
}

func (f *failsafeSyncMap) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(f.take(w.key()))
	}
	return t
}

type jujuSyncMap struct {
	limit benchLimit
	keys  sync.Map
}

func openJuju(p benchLimit, _ int) limiter { return &jujuSyncMap{limit: p} }

func (j *jujuSyncMap) take(key string) (bool, error) {
	b, ok := j.keys.Load(key)
	if !ok {
		b, _ = j.keys.LoadOrStore(key, juju.NewBucket(j.limit.every, j.limit.burst))
	}
	return b.(*juju.Bucket).TakeAvailable(1) == 1, nil
}

func (j *jujuSyncMap) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(j.take(w.key()))
	}
	return t
}

type uberLimiter struct{ lim uber.Limiter }

// openUber uses the highest rate that it supports, since Take blocks: at a billion a
// second it never does.
func openUber(benchLimit, int) limiter { return &uberLimiter{lim: uber.New(1_000_000_000)} }

func (u *uberLimiter) take(string) (bool, error) {
	u.lim.Take()
	return true, nil
}

func (u *uberLimiter) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(u.take(w.key()))
	}
	return t
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
