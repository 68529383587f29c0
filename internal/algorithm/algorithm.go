// Package algorithm holds the six ways of counting as pure arithmetic: given a
// limit, a key's state, the time and what is asked, each decides and says what
// the state becomes. It never sees a clock, a lock, a socket or a logger; a
// store supplies those, and runs one decision at a time for each key.
//
// All times are nanoseconds on a clock that the store owns, from 0 to
// [MaxTime]. A store whose clock moves in larger steps says so by its tick:
// every duration in an answer is rounded up to whole ticks, so that a caller
// who waits that long finds what was promised, and not one tick earlier.
//
// Three things hold for every algorithm. A denial charges nothing; all that it
// may change is one of the corrections that follow. A state that could only have
// come from the future, because the clock has stepped back since, is moved to the
// present: a step back never frees a unit, and never locks a key out for longer
// than one refill and the reach of reservations. A state that owes more than the
// limit holds, because the limit was lowered since, owes what the limit holds.
//
// The bounds in the essays are over forward time, the sum of the clock's forward
// movements, which is the clock's own time unless it steps back; and they count
// what is charged less what is given back, at the moment of acting on it.
package algorithm

import "math"

const (
	// Forget, as a cost, gives everything back.
	Forget = math.MinInt64

	// Never is the RetryAfter of a cost that can never fit.
	Never = math.MaxInt64

	// MaxTime is the latest instant that a store may pass. Together with
	// [MaxRefill] it keeps every sum of times within 63 bits.
	MaxTime = 1<<62 - 1

	// MaxRefill is the longest time that a whole burst may take to refill.
	MaxRefill = 1 << 61
)

// An Ask is what a caller wants of one key.
type Ask struct {
	Cost     int64 // more than 0 takes, 0 looks, less than 0 gives back
	AtMost   bool  // take what is left when the cost does not fit
	MaxDelay int64 // buckets: how long from now a grant may lie
}

// A Verdict is what becomes of an Ask.
type Verdict struct {
	Allowed    bool
	Granted    int64 // units charged; negative when given back
	RetryAfter int64 // until the same Ask passes; Never if it cannot
	Delay      int64 // until the caller may act on the grant
}

// A Standing is how a key stands.
type Standing struct {
	Remaining  int64 // units that could be taken now
	ResetAfter int64 // until the key is as good as new
}

// fit cuts the cost of an AtMost to what is free. When nothing is, it asks for
// one unit, so that the denial says when there will be something to take.
func (a Ask) fit(free int64) int64 {
	if a.AtMost && a.Cost > free {
		return max(free, 1)
	}
	return a.Cost
}

// givesBack returns the verdict on an Ask that gives back, when so many units
// are used.
func (a Ask) givesBack(used int64) Verdict {
	return Verdict{Allowed: true, Granted: -a.back(used)}
}

// back returns how many units an Ask gives back when so many are used.
func (a Ask) back(used int64) int64 {
	if a.Cost == Forget {
		return used
	}
	return min(-a.Cost, used)
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
