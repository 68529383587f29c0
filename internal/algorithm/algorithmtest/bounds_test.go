package algorithmtest

import (
	"fmt"
	"math/big"
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// No interval admits more than its bound. Time is how far the clock has moved ahead, so
// that steps back and forth gain nothing. Refunded units do not count.
func TestDecideAdmitsAtMostBound(t *testing.T) {
	checkKinds(t, boundKinds(), boundHolds)
}

// boundKinds bound what they admit. A leaky bucket bounds when callers act.
func boundKinds() []kind { return kindsThat(func(k kind) bool { return k != leakyBucket }) }

func boundHolds(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	var granted grants
	t.Repeat(tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		granted.add(tr, tr.decide(req))
		granted.check(t, tr, 0)
	}))
}

// A clock that jitters gains nothing either, however long it does.
func TestDecideBoundHoldsOnJitteringClock(t *testing.T) {
	checkKinds(t, boundKinds(), boundHoldsOnJitteringClock)
}

func boundHoldsOnJitteringClock(t *rapid.T, k kind) {
	l := drawSmallLimit(t, k)
	tr := &trace{key: newKey(l), limit: l, now: 1000 * l.tick}
	var granted grants
	for range 100 {
		ticks := rapid.SampledFrom([]int64{1, -1, 2, -2, 0, 3, -3, 1}).Draw(t, "ticks")
		tr.moveTo(tr.now + ticks*l.tick)
		cost := rapid.SampledFrom([]int64{1, 0, 2, l.max()}).Draw(t, "cost")
		granted.add(tr, tr.decide(algorithm.Request{Cost: cost, AtMost: true}))
		granted.check(t, tr, 0)
	}
}

// Requests that overdraw add at most the overdraft to what a bucket admits, and to what
// each window admits.
func TestDecideChargesAtMostBound(t *testing.T) { checkKinds(t, debtKinds(), chargesKeepBound) }

func chargesKeepBound(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	var granted grants
	checked := &trace{limit: overdrawnLimit(tr.limit)}
	actions := tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		a.Delay = 0
		granted.add(tr, a)
		granted.check(t, checked, 0)
	})
	actions["charge"] = func(t *rapid.T) {
		a := tr.decide(tr.drawCharge(t))
		granted.add(tr, a)
		granted.check(t, checked, 0)
		if !a.Allowed || a.RetryAfter != 0 || a.Delay != 0 {
			t.Fatalf("%v at %d: a charge gives %+v", tr.limit, tr.now, a)
		}
	}
	t.Repeat(actions)
}

// overdrawnLimit returns a limit whose bound holds for takes and charges together.
func overdrawnLimit(l limit) limit {
	l.rate.Burst += l.rate.Overdraft
	l.count += l.overdraft
	switch l.kind {
	case leakyBucket: // it admits as a token bucket does, if callers do not wait
		l.kind = tokenBucket
	case slidingWindow: // its debt ends with the window, so that the next can be overdrawn too
		l.kind, l.windows = alignedWindow, fromFirst{l.period}
	}
	return l
}

// On a clock that never steps back, aligned windows keep the same bound, and none of
// them admits more than the count.
func TestAlignedWindowAdmitsAtMostCount(t *testing.T) {
	rapid.Check(t, alignedBoundsHold)
}

func alignedBoundsHold(t *rapid.T) {
	tr := newTrace(t, alignedWindow)
	var granted grants
	perWindow := map[int64]int64{}
	actions := tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		granted.add(tr, tr.decide(req))
		granted.check(t, tr, 0)
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

// A peek does not drop a window that has ended: it counts again if the clock steps back
// into it.
func TestAlignedWindowPeekKeepsEndedWindow(t *testing.T) {
	for _, windows := range []schedule{onClock{length: 100}, calendar{lengths: []int64{100, 50}}} {
		k := newKey(limit{kind: alignedWindow, tick: 1, count: 5, windows: windows})
		k.decide(99, algorithm.Request{Cost: 5})
		for range 3 {
			if a := k.decide(100, algorithm.Request{}); a.Remaining != 5 {
				t.Errorf("%T at 100: %+v, want 5 to remain", windows, a)
			}
			if a := k.decide(99, algorithm.Request{Cost: 1}); a.Allowed {
				t.Errorf("%T: 5 were taken at 99, but another take at 99: %+v", windows, a)
			}
		}
	}
}

// admits returns how many units may be admitted between two instants that lie so far
// apart, both included.
//
// A window that begins with its first unit has one unit at its start. Traffic that fills
// it late, and the next one early, lacks that unit; in a sliding window it lacks another
// one, since the previous window counts for at least one unit as long as it counts at
// all.
//
// Only aligned windows depend on how often the clock stepped back. A step back over an
// edge leaves two windows instead of one: the window that the clock left ends off the
// edges, and an earlier window without state opens again. Each step may add one window,
// and so may the latest step before.
func admits(l limit, span *big.Int, stepsBack int64) *big.Int {
	most := big.NewInt(l.max())
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
	default:
		if l.period == 0 {
			panic(fmt.Sprintf("bounds_test.go: no bound for %s: add a case to admits, or leave it out of boundKinds", l.kind))
		}
	}
	return most.Mul(most, times(l.period, 1))
}

// The bounds are tight: these takes reach them, between the first that counts and the
// last.
func TestBoundsAreTight(t *testing.T) {
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

// grants are the grants of a key, and when the caller may act on them.
type grants []grant

type grant struct {
	at        *big.Int // as far as the clock has moved ahead
	units     int64
	stepsBack int64 // of the clock until then
}

func (tk grant) String() string { return fmt.Sprintf("%d at +%v", tk.units, tk.at) }

func (ts *grants) add(tr *trace, a result) {
	if a.Granted != 0 {
		at := new(big.Int).Add(&tr.forward, big.NewInt(a.Delay))
		*ts = append(*ts, grant{at, a.Granted, tr.stepsBack})
	}
}

// check checks all intervals that end with the newest grant. Delays are rounded up to a
// tick, so grants may be nearer to each other by less than one tick.
func (ts grants) check(t *rapid.T, tr *trace, nearer int64) {
	sum := new(big.Int)
	for i := len(ts) - 1; i >= 0; i-- {
		last := ts[len(ts)-1]
		sum.Add(sum, big.NewInt(ts[i].units))
		span := new(big.Int).Sub(last.at, ts[i].at)
		span.Add(span, big.NewInt(nearer))
		most := admits(tr.limit, span, last.stepsBack-ts[i].stepsBack+min(ts[i].stepsBack, 1))
		if sum.Sign() > 0 && sum.Cmp(most) > 0 {
			t.Fatalf("%v: admitted %v within %v, want at most %v; all grants: %v", tr.limit, sum, span, most, ts)
		}
	}
}

// Reservations of a token bucket keep the same bound if callers act after their delay,
// and are served in the order of the requests.
func TestTokenBucketReservationsKeepRateAndOrder(t *testing.T) {
	rapid.Check(t, reservationsKeepRateAndOrder)
}

func reservationsKeepRateAndOrder(t *rapid.T) {
	tr := newTrace(t, tokenBucket)
	var acts grants
	t.Repeat(tr.onlyTakes(func(t *rapid.T, req algorithm.Request) {
		if a := tr.decide(req); a.Granted > 0 {
			acts.add(tr, a)
			acts.checkOrder(t, tr)
			acts.check(t, tr, tr.limit.tick-1)
		}
	}))
}

func (ts grants) checkOrder(t *rapid.T, tr *trace) {
	if n := len(ts); n > 1 && ts[n-1].at.Cmp(ts[n-2].at) < 0 {
		t.Fatalf("%v: the newest of %v overtakes the one before", tr.limit, ts)
	}
}

// Callers that wait for the delay of a leaky bucket act one interval per unit after the
// one before, and wait for the rest of the queue at most.
func TestLeakyBucketSpacesGrants(t *testing.T) {
	rapid.Check(t, leakyBucketSpaces)
}

func leakyBucketSpaces(t *rapid.T) {
	tr := newTrace(t, leakyBucket)
	rate := tr.limit.rate
	free := new(big.Int) // when the next caller may act
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
