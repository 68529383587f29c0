package algorithm_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// What every algorithm promises, each promise by itself, on clocks that step
// back as well. There is no oracle here: a promise is checked against what the
// same key answers to other questions.

// SpendOne is Decide, where it may be used.
func TestSpendOneIsDecide(t *testing.T) { rapid.Check(t, spendOneIsDecide) }

func spendOneIsDecide(t *rapid.T) {
	tr := newTrace(t, tokenBucket)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		tr.decide(req)
		k := *tr.key.(*tokenKey)
		if k.bucket.Reserved {
			return
		}
		after, ok := k.limit.SpendOne(k.bucket.Full, tr.now)
		a := k.decide(tr.now, algorithm.Request{Cost: 1})
		if ok != a.Allowed || ok && k.bucket != (algorithm.Bucket{Full: after}) {
			t.Fatalf("%v at %d: SpendOne gives %d, %v; Decide gives %+v, %+v", tr.limit, tr.now, after, ok, k.bucket, a)
		}
	}))
}

// Spend, where it does something, is what the other steps do one after the other;
// where it does nothing, it leaves no trace.
func TestSpendIsDecide(t *testing.T) {
	checkKinds(t, []kind{rollingWindow, slidingLog}, spendIsDecide)
}

func spendIsDecide(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		defer tr.decide(req) // so that the clock may have stepped back since the last
		cost := rapid.Int64Range(1, 3).Draw(t, "spent")
		spender, decider := tr.key.fork(), tr.key.fork()
		before := spender.state(tr.now)
		st, ok := spend(spender, tr.now, cost)
		if !ok {
			if after := spender.state(tr.now); after != before {
				t.Fatalf("%v at %d: Spend(%d) refuses, and yet %s becomes %s", tr.limit, tr.now, cost, before, after)
			}
			return
		}
		a := decider.decide(tr.now, algorithm.Request{Cost: cost})
		want := answer{algorithm.Outcome{Allowed: true, Granted: cost}, st}
		if a != want || spender.state(tr.now) != decider.state(tr.now) {
			t.Fatalf("%v at %d: Spend(%d) gives %+v and %s; Decide gives %+v and %s",
				tr.limit, tr.now, cost, want, spender.state(tr.now), a, decider.state(tr.now))
		}
	}))
}

// spend takes a cost of a key that can be spent from in one step.
func spend(k key, now, cost int64) (algorithm.Balance, bool) {
	switch k := k.(type) {
	case *rollingKey:
		if k.ring.Counts != nil {
			return k.limit.Spend(&k.ring, now, cost)
		}
	case *logKey:
		return k.limit.Spend(&k.log, now, cost)
	}
	return algorithm.Balance{}, false
}

// A denial changes nothing: the key is as if it had only been looked at.
func TestDenialIsFree(t *testing.T) { checkKinds(t, everyKind, denialIsFree) }

func denialIsFree(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		twin := tr.fork()
		a := tr.decide(req)
		if a.Allowed {
			return
		}
		look := twin.decide(tr.now, algorithm.Request{})
		if got, want := tr.state(tr.now), twin.state(tr.now); got != want || a.Balance != look.Balance {
			t.Fatalf("%v at %d: denied %+v leaves %s, %+v; a look leaves %s, %+v",
				tr.limit, tr.now, req, got, a.Balance, want, look.Balance)
		}
		if a.Granted != 0 || a.Delay != 0 {
			t.Fatalf("%v at %d: denied %+v, but %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// A look changes nothing either: whoever asks next is told the same as without.
func TestLookIsFree(t *testing.T) { checkKinds(t, everyKind, lookIsFree) }

func lookIsFree(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		twin := tr.fork()
		look := twin.decide(tr.now, algorithm.Request{})
		if !look.Allowed || look.Granted != 0 || look.RetryAfter != 0 {
			t.Fatalf("%v at %d: a look is answered by %+v", tr.limit, tr.now, look)
		}
		got, want := twin.decide(tr.now, req), tr.decide(req)
		if got != want || twin.state(tr.now) != tr.state(tr.now) {
			t.Fatalf("%v at %d, %+v: got %+v after a look, want %+v", tr.limit, tr.now, req, got, want)
		}
	}))
}

// What is left behind is what the next one relies on: nothing lies too far
// ahead, nothing is negative, and sums are sums.
func TestStatesAreSound(t *testing.T) { checkKinds(t, everyKind, statesAreSound) }

func statesAreSound(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		if a := tr.decide(req); !tr.sound(tr.now) {
			t.Fatalf("%v at %d, %+v: %+v leaves %+v behind", tr.limit, tr.now, req, a, tr.key)
		}
	}))
}

// Remaining is what can be taken: so much passes, and not one unit more.
func TestRemainingIsWhatCanBeTaken(t *testing.T) { checkKinds(t, everyKind, remainingCanBeTaken) }

func remainingCanBeTaken(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		if a.Remaining < 0 || a.Remaining > tr.limit.most() {
			t.Fatalf("%v at %d, %+v: %+v", tr.limit, tr.now, req, a)
		}
		all := tr.fork().decide(tr.now, algorithm.Request{Cost: a.Remaining})
		if !all.Allowed || all.Remaining != 0 || all.Granted != a.Remaining {
			t.Fatalf("%v at %d: %d remain, but taking them gives %+v", tr.limit, tr.now, a.Remaining, all)
		}
		if a.Remaining == math.MaxInt64 {
			return
		}
		more := tr.fork().decide(tr.now, algorithm.Request{Cost: a.Remaining + 1})
		if more.Allowed {
			t.Fatalf("%v at %d: %d remain, but taking one more gives %+v", tr.limit, tr.now, a.Remaining, more)
		}
	}))
}

// What is granted is gone, unit by unit, and what is given back was not there
// before: an ask moves Remaining by what it says it does.
func TestRemainingMovesByWhatIsGranted(t *testing.T) { checkKinds(t, everyKind, remainingMoves) }

func remainingMoves(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		before := tr.fork().decide(tr.now, algorithm.Request{}).Remaining
		a := tr.decide(req)
		least, most := max(before-a.Granted, 0), max(before-a.Granted, 0)
		if a.Granted < 0 && (k.isBucket() || k == slidingWindow) {
			// Of a unit that has come back in part, only the rest was left.
			least = before
		}
		if a.Remaining < least || a.Remaining > most {
			t.Fatalf("%v at %d, %+v: %d remained before %+v", tr.limit, tr.now, req, before, a)
		}
		if req.Cost > 0 && (a.Granted > req.Cost || !req.AtMost && a.Allowed && a.Granted != req.Cost) {
			t.Fatalf("%v at %d, %+v: granted %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// RetryAfter is true to the tick: alone, the same ask passes then, and one tick
// earlier it does not.
func TestRetryAfterIsTrueToTheTick(t *testing.T) { checkKinds(t, everyKind, retryAfterIsTrue) }

func retryAfterIsTrue(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		switch {
		case a.Allowed != (a.RetryAfter == 0):
			t.Fatalf("%v at %d, %+v: %+v", tr.limit, tr.now, req, a)
		case a.Allowed:
			return
		case a.RetryAfter == algorithm.Never:
			tr.checkNever(t, req)
			return
		}
		if now := tr.now + a.RetryAfter - tr.limit.tick; now <= algorithm.MaxTime {
			if early := tr.fork().decide(now, req); early.Allowed {
				t.Fatalf("%v at %d, %+v: told to come back in %d, but a tick earlier %+v",
					tr.limit, tr.now, req, a.RetryAfter, early)
			}
		}
		if now := tr.now + a.RetryAfter; now <= algorithm.MaxTime {
			if then := tr.fork().decide(now, req); !then.Allowed {
				t.Fatalf("%v at %d, %+v: told to come back in %d, but then %+v",
					tr.limit, tr.now, req, a.RetryAfter, then)
			}
		}
	}))
}

// checkNever checks that an ask can never pass: that a new key, which has all
// there can be, denies it too.
func (tr *trace) checkNever(t *rapid.T, req algorithm.Request) {
	fresh := newKey(tr.limit).decide(tr.now, req)
	if fresh.Allowed || fresh.RetryAfter != algorithm.Never {
		t.Fatalf("%v at %d, %+v: never, but on a new key %+v", tr.limit, tr.now, req, fresh)
	}
}

// ResetAfter is true to the tick: then the key is as good as new, and one tick
// earlier it is not.
func TestResetAfterIsTrueToTheTick(t *testing.T) { checkKinds(t, everyKind, resetAfterIsTrue) }

func resetAfterIsTrue(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		then := tr.now + a.ResetAfter
		if a.ResetAfter < 0 || a.ResetAfter > 0 && then-tr.limit.tick <= algorithm.MaxTime &&
			tr.fork().decide(then-tr.limit.tick, algorithm.Request{}).ResetAfter == 0 {
			t.Fatalf("%v at %d, %+v: reset after %d, but a tick earlier already", tr.limit, tr.now, req, a.ResetAfter)
		}
		if e, ok := tr.key.(interface{ empty() int64 }); ok && e.empty() != then && max(e.empty(), then) > tr.now {
			t.Fatalf("%v at %d, %+v: reset after %d, but empty at %d", tr.limit, tr.now, req, a.ResetAfter, e.empty())
		}
		if then > algorithm.MaxTime {
			return
		}
		old, fresh := tr.fork(), newKey(tr.limit)
		next := tr.drawTake(t)
		got, want := old.decide(then, next), fresh.decide(then, next)
		if got != want || old.state(then) != fresh.state(then) {
			t.Fatalf("%v at %d, %+v: reset after %d, but then %+v gets %+v, and of a new key %+v",
				tr.limit, tr.now, req, a.ResetAfter, next, got, want)
		}
	}))
}

// Nobody is locked out for longer than one refill, whatever the clock did: the
// largest cost that fits is told to come back within it.
func TestNobodyIsLockedOutLongerThanOneRefill(t *testing.T) {
	checkKinds(t, everyKind, lockoutIsBounded)
}

func lockoutIsBounded(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	reserving := rapid.Bool().Draw(t, "reserving")
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		if !reserving {
			req.MaxDelay = 0
		}
		tr.decide(req)
		if tr.limit.most() == 0 {
			return
		}
		longest := tr.limit.refill(tr.now, reserving)
		a := tr.fork().decide(tr.now, algorithm.Request{Cost: tr.limit.most()})
		if a.RetryAfter > longest || a.ResetAfter > longest {
			t.Fatalf("%v at %d, after %+v: %+v, want at most %d", tr.limit, tr.now, req, a, longest)
		}
	}))
}

// refill returns how long a key takes to become as good as new, at most.
func (l limit) refill(now int64, reserving bool) int64 {
	switch l.kind {
	case tokenBucket:
		bucket := algorithm.TokenBucket{Rate: l.rate}
		if reserving {
			return wholeTicks(whole(bucket.Capacity()+bucket.Reach()), l.tick).Int64()
		}
		return wholeTicks(whole(bucket.Capacity()), l.tick).Int64()
	case leakyBucket:
		return wholeTicks(whole(l.rate.Capacity()), l.tick).Int64()
	case fixedWindow, alignedWindow:
		return l.windows.window(now).Length
	case slidingWindow:
		return 2 * l.period
	case rollingWindow:
		return (l.buckets + 1) * bucketLength(l)
	}
	return l.period
}

// A step back frees nothing.
func TestStepBackFreesNothing(t *testing.T) { checkKinds(t, everyKind, stepBackFreesNothing) }

func stepBackFreesNothing(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		before, then := tr.decide(req), tr.now
		tr.clockJumps(t)
		if after := tr.decide(algorithm.Request{}); tr.now < then && after.Remaining > before.Remaining {
			t.Fatalf("%v: %d remain at %d, and %d after stepping back to %d",
				tr.limit, before.Remaining, then, after.Remaining, tr.now)
		}
	}))
}

// Whoever gives back at once what was taken leaves the key as it was.
func TestTakeAndGiveBackIsTheIdentity(t *testing.T) { checkKinds(t, everyKind, takeAndGiveBack) }

func takeAndGiveBack(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		twin := tr.fork()
		before := twin.decide(tr.now, algorithm.Request{})
		want := twin.state(tr.now)
		if taken := twin.decide(tr.now, req).Granted; taken > 0 {
			after := twin.decide(tr.now, algorithm.Request{Cost: -taken})
			if got := twin.state(tr.now); got != want || after.Granted != -taken || after.Balance != before.Balance {
				t.Fatalf("%v at %d: taking %+v and giving it back gives %+v and leaves %s, want %+v and %s",
					tr.limit, tr.now, req, after, got, before.Balance, want)
			}
		}
		tr.decide(req)
	}))
}

// Whoever gives everything back has a key that is as good as new, and can give
// back nothing more.
func TestForgetIsAsGoodAsNew(t *testing.T) { checkKinds(t, everyKind, forgetIsAsGoodAsNew) }

func forgetIsAsGoodAsNew(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		tr.decide(req)
		twin := tr.fork()
		forgotten := twin.decide(tr.now, algorithm.Request{Cost: algorithm.Reset})
		again := twin.decide(tr.now, algorithm.Request{Cost: -1})
		want := algorithm.Balance{Remaining: tr.limit.most()}
		if !forgotten.Allowed || forgotten.Granted > 0 || again.Granted != 0 || again.Balance != want {
			t.Fatalf("%v at %d: forgotten by %+v, then giving back one: %+v", tr.limit, tr.now, forgotten, again)
		}
	}))
}

// Raising a limit frees room at once, and lowering it leaves at most the new
// limit owed. The rate of a bucket stays as it is here: what a bucket owes is
// time, which is another number of units at another rate.
func TestChangingALimitCountsAtOnce(t *testing.T) { checkKinds(t, everyKind, changeCountsAtOnce) }

func changeCountsAtOnce(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		a, before := tr.decide(req), tr.limit.most()
		if k.isBucket() {
			tr.limit.rate.Burst = anySize(0, algorithm.MaxRefill/tr.limit.rate.Interval).Draw(t, "burst")
		} else {
			tr.limit.count = drawCount(k).Draw(t, "count")
		}
		tr.change(tr.limit)
		used := before - a.Remaining
		got, want := tr.decide(algorithm.Request{}).Remaining, max(tr.limit.most()-used, 0)
		if got != want {
			t.Fatalf("%v at %d: %d of %d were used before the limit changed, now %d remain, want %d",
				tr.limit, tr.now, used, before, got, want)
		}
	}))
}

// A thousand calls at one instant admit exactly the limit.
func TestOneInstantAdmitsExactlyTheLimit(t *testing.T) {
	checkKinds(t, everyKind, oneInstantAdmitsTheLimit)
}

func oneInstantAdmitsTheLimit(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	most := rapid.Int64Range(0, 999).Draw(t, "most")
	if k.isBucket() {
		most = min(most, algorithm.MaxRefill/tr.limit.rate.Interval)
		tr.limit.rate.Burst = most
	}
	tr.limit.count = most
	tr.change(tr.limit)
	for i := range int64(1000) {
		a := tr.decide(algorithm.Request{Cost: 1})
		if a.Allowed != (i < most) || a.Remaining != max(most-i-1, 0) {
			t.Fatalf("%v at %d: call %d of 1000 gives %+v", tr.limit, tr.now, i, a)
		}
	}
}

// However long a key was idle, it is as good as new, and no better.
func TestIdleForTenYears(t *testing.T) { checkKinds(t, everyKind, idleForTenYears) }

func idleForTenYears(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	actions := tr.anything(func(t *rapid.T, req algorithm.Request) { tr.decide(req) })
	delete(actions, "limit changes")
	t.Repeat(actions)
	if tr.now > algorithm.MaxTime/2 {
		tr.moveTo(tr.now / 4)
	}
	tr.decide(algorithm.Request{})
	idle := max(tr.last.ResetAfter, rapid.Int64Range(10*year, algorithm.MaxTime/4).Draw(t, "idle"))
	if idle > algorithm.MaxTime-tr.now {
		return // the clock ends before
	}
	tr.moveTo(tr.now + idle)
	most := tr.limit.most()
	if a := tr.fork().decide(tr.now, algorithm.Request{Cost: math.MaxInt64}); most < math.MaxInt64 && a.RetryAfter != algorithm.Never {
		t.Fatalf("%v at %d: asked for everything, got %+v", tr.limit, tr.now, a)
	}
	if a := tr.decide(algorithm.Request{Cost: most}); !a.Allowed || a.Remaining != 0 || a.Delay != 0 {
		t.Fatalf("%v at %d: asked for all of it, got %+v", tr.limit, tr.now, a)
	}
}

// Durations are whole ticks and never negative; a delay is no longer than it
// may be.
func TestDurationsAreWholeTicks(t *testing.T) { checkKinds(t, everyKind, durationsAreWholeTicks) }

func durationsAreWholeTicks(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		for _, d := range []int64{a.RetryAfter, a.ResetAfter, a.Delay} {
			if d < 0 || d != algorithm.Never && d%tr.limit.tick != 0 {
				t.Fatalf("%v at %d, %+v: %+v", tr.limit, tr.now, req, a)
			}
		}
		late := req.MaxDelay > 0 && a.Delay > req.MaxDelay || req.MaxDelay == 0 && k != leakyBucket && a.Delay > 0
		if req.Cost > 0 && late {
			t.Fatalf("%v at %d, %+v: granted too late by %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// Aligned windows follow each other without gaps, and one of them begins at the
// offset.
func TestAlignedWindowsContainNow(t *testing.T) { rapid.Check(t, alignedWindowContainsNow) }

func alignedWindowContainsNow(t *rapid.T) {
	now := anySize(0, algorithm.MaxTime).Draw(t, "now")
	length := anySize(1, 366*day).Draw(t, "length")
	offset := rapid.Int64Range(1-length, length-1).Draw(t, "offset")
	w := algorithm.Aligned(now, length, offset)
	if w.Length != length || now < w.End-length || now >= w.End || (w.End-offset)%length != 0 {
		t.Fatalf("Aligned(%d, %d, %d) = %+v", now, length, offset, w)
	}
}

// A rate is refused only if its interval is, or if a whole burst takes too long.
func TestRateFillsInTime(t *testing.T) { rapid.Check(t, rateFillsInTime) }

func rateFillsInTime(t *rapid.T) {
	count := anySize(1, math.MaxInt64).Draw(t, "count")
	period := anySize(1, 366*day).Draw(t, "period")
	burst := anySize(1, math.MaxInt64).Draw(t, "burst")
	interval, even := algorithm.Interval(count, period, burst)
	fill := new(big.Int).Mul(big.NewInt(burst), big.NewInt(interval))
	inTime := fill.Cmp(big.NewInt(algorithm.MaxRefill)) <= 0
	r, ok := algorithm.NewRate(count, period, burst, 1)
	if ok != (even && inTime) || ok && r != (algorithm.Rate{Interval: interval, Burst: burst, Tick: 1}) {
		t.Fatalf("NewRate(%d, %d, %d, 1) = %+v, %v; the interval is %d, and even: %v",
			count, period, burst, r, ok, interval, even)
	}
}

func TestRoundingGoesToTheNextTick(t *testing.T) { rapid.Check(t, roundingGoesToTheNextTick) }

func roundingGoesToTheNextTick(t *rapid.T) {
	tick := rapid.OneOf(rapid.SampledFrom([]int64{1, millisecond}), anySize(1, hour)).Draw(t, "tick")
	d := anySize(0, algorithm.MaxTime).Draw(t, "duration")
	up, down := algorithm.RoundUp(d, tick), algorithm.RoundDown(d, tick)
	if up%tick != 0 || up < d || up-tick >= d || down%tick != 0 || down > d || down+tick <= d {
		t.Fatalf("%d in ticks of %d: RoundUp gives %d, RoundDown %d", d, tick, up, down)
	}
}
