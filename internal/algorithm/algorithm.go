// Package algorithm holds the six algorithms as pure arithmetic: given a limit, a
// key's state, the time and a request, each decides and returns the new state. It
// uses no clock, lock, socket or logger; a store supplies those, and runs one
// decision at a time for each key.
//
// All times are nanoseconds on a clock that the store owns, from 0 to [MaxTime].
// A store whose clock moves in larger steps passes its tick: every duration in a
// result is rounded up to whole ticks, so that it is long enough, and one tick
// less is not.
//
// Three rules hold for every algorithm. A denial charges nothing; it may only
// apply one of the two corrections that follow. State from the future, after the
// clock stepped back, is moved to the present: a step back never frees a unit,
// and never locks a key out for longer than one refill plus the reach of
// reservations. State that owes more than the limit holds, after the limit was
// lowered, is clamped to the limit.
//
// The bounds in the essays are over forward time, the sum of the clock's forward
// movements, which is the clock's own time unless it steps back. They count
// charges minus refunds, at the moment of acting.
package algorithm

import "math"

const (
	// Reset, as a cost, refunds everything.
	Reset = math.MinInt64

	// Never is the RetryAfter of a cost that can never fit.
	Never = math.MaxInt64

	// MaxTime is the latest instant that a store may pass. Together with
	// [MaxRefill] it keeps every sum of times within 63 bits.
	MaxTime = 1<<62 - 1

	// MaxRefill is the longest time that a whole burst may take to refill.
	MaxRefill = 1 << 61
)

// A Request is what a caller asks of one key.
type Request struct {
	Cost     int64 // above 0 takes, 0 peeks, below 0 refunds
	AtMost   bool  // take what is left when the cost does not fit
	MaxDelay int64 // buckets: how far ahead a grant may lie
}

// An Outcome is the decision on a Request.
type Outcome struct {
	Allowed    bool
	Granted    int64 // units charged; negative when refunded
	RetryAfter int64 // until the same Request passes; Never if it cannot
	Delay      int64 // until the caller may act on the grant
}

// A Balance is the state of a key as callers see it.
type Balance struct {
	Remaining  int64 // units that could be taken now
	ResetAfter int64 // until the key is full
}

// fit reduces the cost of an AtMost to what is free. If nothing is, it asks for
// one unit, so that the denial says when one will be available.
func (r Request) fit(free int64) int64 {
	if r.AtMost && r.Cost > free {
		return max(free, 1)
	}
	return r.Cost
}

// refund returns the outcome on a refund when so many units are used.
func (r Request) refund(used int64) Outcome {
	return Outcome{Allowed: true, Granted: -r.refundable(used)}
}

// refundable returns how many units are refunded when so many are used.
func (r Request) refundable(used int64) int64 {
	if r.Cost == Reset {
		return used
	}
	return min(-r.Cost, used)
}

// RoundUp returns the smallest multiple of tick that is not below d.
func RoundUp(d, tick int64) int64 {
	if tick == 1 {
		return d
	}
	if r := d % tick; r > 0 {
		return d + tick - r
	}
	return d
}

// RoundDown returns the largest multiple of tick that is not above d.
func RoundDown(d, tick int64) int64 {
	return d - d%tick
}
