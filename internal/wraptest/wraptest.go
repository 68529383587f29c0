// Package wraptest checks that wrapping a store changes nothing but what the wrapper is for: requests of
// several limits are decided in as many calls of the store, and by an observer alike.
package wraptest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A Wrapper wraps a store once. All limiters of a test are made with the result.
type Wrapper struct {
	Name    string
	Wrap    func(penstock.Store) penstock.Store
	Watches bool // as a [penstock.TransparentStore] does
}

// Wrappers are those of package penstock, and one by the function of a program.
var Wrappers = []Wrapper{
	{"WithObserver", func(s penstock.Store) penstock.Store {
		return penstock.WithObserver(s, func(penstock.Observation) {})
	}, true},
	{"BatchFunc", func(s penstock.Store) penstock.Store {
		return new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
			return penstock.TakeBatch(ctx, s, rs, ds, all)
		}))
	}, false},
	{"WithDenyCache", func(s penstock.Store) penstock.Store { return penstock.WithDenyCache(s, nil) }, false},
	{"WithLease", func(s penstock.Store) penstock.Store { return penstock.WithLease(s, nil) }, false},
	{"WithFallback", func(s penstock.Store) penstock.Store { return penstock.WithFallback(s, nil, nil) }, false},
	{"WithWarmUp", func(s penstock.Store) penstock.Store { return penstock.WithWarmUp(s, time.Minute) }, false},
}

// pairs returns the wrappers, and each around each other.
func pairs() []Wrapper {
	all := slices.Clone(Wrappers)
	for _, outer := range Wrappers {
		for _, inner := range Wrappers {
			all = append(all, Wrapper{
				outer.Name + " of " + inner.Name,
				func(s penstock.Store) penstock.Store { return outer.Wrap(inner.Wrap(s)) },
				outer.Watches && inner.Watches,
			})
		}
	}
	return all
}

// A Way is how a program asks for decisions about several limits at once.
type Way struct {
	Name string

	// Open returns what decides a request that takes a unit of each key, the i-th by the i-th limiter. It
	// reports whether all were allowed.
	Open func(testing.TB, []*penstock.Limiter) func(ctx context.Context, keys []string) bool

	OneStore    bool // the limiters must be of one store
	Independent bool // what is denied by one limiter is charged to the others
}

// Ways are those of package penstock and of HTTP middleware.
var Ways = []Way{
	{Name: "TakeEach", Open: take(penstock.TakeEach), OneStore: true, Independent: true},
	{Name: "TakeAll", Open: take(penstock.TakeAll), OneStore: true},
	{Name: "httplimit", Open: protect},
}

func take(batch func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error) func(testing.TB, []*penstock.Limiter) func(context.Context, []string) bool {
	return func(t testing.TB, limiters []*penstock.Limiter) func(context.Context, []string) bool {
		return func(ctx context.Context, keys []string) bool {
			rs, ds := make([]penstock.Request, len(keys)), make([]penstock.Decision, len(keys))
			for i := range keys {
				rs[i] = limiters[i].Request(keys[i])
			}
			if err := batch(ctx, limiters[0].Store(), rs, ds); err != nil {
				t.Error(err)
			}
			return !slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
		}
	}
}

func protect(t testing.TB, limiters []*penstock.Limiter) func(context.Context, []string) bool {
	key := func(i int) func(*http.Request) string {
		return func(r *http.Request) string { return r.Header["Key"][i] }
	}
	o := &httplimit.Options{Key: key(0), OnError: func(_ *http.Request, err error) { t.Error(err) }}
	for i := 1; i < len(limiters); i++ {
		o.Additional = append(o.Additional, httplimit.Charge{Limiter: limiters[i], Key: key(i)})
	}
	h := httplimit.Protect(limiters[0], o)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return func(ctx context.Context, keys []string) bool {
		r, answer := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), httptest.NewRecorder()
		r.Header["Key"] = keys
		h.ServeHTTP(answer, r)
		return answer.Code == http.StatusOK
	}
}

// Check compares decisions by one of the ways, and the calls of the store, without a wrapper and with each of them.
func Check(t *testing.T, way Way) {
	for _, w := range pairs() {
		t.Run(w.Name, func(t *testing.T) { check(context.Background(), t, way, w) })
	}
}

// CheckWatcher checks a wrapper that watches, such as that of another module, by all ways, and that what it
// wraps keeps its shards, its timeout and its limits.
func CheckWatcher(ctx context.Context, t *testing.T, w Wrapper) {
	w.Watches = true
	for _, way := range Ways {
		t.Run(w.Name+"/"+way.Name, func(t *testing.T) { check(ctx, t, way, w) })
	}
	s := w.Wrap(shardedStore{penstock.AllowAll})
	if _, shards := penstock.WithFallback(s, nil, nil).Down(); shards != 3 {
		t.Errorf("%s: a fallback sees %d shards, want 3", w.Name, shards)
	}
	if limited, ok := penstock.StoreAs[penstock.TimeoutStore](s); !ok || limited.Timeout() != time.Second {
		t.Errorf("%s: the timeout of the store is hidden", w.Name)
	}
	if _, err := penstock.New(w.Wrap(penstock.WithWarmUp(s, time.Minute)), penstock.PerSecond(1)); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("%s: a limit that cannot be warmed up gave %v, want %v", w.Name, err, penstock.ErrBadLimit)
	}
}

type shardedStore struct{ penstock.Store }

func (shardedStore) Shards() int            { return 3 }
func (shardedStore) ShardOf(key string) int { return len(key) % 3 }
func (shardedStore) Timeout() time.Duration { return time.Second }

func check(ctx context.Context, t *testing.T, way Way, w Wrapper) {
	for seed := range uint64(fixedseed.FewerUnderRace(4)) {
		c := trial{ctx: context.WithoutCancel(ctx), way: way, seed: fixedseed.Seed() + seed}
		if !way.OneStore {
			c.stores = 1 + int(seed%2)
		}
		bare, wrapped := c.run(t, nil), c.run(t, w.Wrap)
		if w.Watches && !slices.Equal(bare, wrapped) {
			t.Fatalf("seed %d: wrapped, it decides\n%s\nand the store alone\n%s", c.seed, strings.Join(wrapped, "\n"), strings.Join(bare, "\n"))
		}
	}
}

// A trial is random requests by one of the ways. Of two stores, the second is in memory and is wrapped.
type trial struct {
	ctx    context.Context
	way    Way
	seed   uint64
	stores int
}

// run returns what was decided, and which calls the stores got.
func (c *trial) run(t *testing.T, wrap func(penstock.Store) penstock.Store) (log []string) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(c.seed, 1))
		r, outcomes := newRecorder(), map[bool]int{}
		decide := c.way.Open(t, c.limiters(t, rng, r, wrap))
		for range 30 {
			<-time.After(time.Duration(rng.IntN(500)) * time.Millisecond)
			keys := []string{fmt.Sprint(rng.IntN(2)), fmt.Sprint(rng.IntN(3)), fmt.Sprint(rng.IntN(3))}
			r.begin()
			allowed := decide(c.ctx, keys)
			c.checkCalls(t, r, allowed)
			outcomes[allowed]++
			log = append(log, fmt.Sprint(keys, " allowed=", allowed, r.calls))
		}
		if outcomes[true] == 0 || outcomes[false] == 0 {
			t.Errorf("%d requests were allowed and %d denied, want some of both", outcomes[true], outcomes[false])
		}
	})
	return log
}

func (c *trial) limiters(t *testing.T, rng *rand.Rand, r *recorder, wrap func(penstock.Store) penstock.Store) (ls []*penstock.Limiter) {
	var store penstock.Store = r
	if c.stores == 2 {
		store = r.memory
	}
	if wrap != nil {
		store = wrap(store)
	}
	for i, form := range []string{"%d/2s burst=%[1]d", "%d/3s fixed-window", "%d/4s rolling-window buckets=4"} {
		limit, err := penstock.ParseLimit(fmt.Sprintf(form, 3+rng.IntN(6)))
		if err != nil {
			t.Fatal(err)
		}
		s := store
		if c.stores == 2 && i == 0 {
			s = r // asked after the memory store, although it is given first
		}
		lim, err := penstock.New(s, limit.WithName(fmt.Sprint("limit", i)))
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, lim)
	}
	return ls
}

// checkCalls checks that a request was one call at most of several limits, and nothing was refunded.
func (c *trial) checkCalls(t *testing.T, r *recorder, allowed bool) {
	if c.stores == 2 {
		return
	}
	if len(r.calls) > 1 || r.refunds > 0 || r.granted > 0 && !allowed && !c.way.Independent {
		t.Errorf("%s, allowed=%v: calls %q, %d refunds, %d units, want one call at most, and no unit of a denied request",
			c.way.Name, allowed, r.calls, r.refunds, r.granted)
	}
}

// A recorder is a store that records its calls.
type recorder struct {
	penstock.BatchFunc
	memory  *penstock.Memory
	calls   []string
	refunds int
	granted int64
}

func newRecorder() *recorder {
	r := &recorder{memory: penstock.NewMemory(nil)}
	r.BatchFunc = r.decide
	return r
}

// begin forgets the calls of the last request.
func (r *recorder) begin() { r.calls, r.refunds, r.granted = nil, 0, 0 }

func (r *recorder) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	err := penstock.TakeBatch(ctx, r.memory, rs, ds, all)
	call := fmt.Sprintf("all=%v", all)
	for i := range rs {
		call += fmt.Sprintf(" %s/%s %d=%v", rs[i].Limit.Name, rs[i].Key, rs[i].Cost, ds[i])
		r.granted += ds[i].Granted
		if rs[i].Cost < 0 {
			r.refunds++
		}
	}
	r.calls = append(r.calls, call)
	return err
}
