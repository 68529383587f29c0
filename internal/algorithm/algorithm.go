// Package algorithm implements the algorithms as pure arithmetic: given a
// limit, a key's state, the time and a request, each decides and returns the new
// state. It uses no clock, lock, socket or logger. The store supplies those, and
// makes one decision at a time for each key.
//
// All times are nanoseconds on the store's clock, from 0 to [MaxTime]. A store
// whose clock moves in larger steps passes its tick. Every duration in a result
// is then rounded up to whole ticks: it is long enough, and one tick less is not.
//
// Three rules hold for every algorithm:
//
//   - A denial charges nothing. It may only apply the correction of the next rule.
//   - State from the future, after the clock stepped back, is moved to the present. A
//     step back never frees a unit, and never locks a key out for longer than one
//     refill plus the reach of reservations.
//   - State may owe more than the limit holds: a request overdrew it, the limit was
//     lowered, or processes use the same name with different counts at the same time.
//     Nothing is free then, and what is owed stays owed: a smaller count must not free
//     units for requests with a larger one.
//
// The bounds stated for each algorithm are over forward time: the sum of the
// clock's forward movements, which is the clock's own time unless it steps back.
// They count charges minus refunds, at the moment of acting.
package algorithm

import "math"

const (
	// Reset, as a cost, refunds everything.
	Reset = math.MinInt64

	// Never is the RetryAfter of a cost that can never fit.
	Never = math.MaxInt64

	// MaxTime is the latest instant that a store may pass. Together with
	// [MaxRefill] it keeps every sum of times within 63 bits, also when it is
	// rounded up to a tick of at most a second.
	MaxTime = 1<<62 - 1<<30

	// MaxRefill is the longest time that a whole burst may take to refill.
	MaxRefill = 1 << 61
)

// A Request takes, refunds or peeks at units of one key.
type Request struct {
	Cost     int64  // above 0 takes, 0 peeks, below 0 refunds
	AtMost   bool   // take what is left if the cost does not fit
	Overdraw bool   // charge the cost even if it does not fit, as far as Overdraft allows
	MaxDelay int64  // of buckets: how far ahead units may be granted
	Prior    int64  // of a leaky bucket: units of the cost that are queued before the rest, which MaxDelay is about
	KeepFree int64  // of takes without Overdraw: units that must remain afterwards
	ID       uint64 // of Concurrent: under which units are held
	NewID    bool   // of Concurrent: deny a take under an ID that holds units, rather than renew them
}

// An Outcome is the decision on a [Request].
type Outcome struct {
	Allowed    bool
	Granted    int64 // units charged; negative if refunded
	RetryAfter int64 // until the same Request is allowed; Never if it cannot be
	Delay      int64 // until the caller may act on the grant
}

// A Balance is the state of a key as callers see it.
type Balance struct {
	Remaining  int64 // units that could be taken now
	ResetAfter int64 // until the key is full
}

// IsTake reports whether the request takes its cost if that is left, and asks for nothing
// else. A MaxDelay does not matter to windows.
func (r *Request) IsTake() bool { return r.Cost > 0 && !r.AtMost && !r.Overdraw && r.KeepFree == 0 }

// fit returns the cost, reduced to what is free if AtMost is set. If nothing is
// free it is one unit, so that the denial has the RetryAfter of one unit. What is to
// be kept free is not.
func (r *Request) fit(free int64) int64 {
	if r.AtMost && r.Cost > free {
		return max(free, 1)
	}
	return r.Cost
}

// take decides a take from a limit that counts units, of which some are free. If missing is above
// 0, so many more must become free before it fits, and RetryAfter is not known yet.
func (r *Request) take(count, free int64) (o Outcome, missing int64) {
	free -= min(r.KeepFree, count)
	cost := r.fit(free)
	switch {
	case cost <= free:
		return Outcome{Allowed: true, Granted: cost}, 0
	case r.NeverFits(count):
		return Outcome{RetryAfter: Never}, 0
	}
	return o, cost - free
}

// NeverFits reports whether the request is denied in every state of a key with that
// capacity.
func (r Request) NeverFits(capacity int64) bool {
	least := r.Cost
	if r.AtMost {
		least = min(least, 1)
	}
	return least > 0 && least > capacity-r.KeepFree && !r.Overdraw
}

// overdraw returns the outcome of a request that charges its cost as far as there is
// room, and is never denied.
func (r *Request) overdraw(room int64) Outcome {
	return Outcome{Allowed: true, Granted: min(r.Cost, max(room, 0))}
}

// refund returns the outcome of a refund to a key with used units.
func (r *Request) refund(used int64) Outcome {
	return Outcome{Allowed: true, Granted: -r.refundable(used)}
}

// refundable returns how many of the used units are refunded.
func (r *Request) refundable(used int64) int64 {
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
