package algorithmtest

import (
	"math"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// An oracle is a slow and simple model of an algorithm. It knows one thing about a key,
// whether some units would fit at some instant, and finds the rest by search: Remaining
// is the most that would fit, and RetryAfter ends at the first tick at which the request
// would be allowed. It has no closed forms, and shares no code with the package.
//
// Its clock never steps back.
type oracle struct {
	ledger
	tick int64
}

// A ledger is the oracle's state of one key. Times never go back.
type ledger interface {
	// max is the most that the limit could ever grant at once.
	max() int64

	// fits reports whether n units, with so much delay at most, could be
	// granted at t without other requests until then.
	fits(t, n, maxDelay int64) bool

	// unused reports whether the key is full at t.
	unused(t int64) bool

	// delay is how long n units granted at t would have to wait.
	delay(t, n int64) int64

	charge(now, n int64)

	// room is how many units a request that overdraws could be charged at t.
	room(t int64) int64

	// refund refunds at most n units, the newest first, and returns how many.
	refund(now, n int64) int64

	// truncate drops what the limit cannot owe.
	truncate(now int64)

	// change replaces the limit.
	change(l limit)
}

func newOracle(l limit) *oracle { return &oracle{rows[l.kind].newLedger(l), l.tick} }

// A result is the whole result of a decision.
type result struct {
	algorithm.Outcome
	algorithm.Balance
}

func (o *oracle) decide(now int64, req algorithm.Request) result {
	o.truncate(now)
	v := algorithm.Outcome{Allowed: true}
	switch {
	case req.Cost > 0:
		v = o.take(now, req)
	case req.Cost < 0:
		v.Granted = -o.refund(now, magnitudeOf(req.Cost))
	default:
		v.Delay = o.peekDelay(now)
	}
	return result{v, algorithm.Balance{
		Remaining:  o.largest(now, o.max(), 0),
		ResetAfter: o.firstTick(now, o.unused),
	}}
}

func (o *oracle) take(now int64, req algorithm.Request) algorithm.Outcome {
	if req.Overdraw {
		granted := min(req.Cost, o.room(now))
		if granted > 0 {
			o.charge(now, granted)
		}
		return algorithm.Outcome{Allowed: true, Granted: granted}
	}
	if granted := o.grant(now, req); granted > 0 {
		v := algorithm.Outcome{Allowed: true, Granted: granted, Delay: o.delay(now, granted)}
		o.charge(now, granted)
		return v
	}
	passes := func(t int64) bool { return o.grant(t, req) > 0 }
	return algorithm.Outcome{RetryAfter: o.firstTick(now, passes)}
}

// peekDelay is the Delay of a peek: of a queue, the time until it is empty.
func (o *oracle) peekDelay(now int64) int64 {
	if _, queue := o.ledger.(*queueLedger); queue {
		return o.delay(now, 1)
	}
	return 0
}

// grant returns how many units a request would be granted at t.
func (o *oracle) grant(t int64, req algorithm.Request) int64 {
	switch {
	case o.admits(t, req.Cost, req):
		return req.Cost
	case req.AtMost:
		return last(0, min(req.Cost, o.max()), func(n int64) bool { return n == 0 || o.admits(t, n, req) })
	}
	return 0
}

// admits reports whether a request could be granted n units at t. If it keeps some free,
// they must be there too, and only a queue may delay it.
func (o *oracle) admits(t, n int64, req algorithm.Request) bool {
	_, queue := o.ledger.(*queueLedger)
	switch {
	case req.KeepFree == 0:
		return o.fits(t, n, req.MaxDelay)
	case n > o.max() || req.KeepFree > o.max()-n || !o.fits(t, n+req.KeepFree, 0):
		return false
	}
	return !queue || o.fits(t, n, req.MaxDelay)
}

// largest returns the most units, up to a limit, that would fit at t.
func (o *oracle) largest(t, limit, maxDelay int64) int64 {
	return last(0, limit, func(n int64) bool { return n == 0 || o.fits(t, n, maxDelay) })
}

// firstTick returns how many whole ticks after now a condition becomes true, in
// nanoseconds. It must stay true from then on.
func (o *oracle) firstTick(now int64, becomes func(t int64) bool) int64 {
	const farFuture = 1 << 62
	if becomes(now) {
		return 0
	}
	if !becomes(now + farFuture) {
		return algorithm.Never
	}
	notYet := func(ticks int64) bool { return !becomes(now + ticks*o.tick) }
	far := int64(1)
	for far < farFuture/o.tick && notYet(far) {
		far = min(2*far, farFuture/o.tick)
	}
	return (last(0, far, notYet) + 1) * o.tick
}

// last returns the last number from low to high for which ok holds. It must hold for low,
// and for no number above one for which it does not.
func last(low, high int64, ok func(int64) bool) int64 {
	for low < high {
		middle := high - (high-low)/2
		if ok(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// magnitudeOf returns -n, or the largest number where that does not exist.
func magnitudeOf(n int64) int64 {
	if n == math.MinInt64 {
		return math.MaxInt64
	}
	return -n
}
