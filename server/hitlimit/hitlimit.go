// Package hitlimit is the arithmetic of limits that add hits as Envoy's service does. That adds the
// hits of every request to a counter, and compares the sum with a limit afterwards. Two things
// follow that a store does not do by itself: hits beyond the limit stay recorded, and requests with
// different limits share one counter.
//
// A hits limit has the identity of a window's own limit, and a count that no window reaches. So
// the store adds whatever it is asked to add, and its decision tells the sum, which a [Bound] is
// compared with.
package hitlimit

import (
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
)

// unreachable is the count of hits limits. Redis counts windows to fourteen digits.
const unreachable = 1 << 46

// Of returns the hits limit of a fixed window.
func Of(l penstock.Limit) penstock.Limit {
	l.Count, l.Debt = unreachable, 0
	return l
}

// Has reports whether a limit has a hits limit.
func Has(l *penstock.Limit) bool { return l.Algorithm == penstock.FixedWindow }

// Is reports whether a limit is a hits limit.
func Is(l *penstock.Limit) bool { return l.Count == unreachable && Has(l) }

// Stored returns the limit under which the store decides the requests of a rule. Under
// compat that is the hits limit. Otherwise it is the rule's own, but what requests with
// their own limit and reports recorded beyond the count of a window is kept, however much it is.
func Stored(r *rules.Rule, compat bool) penstock.Limit {
	l := r.Limit
	switch {
	case !Has(&l):
	case compat && r.Global == nil: // regions hold parts of what a limit has, and not of a sum
		return Of(l)
	case l.Debt == 0 && (r.ChargeAlways || AddsOwn(r)):
		l.Debt = unreachable
	}
	return l
}

// AddsOwn reports whether the hits of descriptors with their own limit, if that is of the
// same unit, are added to those of a rule: it has windows of Envoy's.
func AddsOwn(r *rules.Rule) bool {
	l := &r.Limit
	isMonth := l.Align == penstock.AlignMonth && l.Zone == "UTC"
	return r.Unit != rules.UnknownUnit && Has(l) && (l.Align == penstock.AlignClock || isMonth) && l.Offset == 0
}

// A Bound is how many hits a key may have, and how many of them must remain.
type Bound struct{ Most, KeepFree int64 }

// A FailurePolicy says how a store decides during an outage. It may be nil.
type FailurePolicy func(penstock.Limit) (penstock.FailureMode, float64)

// Compare turns the decision of a store under a hits limit into one under the bound. It returns the
// sum of the hits.
func (b *Bound) Compare(r *penstock.Request, dec *penstock.Decision, onFailure FailurePolicy) (sum int64) {
	most, mode := b.Most, penstock.FailLocal
	if dec.Source == penstock.SourceFallback {
		most, mode = b.share(r, dec, onFailure)
	}
	sum = dec.Limit - dec.Remaining
	dec.Limit, dec.Remaining = most, max(most-sum, 0)
	if r.Cost < 0 {
		return sum
	}
	fits := dec.Allowed && sum <= most-b.kept(most)
	if dec.Source == penstock.SourceFallback {
		fits = mode == penstock.FailOpen || fits && mode == penstock.FailLocal
	}
	if dec.Allowed = fits; !fits {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
		if r.Cost > b.Most-b.KeepFree {
			dec.RetryAfter = penstock.Never
		}
	}
	return sum
}

// kept returns how many of so many hits must remain: of a share of the bound, the same share of
// those of the bound, rounded up.
func (b *Bound) kept(most int64) int64 {
	if most == b.Most || b.KeepFree == 0 {
		return b.KeepFree
	}
	return int64(math.Ceil(float64(b.KeepFree) * float64(most) / float64(b.Most)))
}

// share returns what a sum is compared with if a fallback decided by a share of the hits
// limit: the same share of the bound.
func (b *Bound) share(r *penstock.Request, dec *penstock.Decision, onFailure FailurePolicy) (most int64, mode penstock.FailureMode) {
	if onFailure != nil {
		mode, _ = onFailure(r.Limit)
	}
	share := float64(dec.Limit) / unreachable
	scaled := int64(math.Floor(float64(b.Most)*share + 1e-3))
	return min(max(scaled, 1), b.Most), mode
}
