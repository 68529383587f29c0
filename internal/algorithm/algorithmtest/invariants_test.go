package algorithmtest

import (
	"fmt"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// The properties of all algorithms, one by one, also on clocks that step back. There is
// no oracle here: a property is checked with further requests to the same key.

// SpendOne does the same as Decide, where it may be used.
func TestSpendOneMatchesDecide(t *testing.T) { rapid.Check(t, spendOneMatchesDecide) }

func spendOneMatchesDecide(t *rapid.T) {
	tr := newTrace(t, tokenBucket)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		tr.decide(req)
		k := *tr.key.(*bucketKey)
		limit := algorithm.TokenBucket{Rate: k.Rate}
		after, ok := limit.SpendOne(k.bucket.Full, tr.now)
		a := k.decide(tr.now, algorithm.Request{Cost: 1})
		if ok != a.Allowed || ok && k.bucket != (algorithm.Bucket{Full: after}) {
			t.Fatalf("%v at %d: SpendOne gives %d, %v; Decide gives %+v, %+v", tr.limit, tr.now, after, ok, k.bucket, a)
		}
	}))
}

// Spend does the same as Normalize, Decide and Record, or else changes nothing.
func TestSpendMatchesDecide(t *testing.T) {
	checkKinds(t, []kind{fixedWindow, rollingWindow, slidingLog}, spendMatchesDecide)
}

func spendMatchesDecide(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		defer tr.decide(req) // the clock may step back between decisions
		cost := rapid.Int64Range(1, 3).Draw(t, "spent")
		spender, decider := tr.key.fork(), tr.key.fork()
		before := spender.state(tr.now)
		st, ok := spend(spender, tr.now, cost)
		if !ok {
			if after := spender.state(tr.now); after != before {
				t.Fatalf("%v at %d: Spend(%d) refuses, but %s becomes %s", tr.limit, tr.now, cost, before, after)
			}
			return
		}
		a := decider.decide(tr.now, algorithm.Request{Cost: cost})
		want := result{algorithm.Outcome{Allowed: true, Granted: cost}, st}
		if a != want || spender.state(tr.now) != decider.state(tr.now) {
			t.Fatalf("%v at %d: Spend(%d) gives %+v and %s; Decide gives %+v and %s",
				tr.limit, tr.now, cost, want, spender.state(tr.now), a, decider.state(tr.now))
		}
	}))
}

// spend calls Spend, if the key's algorithm has it.
func spend(k key, now, cost int64) (algorithm.Balance, bool) {
	switch k := k.(type) {
	case *fixedKey:
		return k.limit.Spend(&k.counter, now, k.windows.window(now).Length, cost)
	case *rollingKey:
		return k.spend(now, cost)
	case *logKey:
		return k.limit.Spend(&k.log, now, cost)
	}
	return algorithm.Balance{}, false
}

// spend charges what Spend grants, if the key has a ring.
func (k *rollingKey) spend(now, cost int64) (bal algorithm.Balance, ok bool) {
	if k.ring.Counts == nil {
		return bal, false
	}
	if bal, ok = k.limit.Spend(k.ring.Newest, k.ring.Total, now, cost); ok {
		k.ring.Counts[k.ring.Head] += cost
		k.ring.Total += cost
	}
	return bal, ok
}

// A denial changes nothing: the state is as after a peek.
func TestDecideDenialChangesNothing(t *testing.T) { checkKinds(t, everyKind(), denialChangesNothing) }

func denialChangesNothing(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		copied := tr.fork()
		a := tr.decide(req)
		if a.Allowed {
			return
		}
		peek := copied.decide(tr.now, algorithm.Request{})
		if got, want := tr.state(tr.now), copied.state(tr.now); got != want || a.Balance != peek.Balance {
			t.Fatalf("%v at %d: denied %+v leaves %s, %+v; a peek leaves %s, %+v",
				tr.limit, tr.now, req, got, a.Balance, want, peek.Balance)
		}
		if a.Granted != 0 || a.Delay != 0 {
			t.Fatalf("%v at %d: denied %+v, but %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// A denied request leaves the same future as no request: whatever comes later, a key that
// denied some requests decides as one that never saw them. The clamp of a debt that the
// clock made too large is the exception, so both keys get it.
func TestBucketDenialLeavesSameFuture(t *testing.T) {
	checkKinds(t, bucketKinds(), denialLeavesSameFuture)
}

func denialLeavesSameFuture(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	other := tr.fork()
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		other.change(tr.limit)
		clamped := other.fork()
		clamped.decide(tr.now, algorithm.Request{})
		if endOf(clamped) != endOf(other) {
			tr.key.decide(tr.now, algorithm.Request{})
			other = clamped
		}
		alone := other.fork()
		got, want := tr.decide(req), alone.decide(tr.now, req)
		if got != want {
			t.Fatalf("%v at %d, %+v: got %+v after denials, want %+v as without them", tr.limit, tr.now, req, got, want)
		}
		if got.Allowed {
			other = alone
		}
		tr.timePasses(t)
		all := algorithm.Request{Cost: tr.limit.max()}
		if !tr.fork().decide(tr.now, all).Allowed {
			tr.decide(all)
		}
	}))
}

// endOf returns when a bucket is full.
func endOf(k key) int64 {
	b, ok := k.(*bucketKey)
	if !ok {
		panic(fmt.Sprintf("invariants_test.go: endOf does not know when a %T is full", k))
	}
	return b.bucket.Full
}

// A peek changes nothing either: the next decision is the same as without it.
func TestDecidePeekChangesNothing(t *testing.T) { checkKinds(t, everyKind(), peekChangesNothing) }

func peekChangesNothing(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		copied := tr.fork()
		peek := copied.decide(tr.now, algorithm.Request{})
		if !peek.Allowed || peek.Granted != 0 || peek.RetryAfter != 0 {
			t.Fatalf("%v at %d: a peek gives %+v", tr.limit, tr.now, peek)
		}
		got, want := copied.decide(tr.now, req), tr.decide(req)
		if got != want || copied.state(tr.now) != tr.state(tr.now) {
			t.Fatalf("%v at %d, %+v: got %+v after a peek, want %+v", tr.limit, tr.now, req, got, want)
		}
	}))
}

// Decide leaves a valid state: no time is too far ahead, no count is negative, and
// totals equal their sums.
func TestDecideLeavesValidState(t *testing.T) { checkKinds(t, everyKind(), statesAreValid) }

func statesAreValid(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		if a := tr.decide(req); !tr.valid(tr.now) {
			t.Fatalf("%v at %d, %+v: %+v leaves %+v", tr.limit, tr.now, req, a, tr.key)
		}
	}))
}

// Remaining can be taken, and not one unit more.
func TestDecideRemainingCanBeTaken(t *testing.T) { checkKinds(t, everyKind(), remainingCanBeTaken) }

func remainingCanBeTaken(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		if a.Remaining < 0 || a.Remaining > tr.limit.max() {
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

// A request moves Remaining by exactly Granted, for takes and for refunds.
func TestDecideRemainingMovesByGranted(t *testing.T) { checkKinds(t, everyKind(), remainingMoves) }

func remainingMoves(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		before := tr.fork().decide(tr.now, algorithm.Request{}).Remaining
		a := tr.decide(req)
		least, most := max(before-a.Granted, 0), max(before-a.Granted, 0)
		if a.Granted < 0 && (k.isBucket() || k == slidingWindow || before == 0) {
			// Of a partly refilled unit, only the rest was left. A debt is paid first.
			least = before
		}
		if a.Remaining < least || a.Remaining > most {
			t.Fatalf("%v at %d, %+v: %d remained before %+v", tr.limit, tr.now, req, before, a)
		}
		if req.Cost > 0 && (a.Granted > req.Cost || !req.AtMost && !req.Overdraw && a.Allowed && a.Granted != req.Cost) {
			t.Fatalf("%v at %d, %+v: granted %+v", tr.limit, tr.now, req, a)
		}
		if req.Cost > 0 && !req.Overdraw && a.Allowed && a.Remaining < req.KeepFree {
			t.Fatalf("%v at %d, %+v: kept too little: %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// RetryAfter is exact to the tick: without other requests, the same request is allowed
// then, and one tick earlier it is not.
func TestDecideRetryAfterIsExact(t *testing.T) { checkKinds(t, everyKind(), retryAfterIsExact) }

func retryAfterIsExact(t *rapid.T, k kind) {
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
		if now := tr.after(a.RetryAfter) - tr.limit.tick; now <= algorithm.MaxTime {
			if early := tr.fork().decide(now, req); early.Allowed {
				t.Fatalf("%v at %d, %+v: RetryAfter %d, but a tick earlier %+v",
					tr.limit, tr.now, req, a.RetryAfter, early)
			}
		}
		if now := tr.after(a.RetryAfter); now <= algorithm.MaxTime {
			if then := tr.fork().decide(now, req); !then.Allowed {
				t.Fatalf("%v at %d, %+v: RetryAfter %d, but then %+v",
					tr.limit, tr.now, req, a.RetryAfter, then)
			}
		}
	}))
}

// checkNever checks that a request is never allowed: a new key denies it too.
func (tr *trace) checkNever(t *rapid.T, req algorithm.Request) {
	fresh := newKey(tr.limit).decide(tr.now, req)
	if fresh.Allowed || fresh.RetryAfter != algorithm.Never {
		t.Fatalf("%v at %d, %+v: Never, but on a new key %+v", tr.limit, tr.now, req, fresh)
	}
}

// ResetAfter is exact to the tick: then the key is full, and one tick earlier it is not.
func TestDecideResetAfterIsExact(t *testing.T) { checkKinds(t, everyKind(), resetAfterIsExact) }

func resetAfterIsExact(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		a := tr.decide(req)
		then := tr.after(a.ResetAfter)
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
			t.Fatalf("%v at %d, %+v: reset after %d, but then %+v gets %+v, and on a new key %+v",
				tr.limit, tr.now, req, a.ResetAfter, next, got, want)
		}
	}))
}

// No key is locked out for longer than one refill and the reach of reservations, whatever
// the clock did: the RetryAfter of the largest cost that fits is within it.
func TestDecideLocksOutForOneRefillAtMost(t *testing.T) {
	checkKinds(t, everyKind(), lockoutIsBounded)
}

func lockoutIsBounded(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		tr.decide(req)
		if tr.limit.max() == 0 {
			return
		}
		longest := tr.limit.refill(tr.now)
		a := tr.fork().decide(tr.now, algorithm.Request{Cost: tr.limit.max()})
		if a.RetryAfter > longest || a.ResetAfter > longest {
			t.Fatalf("%v at %d, after %+v: %+v, want at most %d", tr.limit, tr.now, req, a, longest)
		}
	}))
}

// refill returns how long a key takes to refill, at most.
func (l limit) refill(now int64) int64 {
	if refill := rows[l.kind].refill; refill != nil {
		return refill(l, now)
	}
	return l.period
}

// A step back frees nothing.
func TestDecideStepBackFreesNothing(t *testing.T) { checkKinds(t, everyKind(), stepBackFreesNothing) }

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

// A refund at once of what was taken restores the state.
func TestDecideRefundRestoresState(t *testing.T) { checkKinds(t, everyKind(), takeAndRefund) }

func takeAndRefund(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		copied := tr.fork()
		before := copied.decide(tr.now, algorithm.Request{})
		dropPaidMark(copied, tr.now)
		want := copied.state(tr.now)
		if granted := copied.decide(tr.now, req).Granted; granted > 0 {
			after := copied.decide(tr.now, algorithm.Request{Cost: -granted})
			if got := copied.state(tr.now); got != want || after.Granted != -granted || after.Balance != before.Balance {
				t.Fatalf("%v at %d: a take %+v and its refund give %+v and leave %s, want %+v and %s",
					tr.limit, tr.now, req, after, got, before.Balance, want)
			}
		}
		tr.decide(req)
	}))
}

// dropPaidMark drops the mark of an overdrawn key that owes nothing beyond its limit any
// more, as the next charge does.
func dropPaidMark(k key, now int64) {
	if k, ok := k.(*slidingKey); ok && k.slide.End > now {
		used := (&slidingLedger{period: k.limit.Period, start: k.slide.End - k.limit.Period}).weighed(now, k.slide.Previous)
		k.slide.Overdrawn = k.slide.Current > 0 && k.slide.Current+used > k.limit.Count
	}
}

// After a reset the key is full, and nothing is left to refund.
func TestDecideResetMakesKeyFull(t *testing.T) { checkKinds(t, everyKind(), resetMakesKeyFull) }

func resetMakesKeyFull(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		tr.decide(req)
		copied := tr.fork()
		reset := copied.decide(tr.now, algorithm.Request{Cost: algorithm.Reset})
		again := copied.decide(tr.now, algorithm.Request{Cost: -1})
		want := algorithm.Balance{Remaining: tr.limit.max()}
		if !reset.Allowed || reset.Granted > 0 || again.Granted != 0 || again.Balance != want {
			t.Fatalf("%v at %d: reset by %+v, then a refund of one: %+v", tr.limit, tr.now, reset, again)
		}
	}))
}

// Raising a limit frees room at once, and lowering it leaves what was used. The rate of a
// bucket does not change here: its debt is a time, which is another number of units at
// another rate.
func TestDecideLimitChangeAppliesAtOnce(t *testing.T) {
	checkKinds(t, everyKind(), limitChangeAppliesAtOnce)
}

func limitChangeAppliesAtOnce(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.withoutDelay(func(t *rapid.T, req algorithm.Request) {
		a, before := tr.decide(req), tr.limit.max()
		if k.isBucket() {
			tr.limit.rate.Burst = anySize(0, algorithm.MaxRefill/tr.limit.rate.Interval).Draw(t, "burst")
		} else {
			tr.limit.count = drawCount(k).Draw(t, "count")
		}
		tr.change(tr.limit)
		used := before - a.Remaining
		got, want := tr.decide(algorithm.Request{}).Remaining, max(tr.limit.max()-used, 0)
		if got > want || got < want && a.Remaining > 0 { // without remaining units, more may be used
			t.Fatalf("%v at %d: %d of %d were used before the limit changed, now %d remain, want %d",
				tr.limit, tr.now, used, before, got, want)
		}
	}))
}

// Whatever is asked for under a smaller limit of the same state frees nothing under the
// larger one.
func TestDecideSmallerLimitFreesNothing(t *testing.T) {
	checkKinds(t, everyKind(), smallerLimitFreesNothing)
}

func smallerLimitFreesNothing(t *rapid.T, k kind) {
	tr := newTrace(t, k)
	t.Repeat(tr.anything(func(t *rapid.T, req algorithm.Request) {
		large, smaller := tr.limit, tr.limit
		if k.isBucket() { // and not so much smaller that it mistakes the debt for a step of the clock
			smaller.rate.Burst = rapid.Int64Range(tr.limit.rate.Burst-tr.limit.rate.Burst/2, tr.limit.rate.Burst).Draw(t, "burst")
			smaller.rate.Overdraft = tr.limit.rate.Overdraft + tr.limit.rate.Burst - smaller.rate.Burst
		} else {
			smaller.count = rapid.Int64Range(0, tr.limit.count).Draw(t, "count")
		}
		req.Overdraw = req.Overdraw && k != slidingWindow // whose debt ends with the window, up to the count then
		before := tr.decide(req).Balance
		tr.change(smaller)
		under := rapid.SampledFrom([]algorithm.Request{{}, {Cost: 1}, {Cost: 1, AtMost: true}, {Cost: math.MaxInt64}}).Draw(t, "under the smaller")
		tr.decide(under)
		tr.change(large)
		if after := tr.decide(algorithm.Request{}); after.Remaining > before.Remaining {
			t.Fatalf("%v at %d: %+v before %+v under %v, and %+v after it", large, tr.now, before, under, smaller, after)
		}
	}))
}

// A thousand calls at one instant admit exactly the limit.
func TestDecideAdmitsLimitAtOneInstant(t *testing.T) {
	checkKinds(t, everyKind(), oneInstantAdmitsTheLimit)
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

// However long a key was idle, it is full, and not more than full.
func TestDecideIdleKeyIsFull(t *testing.T) { checkKinds(t, everyKind(), idleForTenYears) }

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
		return // beyond the last time of the clock
	}
	tr.moveTo(tr.now + idle)
	most := tr.limit.max()
	if a := tr.fork().decide(tr.now, algorithm.Request{Cost: math.MaxInt64}); most < math.MaxInt64 && a.RetryAfter != algorithm.Never {
		t.Fatalf("%v at %d: a take of MaxInt64 gives %+v", tr.limit, tr.now, a)
	}
	if a := tr.decide(algorithm.Request{Cost: most}); !a.Allowed || a.Remaining != 0 || a.Delay != 0 {
		t.Fatalf("%v at %d: a take of the whole limit gives %+v", tr.limit, tr.now, a)
	}
}

// Durations are whole ticks and never negative; a delay is within MaxDelay.
func TestDecideDurationsAreWholeTicks(t *testing.T) {
	checkKinds(t, everyKind(), durationsAreWholeTicks)
}

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
			t.Fatalf("%v at %d, %+v: granted beyond MaxDelay: %+v", tr.limit, tr.now, req, a)
		}
	}))
}

// Aligned windows follow each other without gaps, and one of them begins at the
// offset.
func TestAlignedContainsNow(t *testing.T) { rapid.Check(t, alignedWindowContainsNow) }

func alignedWindowContainsNow(t *rapid.T) {
	now := anySize(0, algorithm.MaxTime).Draw(t, "now")
	length := anySize(1, 366*day).Draw(t, "length")
	offset := rapid.Int64Range(1-length, length-1).Draw(t, "offset")
	w := algorithm.Aligned(now, length, offset)
	if w.Length != length || now < w.End-length || now >= w.End || (w.End-offset)%length != 0 {
		t.Fatalf("Aligned(%d, %d, %d) = %+v", now, length, offset, w)
	}
}

// NewRate rejects a rate only if Interval does, or if a whole burst refills too slowly.
func TestNewRateRejectsSlowRefill(t *testing.T) { rapid.Check(t, rateFillsInTime) }

func rateFillsInTime(t *rapid.T) {
	count := anySize(1, math.MaxInt64).Draw(t, "count")
	period := anySize(1, 366*day).Draw(t, "period")
	burst := anySize(1, math.MaxInt64).Draw(t, "burst")
	interval, even := algorithm.Interval(count, period, burst)
	fill := new(big.Int).Mul(big.NewInt(burst), big.NewInt(interval))
	inTime := fill.Cmp(big.NewInt(algorithm.MaxRefill)) <= 0
	overdraft := rapid.Int64Range(0, burst).Draw(t, "overdraft")
	if rapid.Bool().Draw(t, "the overdraft is larger") {
		burst, overdraft = overdraft, burst
	}
	r, ok := algorithm.NewRate(count, period, burst, overdraft, 1)
	if ok != (even && inTime) || ok && (r.Interval != interval || r.Burst != burst || r.Overdraft != overdraft || r.Tick != 1) {
		t.Fatalf("NewRate(%d, %d, %d, %d, 1) = %+v, %v; the interval is %d, and even: %v",
			count, period, burst, overdraft, r, ok, interval, even)
	}
}

// A bucket has as many units as whole intervals fit into what is left of its capacity.
func TestRateBalanceCountsWholeIntervals(t *testing.T) { rapid.Check(t, balanceCountsWholeIntervals) }

func balanceCountsWholeIntervals(t *rapid.T) {
	period := anySize(1, 366*day).Draw(t, "period")
	count := anySize(1, 1_000_000_000).Draw(t, "count")
	burst := anySize(1, math.MaxInt64).Draw(t, "burst")
	r, ok := algorithm.NewRate(count, period, burst, 0, 1)
	if !ok {
		t.Skip("not a valid rate")
	}
	units := rapid.Int64Range(0, burst).Draw(t, "units")
	for _, debt := range []int64{units * r.Interval, units*r.Interval + 1, units*r.Interval - 1} {
		debt = min(max(debt, 0), r.Capacity())
		if got, want := r.Balance(debt).Remaining, (r.Capacity()-debt)/r.Interval; got != want {
			t.Fatalf("%+v owes %d: %d units are left, want %d", r, debt, got, want)
		}
	}
}

func TestRoundUpAndDownGoToNextTick(t *testing.T) { rapid.Check(t, roundingGoesToTheNextTick) }

func roundingGoesToTheNextTick(t *rapid.T) {
	tick := rapid.OneOf(rapid.SampledFrom([]int64{1, millisecond}), anySize(1, hour)).Draw(t, "tick")
	d := anySize(0, algorithm.MaxTime).Draw(t, "duration")
	up, down := algorithm.RoundUp(d, tick), algorithm.RoundDown(d, tick)
	if up%tick != 0 || up < d || up-tick >= d || down%tick != 0 || down > d || down+tick <= d {
		t.Fatalf("%d in ticks of %d: RoundUp gives %d, RoundDown %d", d, tick, up, down)
	}
}

// The latest reset of all, on the last tick before MaxTime, is an instant that fits 63 bits.
func TestDecideLatestResetFits(t *testing.T) {
	for _, k := range []kind{tokenBucket, leakyBucket} {
		for _, tick := range []int64{1, millisecond} {
			const interval = 1000
			most := int64(algorithm.MaxRefill / interval)
			l := limit{kind: k, tick: tick, rate: algorithm.Rate{Interval: interval, Burst: most, Overdraft: most, Tick: tick}}
			tr := &trace{key: newKey(l), limit: l, now: algorithm.MaxTime / tick * tick}
			a := tr.decide(algorithm.Request{Cost: math.MaxInt64, Overdraw: true})
			if a.Granted != 2*most || tr.now+a.ResetAfter <= tr.now {
				t.Errorf("%v at %d: got %+v, want %d units and a later reset", l, tr.now, a, 2*most)
			}
		}
	}
}
