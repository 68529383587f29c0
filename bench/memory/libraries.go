package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	_ "time/tzdata" // A calendar window needs its zone wherever this runs.

	failsafe "github.com/failsafe-go/failsafe-go/ratelimiter"
	juju "github.com/juju/ratelimit"
	sethvargo "github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A limiter is a library's, open, with the state of all its keys.
//
// Each has its own loop, though the loops are alike: a shared loop would add an
// indirect call that users do not have, which would favour slow limiters.
type limiter interface {
	run(w *walk, calls int) harness.Counts
}

// A loop takes the next keys of a walk, one after the other.
type loop func(w *walk, calls int) harness.Counts

func (f loop) run(w *walk, calls int) harness.Counts { return f(w, calls) }

// A library opens a limiter for n keys.
type library struct {
	name   string
	module string // whose version is printed
	keyed  bool
	open   func(p benchLimit, n int) limiter
}

// mostChecked is for how many keys at most it is checked that they are separate.
const mostChecked = 10_000

// openFilled opens a limiter and takes each of n keys once, after a check that it separates keys.
func (l library) openFilled(p benchLimit, n int) limiter {
	if l.keyed {
		checkSeparateKeys(l, min(n, mostChecked))
	}
	opened := l.open(p, n)
	l.visit(opened, n, 0)
	return opened
}

// visit takes every key once; so many must be denied.
func (l library) visit(opened limiter, keys, denied int) {
	var t harness.Counts
	fillKeys(0, keys, func(key string) { t.Add(opened.run(walkTo(key), 1)) })
	harness.Check(t.First)
	if t.Denied != denied {
		harness.Failf("%s: %d of %d keys were denied, want %d", l.name, t.Denied, keys, denied)
	}
}

// release stops the background work of a limiter, if any.
func release(l limiter) {
	if c, ok := l.(interface{ close() }); ok {
		c.close()
	}
}

// A benchLimit is a limit that every library can be configured with: one unit every
// so often, and so many at once.
type benchLimit struct {
	every time.Duration
	burst int64
}

// once allows each key one time and then denies it.
var once = benchLimit{every: time.Hour, burst: 1}

// alwaysFull refills each key before the next call.
var alwaysFull = benchLimit{every: time.Nanosecond, burst: 1}

// ample allows every call of a run over n keys and yet keeps every key in debt, so that
// no entry is ever free space. The fewer the keys, the more calls each gets. A burst
// takes less than 2^52 nanoseconds to refill: above that, penstock would count in
// microseconds.
func ample(n int) benchLimit {
	for _, of := range []struct {
		most  int
		every time.Duration
		burst int64
	}{{1, time.Microsecond, 1e9}, {99, 40 * time.Millisecond, 1e8}, {9_999, 4 * time.Second, 1e6}, {100_000, 5 * time.Minute, 1e4}} {
		if n <= of.most {
			return benchLimit{of.every, of.burst}
		}
	}
	return benchLimit{time.Hour, 1_000}
}

// window is the time in which a whole burst refills. A limiter that counts in
// windows gets the burst once per window: it then admits no less than a bucket.
func (p benchLimit) window() time.Duration { return time.Duration(p.burst) * p.every }

// The floor is the least that a token bucket can do: read a monotonic clock once and
// swap one word. It has no keys and no table, and only returns yes or no. Every ratio
// "to the floor" is to this, measured in the same rounds.
type floor struct {
	base            time.Time
	every, capacity int64
	word            atomic.Int64
}

// newFloor returns a floor that denies every call for the limit once, which is spent,
// and no call otherwise: it counts the calls of all keys in one word, so it needs the
// limit of a single key.
func newFloor(p benchLimit) *floor {
	if p != once {
		p = ample(1)
	}
	f := &floor{base: time.Now(), every: int64(p.every), capacity: int64(p.window())}
	if p == once {
		f.allow()
	}
	return f
}

func (f *floor) allow() bool {
	now := int64(time.Since(f.base))
	for {
		full := f.word.Load()
		next := max(full, now) + f.every
		if next-now > f.capacity {
			return false
		}
		if f.word.CompareAndSwap(full, next) {
			return true
		}
	}
}

// run reads no keys: the floor has none.
func (f *floor) run(_ *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(f.allow(), nil)
	}
	return t
}

// defaultMaxKeys is the default MaxKeys of a penstock.Memory.
const defaultMaxKeys = 1_000_000

// limited is penstock as most programs use it: a Limiter on a Store.
type limited struct {
	lim   *penstock.Limiter
	store *penstock.Memory // nil if there is something between them
	ctx   context.Context
}

func (l *limited) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		d, err := l.lim.Allow(l.ctx, w.key())
		t.Count(d.Allowed, err)
	}
	return t
}

func newLimited(s penstock.Store, l penstock.Limit) *limited {
	memory, _ := s.(*penstock.Memory)
	return &limited{lim: harness.Must(penstock.New(s, l)), store: memory, ctx: context.Background()}
}

// memoryFor returns a store for n keys: as large as by default while that is enough.
func memoryFor(n int) *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: max(n, defaultMaxKeys)})
}

func tokenBucket(p benchLimit) penstock.Limit {
	return penstock.Limit{Count: 1, Period: p.every, Burst: p.burst}
}

// ours is penstock with a token bucket.
var ours = library{name: "penstock", keyed: true, open: func(p benchLimit, n int) limiter {
	return newLimited(memoryFor(n), tokenBucket(p))
}}

// wrapper is a minimal wrapper of a store.
type wrapper struct{ next penstock.Store }

func (p wrapper) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	return p.next.Take(ctx, r)
}

// directStore is penstock without a Limiter: a Request passed to a Store.
func directStore(store penstock.Store, limit penstock.Limit) limiter {
	ctx := context.Background()
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			d, err := store.Take(ctx, penstock.Request{Key: w.key(), Limit: limit, Cost: 1})
			t.Count(d.Allowed, err)
		}
		return t
	})
}

// A variant is one of penstock's algorithms: a limit that admits every call of a run,
// and one of the same algorithm with one unit an hour or longer.
type variant struct {
	name, ample, once string
	atMost            float64 // the target, as a ratio to the floor
}

// variants are all algorithms except the token bucket and the log, which have cases of
// their own; the log must turn over to be measured. Windows are one second long, so
// that they end many times during a run.
var variants = []variant{
	{"leaky-bucket", "1/5m burst=10000 leaky-bucket", "1/1h leaky-bucket", 3.3},
	{"fixed-window", "1000000/1s fixed-window", "1/1h fixed-window", 3.3},
	{"fixed-window on the clock", "1000000/1s fixed-window align=clock", "1/24h fixed-window align=clock", 3.3},
	{"fixed-window by calendar day", "1000000/day zone=Asia/Shanghai fixed-window", "1/day zone=Asia/Shanghai fixed-window", 3.3},
	{"sliding-window", "1000000/1s sliding-window", "1/1h sliding-window", 3.3},
	{"rolling-window", "1000000/1s rolling-window", "1/1h rolling-window", 2.8},
}

func limitOf(text string) penstock.Limit { return harness.Must(penstock.ParseLimit(text)) }

// library returns penstock with the variant's limits.
func (f variant) library() library {
	return library{name: "penstock " + f.name, keyed: true, open: func(p benchLimit, n int) limiter {
		l := f.ample
		if p == once {
			l = f.once
		}
		return newLimited(memoryFor(n), limitOf(l))
	}}
}

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

func keyed(libraries []library) []library {
	return slices.DeleteFunc(slices.Clone(libraries), func(l library) bool { return !l.keyed })
}
