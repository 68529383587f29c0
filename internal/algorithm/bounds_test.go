package algorithm_test

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// No interval admits more than its bound. Time is measured by how far the clock
// moved ahead, so that setting it back and forth cannot buy anything; and units
// that are given back no longer count.
func TestNoIntervalAdmitsMoreThanItsBound(t *testing.T) {
	checkKinds(t, boundKinds, boundHolds)
}

// boundKinds are those that bound what they admit. A leaky bucket bounds when
// that is acted on.
var boundKinds = slices.Concat([]kind{tokenBucket}, windowKinds)

func boundHolds(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	var taken takings
	t.Repeat(tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		taken.add(tr, tr.decide(req))
		taken.check(t, tr, 0)
	}))
}

// A clock that trembles buys nothing either, however long it does.
func TestTremblingClockBuysNothing(t *testing.T) {
	checkKinds(t, boundKinds, tremblingBuysNothing)
}

func tremblingBuysNothing(t *rapid.T, k kind) {
	l := drawSmallLimit(t, k)
	tr := &trace{key: newKey(l), limit: l, now: 1000 * l.tick}
	var taken takings
	for range 100 {
		ticks := rapid.SampledFrom([]int64{1, -1, 2, -2, 0, 3, -3, 1}).Draw(t, "ticks")
		tr.moveTo(tr.now + ticks*l.tick)
		cost := rapid.SampledFrom([]int64{1, 0, 2, l.most()}).Draw(t, "cost")
		taken.add(tr, tr.decide(algorithm.Request{Cost: cost, AtMost: true}))
		taken.check(t, tr, 0)
	}
}

// On a clock that never steps back, aligned windows admit no more than others,
// and none of them more than the count.
func TestAlignedWindowsKeepTheirBounds(t *testing.T) {
	rapid.Check(t, alignedBoundsHold)
}

func alignedBoundsHold(t *rapid.T) {
	tr := newTrace(t, alignedWindow)
	var taken takings
	perWindow := map[int64]int64{}
	actions := tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		taken.add(tr, tr.decide(req))
		taken.check(t, tr, 0)
		end := tr.limit.windows.endAfter(tr.now)
		perWindow[end] += tr.last.Granted
		if perWindow[end] > tr.limit.count {
			t.Fatalf("%v: the window until %d admits %d", tr.limit, end, perWindow[end])
		}
	})
	delete(actions, "clock jumps")
	delete(actions, "clock jitters")
	t.Repeat(actions)
}

// Looking at a window that is over does not forget it: it counts again if the
// clock steps back into it.
func TestLookDoesNotForgetAWindowThatIsOver(t *testing.T) {
	for _, windows := range []schedule{onClock{length: 100}, calendar{lengths: []int64{100, 50}}} {
		k := newKey(limit{kind: alignedWindow, tick: 1, count: 5, windows: windows})
		k.decide(99, algorithm.Request{Cost: 5})
		for range 3 {
			if a := k.decide(100, algorithm.Request{}); a.Remaining != 5 {
				t.Errorf("%T at 100: %+v, want 5 to remain", windows, a)
			}
			if a := k.decide(99, algorithm.Request{Cost: 1}); a.Allowed {
				t.Errorf("%T: 5 were taken at 99, but once more at 99: %+v", windows, a)
			}
		}
	}
}

// admits returns how many units may be admitted between two instants that lie
// so far apart, both of them included.
//
// A window that begins with its first unit has one unit at its very beginning.
// Whoever fills it late, and the next one early, has to leave out that one; and
// of a sliding window another, for the previous window counts for one unit as
// long as it counts at all.
//
// Only aligned windows mind how often the clock stepped back. They go by its
// edges, and a step back over an edge leaves two windows where one was meant to
// be: the one that the clock fell out of ends off the edges, and one of which
// nothing is held any more opens again. Each step may cost one window, and so
// may the latest one before.
func admits(l limit, span *big.Int, stepsBack int64) *big.Int {
	most := big.NewInt(l.most())
	times := func(length, more int64) *big.Int {
		n := new(big.Int).Quo(span, big.NewInt(length))
		return n.Add(n, big.NewInt(more))
	}
	switch l.kind {
	case tokenBucket:
		return most.Add(most, times(l.rate.Interval, 0))
	case fixedWindow:
		return most.Sub(most.Mul(most, times(l.period, 2)), big.NewInt(1))
	case alignedWindow:
		return most.Mul(most, times(l.windows.shortest(), 2+stepsBack))
	case slidingWindow:
		most.SetInt64(max(l.count, 2*l.count-2))
	}
	return most.Mul(most, times(l.period, 1))
}

// The bounds are the best there are: somebody who sets out to can reach them,
// between the first take that counts and the last.
func TestWorstCasesAreReached(t *testing.T) {
	for _, c := range []struct {
		limit  limit
		before entry
		counts []entry
	}{
		{limit{kind: tokenBucket, rate: algorithm.Rate{Interval: 10, Burst: 5, Tick: 1}}, entry{}, []entry{{0, 5}, {10, 1}, {20, 1}, {50, 3}}},
		{limit{kind: fixedWindow, count: 10, period: 100, windows: fromFirst{100}}, entry{0, 1}, []entry{{99, 9}, {100, 10}}},
		{limit{kind: alignedWindow, count: 10, windows: onClock{length: 100}}, entry{}, []entry{{99, 10}, {100, 10}}},
		{limit{kind: slidingWindow, count: 5, period: 100}, entry{0, 1}, []entry{{99, 4}, {120, 1}, {140, 1}, {160, 1}, {180, 1}}},
		{limit{kind: rollingWindow, count: 10, period: 100, buckets: 10}, entry{0, 4}, []entry{{99, 6}, {110, 4}}},
		{limit{kind: slidingLog, count: 10, period: 100}, entry{0, 4}, []entry{{99, 6}, {100, 4}}},
	} {
		c.limit.tick = 1
		k := newKey(c.limit)
		k.decide(c.before.at, algorithm.Request{Cost: c.before.units})
		admitted := int64(0)
		for _, e := range c.counts {
			admitted += k.decide(e.at, algorithm.Request{Cost: e.units}).Granted
		}
		span := c.counts[len(c.counts)-1].at - c.counts[0].at
		if want := admits(c.limit, big.NewInt(span), 0).Int64(); admitted != want {
			t.Errorf("%v: after %v, %v admits %d within %d, want %d", c.limit, c.before, c.counts, admitted, span, want)
		}
	}
}

// takings are what a key was granted, and when it may act on it.
type takings []taking

type taking struct {
	at        *big.Int // as far as the clock has moved ahead
	units     int64
	stepsBack int64 // of the clock until then
}

func (tk taking) String() string { return fmt.Sprintf("%d at +%v", tk.units, tk.at) }

func (ts *takings) add(tr *trace, a answer) {
	if a.Granted != 0 {
		at := new(big.Int).Add(&tr.forward, big.NewInt(a.Delay))
		*ts = append(*ts, taking{at, a.Granted, tr.stepsBack})
	}
}

// check looks at all intervals that end with the newest of the takings. Those
// that were moved to a later tick may be less than one tick nearer than they
// ought to be.
func (ts takings) check(t *rapid.T, tr *trace, nearer int64) {
	sum := new(big.Int)
	for i := len(ts) - 1; i >= 0; i-- {
		last := ts[len(ts)-1]
		sum.Add(sum, big.NewInt(ts[i].units))
		span := new(big.Int).Sub(last.at, ts[i].at)
		span.Add(span, big.NewInt(nearer))
		most := admits(tr.limit, span, last.stepsBack-ts[i].stepsBack+min(ts[i].stepsBack, 1))
		if sum.Sign() > 0 && sum.Cmp(most) > 0 {
			t.Fatalf("%v: admitted %v within %v, want at most %v; all takings: %v", tr.limit, sum, span, most, ts)
		}
	}
}

// What a token bucket grants for later keeps to the same bound when everybody
// acts as late as told, and is served in the order in which it was asked for.
func TestReservationsKeepTheRateAndTheirOrder(t *testing.T) {
	rapid.Check(t, reservationsKeepRateAndOrder)
}

func reservationsKeepRateAndOrder(t *rapid.T) {
	tr := newTrace(t, tokenBucket)
	var acts takings
	t.Repeat(tr.onlyTakes(func(t *rapid.T, req algorithm.Request) {
		if a := tr.decide(req); a.Granted > 0 {
			acts.add(tr, a)
			acts.checkOrder(t, tr)
			acts.check(t, tr, tr.limit.tick-1)
		}
	}))
}

func (ts takings) checkOrder(t *rapid.T, tr *trace) {
	if n := len(ts); n > 1 && ts[n-1].at.Cmp(ts[n-2].at) < 0 {
		t.Fatalf("%v: the newest of %v overtakes the one before", tr.limit, ts)
	}
}

// Whoever acts when a leaky bucket says so acts one interval per unit after the
// one before, and waits for the rest of the queue at most.
func TestLeakyBucketSpacesWhatItAdmits(t *testing.T) {
	rapid.Check(t, leakyBucketSpaces)
}

func leakyBucketSpaces(t *rapid.T) {
	tr := newTrace(t, leakyBucket)
	rate := tr.limit.rate
	free := new(big.Int) // when whoever comes next may act
	t.Repeat(tr.onlyTakes(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		if a.Granted == 0 {
			return
		}
		act := new(big.Int).Add(&tr.forward, big.NewInt(a.Delay))
		if act.Cmp(free) < 0 {
			t.Fatalf("%v at %d, %+v: %+v acts at %v, want not before %v", tr.limit, tr.now, req, a, act, free)
		}
		if a.Delay-(tr.limit.tick-1) > (rate.Burst-a.Granted)*rate.Interval {
			t.Fatalf("%v at %d, %+v: %+v waits for more than the rest of the queue", tr.limit, tr.now, req, a)
		}
		free = act.Add(act, big.NewInt(a.Granted*rate.Interval-(tr.limit.tick-1)))
	}))
}
