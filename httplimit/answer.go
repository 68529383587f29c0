package httplimit

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/penstock-io/penstock"
)

// An Answer is one limit's decision about a request.
type Answer struct {
	// Policy is the limit's name in header fields and problems. Default: the
	// limit's name, or else "default".
	Policy string

	// Limit is the limit that decided. Required.
	Limit penstock.Limit

	// Decision is its decision. Required.
	Decision penstock.Decision

	// Cost is the number of units that were requested, for the problem of a
	// request that can never pass. Optional.
	Cost int64

	// KeepFree is the number of units that had to remain, for the same problem. Optional.
	KeepFree int64
}

// isKnown reports whether the decision has the numbers of its key. Beside a denial of a [penstock.DenyCache] those of
// other limits are unknown.
func (a *Answer) isKnown() bool {
	return !a.Decision.Allowed || a.Decision.Source != penstock.SourceDenyCache
}

// neverPasses reports whether the request was denied and can never pass, so that
// Retry-After is absent.
func (a *Answer) neverPasses() bool {
	return !a.Decision.Allowed && a.Decision.RetryAfter == penstock.Never
}

// neverDetail explains why a request can never pass. The cost fits if several
// requests for the key, which are granted together, cost too much only in total.
func (a *Answer) neverDetail() string {
	if a.Decision.Source == penstock.SourceOverride {
		return "the key is banned"
	}
	if most := a.Decision.Limit; a.KeepFree > 0 && a.Cost <= most && a.Cost > most-a.KeepFree {
		return fmt.Sprintf("costs %d and keeps %d free, and the limit never grants more than %d", a.Cost, a.KeepFree, most)
	}
	if a.Cost <= a.Decision.Limit {
		return fmt.Sprintf("costs more in total than %d, and the limit never grants more", a.Decision.Limit)
	}
	return fmt.Sprintf("costs %d, and the limit never grants more than %d", a.Cost, a.Decision.Limit)
}

// RetryAfterSeconds returns RetryAfter of a denial in whole seconds, rounded up.
// It returns false if the request was allowed, or can never pass.
func RetryAfterSeconds(d penstock.Decision) (int64, bool) {
	if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter == penstock.Never {
		return 0, false
	}
	return seconds(d.RetryAfter), true
}

// policy returns the limit's name in header fields.
func (a *Answer) policy() string {
	switch {
	case a.Policy != "":
		return a.Policy
	case a.Limit.Name != "":
		return a.Limit.Name
	}
	return "default"
}

// wholeSeconds returns the limit's period in seconds, and false if it is no whole
// number.
func (a *Answer) wholeSeconds() (int64, bool) {
	period := a.Limit.Normal().Period
	return int64(period / time.Second), period > 0 && period%time.Second == 0
}

// effectiveWindow returns the time over which a client should spread what
// remains, and false if there is none to state.
//
// Remaining divided by it must not be far above the limit's rate: a client that
// spreads its requests evenly would otherwise be led into a flood by a large
// quota that ends soon.
func (a *Answer) effectiveWindow() (time.Duration, bool) {
	d := &a.Decision
	switch {
	case !d.Allowed:
		return d.RetryAfter, d.RetryAfter != penstock.Never
	case a.Limit.Count <= 0:
		return 0, false
	case a.Limit.ResetsAtOnce():
		return max(d.ResetAfter, a.timeFor(d.Remaining)), true
	case d.Remaining > 0:
		return a.timeFor(d.Remaining), true
	}
	return a.untilNext(), true
}

// untilNext returns how long until a unit is available again. Buckets refill
// evenly, so it follows from ResetAfter; elsewhere it is the average time of one
// unit.
func (a *Answer) untilNext() time.Duration {
	one, reset := a.timeFor(1), a.Decision.ResetAfter
	if a.Limit.IsBucket() {
		return max(0, reset-times(one, a.Decision.Limit-1))
	}
	return min(one, reset)
}

// timeFor returns how long so many units take at the limit's rate.
func (a *Answer) timeFor(units int64) time.Duration {
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

// seconds returns whole seconds, rounded up: a client that waits a little longer
// passes, one that waits a little less does not.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// tightest returns the answer that represents all which match, as [penstock.Tightest] chooses it, or
// nil if none does. It passes indexes, so that answers stay on the stack.
func tightest(answers []Answer, matches func(i int) bool) (at *Answer) {
	for i := range answers {
		if matches(i) && (at == nil || answers[i].Decision.TighterThan(at.Decision)) {
			at = &answers[i]
		}
	}
	return at
}
