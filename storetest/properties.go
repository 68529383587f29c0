package storetest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

// testProperties checks decisions against the documentation, without a model of how
// they are made.
func testProperties(t *testing.T, open Open, supported []penstock.Algorithm) {
	for _, a := range supported {
		t.Run(a.String(), func(t *testing.T) {
			t.Run("denial charges nothing", func(t *testing.T) { checkTraffic(t, open, a, denialChargesNothing) })
			t.Run("RetryAfter is exact", func(t *testing.T) { checkTraffic(t, open, a, retryAfterIsExact) })
			t.Run("RetryAfter of equal keys is exact", func(t *testing.T) { checkTraffic(t, open, a, retryAfterOfEqualKeysIsExact) })
			t.Run("ResetAfter is exact", func(t *testing.T) { checkTraffic(t, open, a, resetAfterIsExact) })
			t.Run("clock that steps back", func(t *testing.T) { checkTraffic(t, open, a, stepBackLocksOutBriefly) })
			t.Run("bound holds", func(t *testing.T) { checkTraffic(t, open, a, boundHolds) })
		})
	}
}

// traffic is a sequence of takes of one key, on a clock that does not step back.
type traffic struct {
	t       *rapid.T
	store   penstock.Store
	clock   *Clock
	limit   penstock.Limit
	granted []granted
}

// granted is one take that was allowed.
type granted struct {
	at    time.Time
	units int64
	delay time.Duration
}

// checkTraffic generates traffic and checks a property at every take.
func checkTraffic(t *testing.T, open Open, a penstock.Algorithm, property func(*traffic, penstock.Request)) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := &Clock{}
		tr := &traffic{t: rt, clock: clock, limit: anyLimit(a).Draw(rt, "limit")}
		tr.set(anyTime().Draw(rt, "start"))
		tr.store = open(t, clock)
		for i := range rapid.IntRange(1, 30).Draw(rt, "takes") {
			tr.set(clock.Now().Add(anyPause(tr.limit).Draw(rt, "pause")))
			r := penstock.Request{
				Key:      "key",
				Limit:    tr.limit,
				Cost:     fitCost(tr.limit, rapid.Int64Range(1, maxUnits(tr.limit)+1).Draw(rt, "cost")),
				AtMost:   rapid.Bool().Draw(rt, "at most"),
				MaxDelay: anyDelay(tr.limit.Normal().Period).Draw(rt, "max delay"),
				KeepFree: anyKeepFree(maxUnits(tr.limit)).Draw(rt, "keep free"),
			}
			if needsID(tr.limit) {
				r.ID = strconv.Itoa(i)
			}
			property(tr, r)
		}
	})
}

func anyPause(l penstock.Limit) *rapid.Generator[time.Duration] {
	period := int64(l.Normal().Period / tick)
	return rapid.OneOf(
		rapid.Just(time.Duration(0)), millis(0, 3), millis(0, period/(l.Count+1)+1), millis(0, period),
	)
}

func (tr *traffic) set(now time.Time) {
	if err := tr.clock.set(now); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *traffic) take(r penstock.Request) penstock.Decision {
	d, err := tr.store.Take(context.Background(), r)
	if err != nil {
		tr.t.Fatal(err)
	}
	return d
}

func (tr *traffic) peek() penstock.Decision {
	return tr.take(penstock.Request{Key: "key", Limit: tr.limit})
}

// A denial changes nothing that a peek shows, exactly what is granted is charged, and what
// is to be kept remains.
func denialChargesNothing(tr *traffic, r penstock.Request) {
	before := tr.peek()
	d := tr.take(r)
	after := tr.peek()
	if d.Allowed && after.Remaining < r.KeepFree {
		tr.t.Logf("%s: %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Fatalf("%d remain, want those to keep free", after.Remaining)
	}
	if !d.Allowed && after != before {
		tr.t.Logf("%s: denied %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Logf("before: %s", decisionText(before))
		tr.t.Logf("after:  %s", decisionText(after))
		tr.t.Fatal("a denial changed the state")
	}
	if d.Delay == 0 && before.Remaining-after.Remaining != d.Granted {
		tr.t.Logf("%s: %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Logf("remaining before: %d, after: %d", before.Remaining, after.Remaining)
		tr.t.Fatal("the charge differs from what was granted")
	}
}

// After RetryAfter the same request is allowed, and not one tick earlier. Only costs
// above the limit are never allowed.
func retryAfterIsExact(tr *traffic, r penstock.Request) {
	d := tr.take(r)
	if d.Allowed {
		return
	}
	least := r.Cost
	if r.AtMost {
		least = 1
	}
	if never := least+r.KeepFree > d.Limit; never != (d.RetryAfter == penstock.Never) {
		tr.t.Logf("%s: %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Fatal("want Never for costs above the limit, and only for those")
	}
	if d.RetryAfter == penstock.Never {
		return
	}
	now := tr.clock.Now()
	tr.set(now.Add(d.RetryAfter - tick))
	early := tr.take(r)
	tr.set(now.Add(d.RetryAfter))
	late := tr.take(r)
	if d.RetryAfter <= 0 || early.Allowed || !late.Allowed {
		tr.t.Logf("%s: %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Logf("one tick before that: %s", decisionText(early))
		tr.t.Logf("after that: %s", decisionText(late))
		tr.t.Fatal("RetryAfter is not exact")
	}
}

// A TakeAll that names a key several times is allowed after its longest RetryAfter, and not one tick earlier.
func retryAfterOfEqualKeysIsExact(tr *traffic, r penstock.Request) {
	if needsID(tr.limit) {
		return
	}
	if rapid.Bool().Draw(tr.t, "alone") {
		tr.take(r)
	}
	rs := make([]penstock.Request, rapid.IntRange(2, 3).Draw(tr.t, "requests"))
	for i := range rs {
		rs[i] = penstock.Request{Key: r.Key, Limit: r.Limit, KeepFree: r.KeepFree}
		rs[i].Cost = fitCost(r.Limit, rapid.Int64Range(0, maxUnits(r.Limit)/2+1).Draw(tr.t, "cost"))
		rs[i].MaxDelay = anyDelay(r.Limit.Normal().Period).Draw(tr.t, "max delay")
	}
	allowed, retryAfter, ds := tr.takeAll(rs)
	now := tr.clock.Now()
	switch {
	case allowed:
	case retryAfter == penstock.Never:
		tr.set(now.Add(ds[0].ResetAfter))
		if allowed, _, late := tr.takeAll(rs); allowed {
			tr.t.Fatalf("%s: %+v: %v, and %v when the key is full", tr.limit, rs, ds, late)
		}
	default:
		tr.set(now.Add(retryAfter - tick))
		early, _, before := tr.takeAll(rs)
		tr.set(now.Add(retryAfter))
		if late, _, after := tr.takeAll(rs); retryAfter <= 0 || early || !late {
			tr.t.Fatalf("%s: %+v: %v; one tick before %v: %v; after that: %v", tr.limit, rs, ds, retryAfter, before, after)
		}
	}
}

// takeAll takes all or nothing, and returns the longest RetryAfter.
func (tr *traffic) takeAll(rs []penstock.Request) (allowed bool, retryAfter time.Duration, ds []penstock.Decision) {
	ds = make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(context.Background(), tr.store, rs, ds); err != nil {
		tr.t.Fatal(err)
	}
	allowed = true
	for _, d := range ds {
		allowed, retryAfter = allowed && d.Allowed, max(retryAfter, d.RetryAfter)
	}
	return allowed, retryAfter, ds
}

// After the clock has stepped back by any time, no key is locked out for longer than a refill, and one of a bucket for the reach of
// a reservation more.
func stepBackLocksOutBriefly(tr *traffic, r penstock.Request) {
	if needsID(tr.limit) {
		return
	}
	full := tr.take(r)
	now := tr.clock.Now()
	tr.set(now.Add(-rapid.SampledFrom([]time.Duration{tick, time.Second, time.Hour, 24 * time.Hour}).Draw(tr.t, "step")))
	r = penstock.Request{Key: r.Key, Limit: r.Limit, Cost: 1}
	d := tr.take(r)
	if longest := longestLockout(tr.limit); d.RetryAfter != penstock.Never && d.RetryAfter > longest {
		tr.t.Fatalf("%s: %v after %v and a step back by %v, want RetryAfter to be %v at most", tr.limit, d, full, now.Sub(tr.clock.Now()), longest)
	}
}

// longestLockout is how long a key may be denied one unit after the clock has stepped back.
func longestLockout(l penstock.Limit) time.Duration {
	if !l.IsBucket() || l.Count == 0 {
		// A sliding window passes after the next one, and the buckets of a rolling one last whole ticks.
		return 2*l.Normal().Period + time.Duration(l.Normal().Buckets+2)*tick
	}
	interval := l.Normal().Period/time.Duration(l.Normal().Count) + 1
	refill, debt := time.Duration(l.Capacity())*interval, time.Duration(l.MaxDebt())*interval
	return refill + max(refill, time.Minute, debt) + tick
}

// After ResetAfter the key is full again, and not one tick earlier.
func resetAfterIsExact(tr *traffic, r penstock.Request) {
	d := tr.take(r)
	if d.ResetAfter == 0 {
		return
	}
	now := tr.clock.Now()
	tr.set(now.Add(d.ResetAfter - tick))
	early := tr.peek()
	tr.set(now.Add(d.ResetAfter))
	late := tr.peek()
	fresh := penstock.Decision{Allowed: true, Limit: d.Limit, Remaining: d.Limit}
	if early.ResetAfter != tick || late != fresh {
		tr.t.Logf("%s: %+v: %s", tr.limit, r, decisionText(d))
		tr.t.Logf("one tick before that: %s", decisionText(early))
		tr.t.Logf("after that: %s", decisionText(late))
		tr.t.Fatal("ResetAfter is not exact")
	}
}

// No interval admits more than the algorithm's bound.
func boundHolds(tr *traffic, r penstock.Request) {
	d := tr.take(r)
	if !d.Allowed {
		return
	}
	tr.granted = append(tr.granted, granted{at: tr.clock.Now(), units: d.Granted, delay: d.Delay})
	var units int64
	last := tr.granted[len(tr.granted)-1]
	for i := len(tr.granted) - 1; i >= 0; i-- {
		g := tr.granted[i]
		units += g.units
		if most := bound(tr.limit, g, last); units > most {
			tr.t.Logf("%s: %d units between %s and %s, want at most %d",
				tr.limit, units, g.actAt().Format(time.RFC3339Nano), last.actAt().Format(time.RFC3339Nano), most)
			tr.t.Fatal("admitted more than the bound")
		}
	}
}

func (g granted) actAt() time.Time { return g.at.Add(g.delay) }
