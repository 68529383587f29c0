package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Calls one after the other through a deny cache are decided as by the store alone: no denial
// outlives what ends it.
func TestDenyCacheDecidesAsItsStore(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 3))
	cached, cases := 0, fixedseed.FewerUnderRace(500)
	for range cases {
		synctest.Test(t, func(t *testing.T) {
			store, twin := penstock.NewMemory(nil), penstock.NewMemory(nil)
			cache := penstock.WithDenyCache(store, nil)
			limits := denyCacheLimits(rng)
			var log strings.Builder
			for range 25 {
				time.Sleep(time.Duration(rng.IntN(4)*rng.IntN(3)) * 10 * time.Millisecond)
				call := newDenyCacheCall(rng, limits)
				got, gotErr := call.decide(cache)
				want, wantErr := call.decide(twin)
				fmt.Fprintf(&log, "%v %v\n  got  %v, %v\n  want %v, %v\n", time.Now().Format("05.000"), call, got, gotErr, want, wantErr)
				if !call.sameOutcome(got, want) || (gotErr == nil) != (wantErr == nil) {
					t.Fatalf("another decision than the store's:\n%v", log.String())
				}
				for _, d := range got {
					if d.Source == penstock.SourceDenyCache {
						cached++
					}
				}
			}
		})
	}
	if cached < cases*2/5 {
		t.Errorf("%d decisions by the cache, want many", cached)
	}
}

// denyCacheLimits returns two limits of one name that share their state, and one of its own.
func denyCacheLimits(rng *rand.Rand) []penstock.Limit {
	algorithms := []penstock.Algorithm{
		penstock.TokenBucket, penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.SlidingWindow,
		penstock.RollingWindow, penstock.SlidingLog, penstock.Concurrent,
	}
	a := penstock.Limit{Algorithm: algorithms[rng.IntN(len(algorithms))], Count: 1 + rng.Int64N(3), Period: 60 * time.Millisecond, Name: "n"}
	if a.Algorithm == penstock.RollingWindow {
		a.Buckets = 3
	}
	b := a
	b.Count = 1 + rng.Int64N(3)
	return []penstock.Limit{a, a, a, b, {Algorithm: penstock.FixedWindow, Count: 2, Period: 60 * time.Millisecond}}
}

// A denyCacheCall is a Take, a TakeEach or a TakeAll.
type denyCacheCall struct {
	kind string
	rs   []penstock.Request
}

func newDenyCacheCall(rng *rand.Rand, limits []penstock.Limit) denyCacheCall {
	c := denyCacheCall{kind: []string{"take", "take", "each", "all"}[rng.IntN(4)]}
	for range 1 + rng.IntN(3) {
		c.rs = append(c.rs, newDenyCacheRequest(rng, limits))
		if c.kind == "take" {
			break
		}
	}
	return c
}

func newDenyCacheRequest(rng *rand.Rand, limits []penstock.Limit) penstock.Request {
	r := penstock.Request{
		Key: []string{"x", "x", "y"}[rng.IntN(3)], Limit: limits[rng.IntN(len(limits))],
		Cost: []int64{1, 1, 1, 1, 2, 2, 3, 4, 0, -1, -2, penstock.Reset}[rng.IntN(12)],
	}
	if rng.IntN(4) == 0 || r.Limit.Algorithm == penstock.Concurrent {
		r.ID = []string{"a", "b", "c"}[rng.IntN(3)]
	}
	switch rng.IntN(10) {
	case 0:
		r.AtMost = true
	case 1:
		r.KeepFree = 1 + rng.Int64N(2)
	case 2:
		r.MaxDelay = 20 * time.Millisecond
	case 3:
		r.Overdraw = true
	case 4:
		r.Settle = true
	}
	return r
}

func (c denyCacheCall) decide(s penstock.Store) ([]penstock.Decision, error) {
	ds := make([]penstock.Decision, len(c.rs))
	var err error
	switch c.kind {
	case "take":
		ds[0], err = s.Take(ctx, c.rs[0])
	case "each":
		err = penstock.TakeEach(ctx, s, c.rs, ds)
	case "all":
		err = penstock.TakeAll(ctx, s, c.rs, ds)
	}
	return ds, err
}

// sameOutcome reports whether two lists of decisions allow and grant the same. A TakeAll that the
// cache denies does not tell which other requests deny it too.
func (c denyCacheCall) sameOutcome(got, want []penstock.Decision) bool {
	allowed := true
	for i := range got {
		if got[i].Granted != want[i].Granted || c.kind != "all" && got[i].Allowed != want[i].Allowed {
			return false
		}
		if c.kind == "take" && (got[i].RetryAfter != want[i].RetryAfter || got[i].ResetAfter != want[i].ResetAfter) {
			return false
		}
		allowed = allowed && got[i].Allowed
	}
	return c.kind != "all" || allowed == penstock.Tightest(want).Allowed
}

func (c denyCacheCall) String() string {
	var b strings.Builder
	b.WriteString(c.kind)
	for _, r := range c.rs {
		fmt.Fprintf(&b, " [%s %v cost=%d id=%s atmost=%v keep=%d delay=%v overdraw=%v settle=%v]",
			r.Key, r.Limit, r.Cost, r.ID, r.AtMost, r.KeepFree, r.MaxDelay, r.Overdraw, r.Settle)
	}
	return b.String()
}
