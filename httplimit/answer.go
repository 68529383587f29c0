package httplimit

import (
	"math/bits"
	"time"

	"github.com/penstock-io/penstock"
)

// An Answer is one limit's part in the decision about a request.
type Answer struct {
	// Policy is what clients know the limit by. Default: the limit's name, or
	// else "default".
	Policy string

	// Limit is what the request was decided by. Required.
	Limit penstock.Limit

	// Decision is what was decided. Required.
	Decision penstock.Decision
}

// RetryAfterSeconds returns after how many seconds a denied request is worth
// repeating: rounded up, so never before it would pass. It returns false if the
// request was allowed, or if it will never pass.
func RetryAfterSeconds(d penstock.Decision) (int64, bool) {
	if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter == penstock.Never {
		return 0, false
	}
	return seconds(d.RetryAfter), true
}

// policy returns what clients know the limit by.
func (a *Answer) policy() string {
	switch {
	case a.Policy != "":
		return a.Policy
	case a.Limit.Name != "":
		return a.Limit.Name
	}
	return "default"
}

// wholeSeconds returns the limit's period, and false if that cannot be said in
// seconds.
func (a *Answer) wholeSeconds() (int64, bool) {
	period := a.Limit.Normal().Period
	return int64(period / time.Second), period > 0 && period%time.Second == 0
}

// effectiveWindow returns the time in which the client should use no more than
// what remains, and false if there is none to tell.
//
// What matters is that remaining divided by it is never far above the limit's
// rate: a client that trusts us and spreads its requests evenly must not be led
// into a flood, as it would be by a large quota that ends in a moment.
func (a *Answer) effectiveWindow() (time.Duration, bool) {
	d := &a.Decision
	switch {
	case !d.Allowed:
		return d.RetryAfter, d.RetryAfter != penstock.Never
	case a.Limit.Count <= 0:
		return 0, false
	case a.Limit.Algorithm == penstock.FixedWindow:
		return max(d.ResetAfter, a.lasts(d.Remaining)), true
	case d.Remaining > 0:
		return a.lasts(d.Remaining), true
	}
	return a.untilNext(), true
}

// untilNext returns how long it takes until something remains again. Buckets
// fill evenly, so it follows from when they will be full; elsewhere it is as
// long as one unit takes on average.
func (a *Answer) untilNext() time.Duration {
	one, reset := a.lasts(1), a.Decision.ResetAfter
	switch a.Limit.Algorithm {
	case penstock.TokenBucket, penstock.LeakyBucket:
		return max(0, reset-times(one, a.Decision.Limit-1))
	}
	return min(one, reset)
}

// lasts returns how long so many units last at the limit's rate.
func (a *Answer) lasts(units int64) time.Duration {
	count := uint64(a.Limit.Count)
	hi, lo := bits.Mul64(uint64(max(units, 0)), uint64(max(a.Limit.Normal().Period, 0)))
	if hi >= count {
		return penstock.Never
	}
	whole, rest := bits.Div64(hi, lo, count)
	if whole >= uint64(penstock.Never) {
		return penstock.Never
	}
	if rest > 0 {
		whole++
	}
	return time.Duration(whole)
}

func times(d time.Duration, n int64) time.Duration {
	hi, lo := bits.Mul64(uint64(max(d, 0)), uint64(max(n, 0)))
	if hi > 0 || lo > uint64(penstock.Never) {
		return penstock.Never
	}
	return time.Duration(lo)
}

// seconds returns whole seconds, rounded up: whoever waits a moment longer than
// needed is served, and whoever waits a moment less is not.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// tightest returns which of several answers speaks for all: of those that deny,
// the one that does so for longest; otherwise the one with the least remaining
// and, among equals, that takes longest to reset.
func tightest(answers []Answer) int {
	at := 0
	for i := range answers {
		if tighter(&answers[i].Decision, &answers[at].Decision) {
			at = i
		}
	}
	return at
}

func tighter(d, than *penstock.Decision) bool {
	switch {
	case d.Allowed != than.Allowed:
		return than.Allowed
	case !d.Allowed:
		return d.RetryAfter > than.RetryAfter
	case d.Remaining != than.Remaining:
		return d.Remaining < than.Remaining
	}
	return d.ResetAfter > than.ResetAfter
}
