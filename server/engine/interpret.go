package engine

import (
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// Envoy's service adds the hits of every request to a counter, and compares the sum with a
// limit afterwards. Two things follow that a store does not do by itself: hits beyond the
// limit stay recorded, and requests with different limits share one counter.
//
// A hits limit has the identity of a window's own limit, and a count that no window reaches. So
// the store adds whatever it is asked to add, and its decision tells the sum. The engine compares
// it.

// unreachable is the count of hits limits. Redis counts windows to fourteen digits.
const unreachable = 1 << 46

// hitsLimit returns the hits limit of a fixed window.
func hitsLimit(l penstock.Limit) penstock.Limit {
	l.Count, l.Debt = unreachable, 0
	return l
}

// hasHitsLimit reports whether a limit has a hits limit.
func hasHitsLimit(l *penstock.Limit) bool { return l.Algorithm == penstock.FixedWindow }

// isHitsLimit reports whether a limit is a hits limit.
func isHitsLimit(l *penstock.Limit) bool { return l.Count == unreachable && hasHitsLimit(l) }

// storedLimit returns the limit under which the store decides the requests of a rule. Under
// compat that is the hits limit. Otherwise it is the rule's own, but what requests with
// their own limit and reports recorded beyond the count of a window is kept, however much it is.
func storedLimit(r *rules.Rule, compat bool) penstock.Limit {
	l := r.Limit
	switch {
	case !hasHitsLimit(&l):
	case compat && r.Global == nil: // regions hold parts of what a limit has, and not of a sum
		return hitsLimit(l)
	case l.Debt == 0 && (r.ChargeAlways || addsOwnHits(r)):
		l.Debt = unreachable
	}
	return l
}

// addsOwnHits reports whether the hits of descriptors with their own limit, if that is of the
// same unit, are added to those of a rule: it has windows of Envoy's.
func addsOwnHits(r *rules.Rule) bool {
	l := &r.Limit
	isMonth := l.Align == penstock.AlignMonth && l.Zone == "UTC"
	return r.Unit != rules.UnknownUnit && hasHitsLimit(l) && (l.Align == penstock.AlignClock || isMonth) && l.Offset == 0
}

// addsHits reports whether the store decides the descriptor under a hits limit.
func (d *limitedDescriptor) addsHits() bool { return isHitsLimit(&d.template.Limit) }

// peeksAtHits reports whether the descriptor is peeked at under a hits limit.
func (d *limitedDescriptor) peeksAtHits() bool {
	return d.hits != nil && (d.underRule || d.denyInDebt || d.rule.ChargeAlways)
}

// interpret turns a decision of the store into one about the descriptor.
func (ev *evaluation) interpret(d *limitedDescriptor, n int) {
	r, dec := &ev.requests[n], &ev.decisions[n]
	if ev.compat && r.AtMost && dec.Granted < r.Cost {
		deny(dec, r)
	}
	if isHitsLimit(&r.Limit) {
		d.compareHits(r, dec, ev.engine.options.OnFailure)
	}
	switch {
	case d.rule.ChargeAlways && r.Cost == 0:
		dec.Allowed = dec.Allowed && dec.Remaining > 0
	case d.rule.ChargeAlways && r.Overdraw: // after the peek
		before := &d.status.Decision
		dec.Allowed, dec.Limit, dec.Remaining = !d.denied, before.Limit, max(before.Remaining-dec.Granted, 0)
	case d.underRule && r.Cost == 0: // after the charge, if there was one
		dec.Granted = d.granted()
	case d.phase == phaseAtMost && r.Cost < 0: // what is left of its grant
		dec.Granted += d.granted()
	case d.denyInDebt && r.Cost == 0:
		dec.Allowed = dec.Allowed && !owes(&r.Limit, dec)
	}
	if !dec.Allowed && dec.RetryAfter == 0 {
		dec.RetryAfter = untilUnit(&d.rule.Limit, dec)
	}
}

// deny turns a decision that granted less than the cost into a denial. It is about buckets and
// logs, which Envoy's service does not have: they cannot count beyond their limit, so a
// denied descriptor takes what is left. The decision may be about a share of the limit during
// an outage, so the rule's own limit counts.
func deny(d *penstock.Decision, r *penstock.Request) {
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > r.Limit.Capacity()-r.KeepFree {
		d.RetryAfter = penstock.Never
	}
}

// compareHits compares a sum of hits with the limit of the descriptor.
func (d *limitedDescriptor) compareHits(r *penstock.Request, dec *penstock.Decision, onFailure failurePolicy) {
	if dec.Limit == 0 {
		return // not decided, because of an error
	}
	most, mode := d.maxHits, penstock.FailLocal
	if dec.Source == penstock.SourceFallback {
		most, mode = d.shareOfHits(dec, onFailure)
	}
	used := dec.Limit - dec.Remaining
	d.sum = used
	dec.Limit, dec.Remaining = most, max(most-used, 0)
	if r.Cost < 0 {
		return
	}
	fits := dec.Allowed && used <= most-d.kept(most)
	if dec.Source == penstock.SourceFallback {
		fits = mode == penstock.FailOpen || fits && mode == penstock.FailLocal
	}
	if dec.Allowed = fits; !fits {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
		if r.Cost > d.maxHits-d.kept(d.maxHits) {
			dec.RetryAfter = penstock.Never
		}
	}
}

// kept returns how many of so many hits the descriptor keeps free: those of its rule or of the caller or, of a
// share of the rule's, the same share of them, rounded up.
func (d *limitedDescriptor) kept(most int64) int64 {
	if most == d.maxHits || d.keepFree == 0 {
		return d.keepFree
	}
	return int64(math.Ceil(float64(d.keepFree) * float64(most) / float64(d.maxHits)))
}

// A failurePolicy says how a store decides during an outage. It may be nil.
type failurePolicy func(penstock.Limit) (penstock.FailureMode, float64)

// shareOfHits returns what a sum is compared with if a fallback decided by a share of the hits
// limit: the same share of the descriptor's limit.
func (d *limitedDescriptor) shareOfHits(dec *penstock.Decision, onFailure failurePolicy) (most int64, mode penstock.FailureMode) {
	if onFailure != nil {
		mode, _ = onFailure(d.template.Limit)
	}
	share := float64(dec.Limit) / unreachable
	scaled := int64(math.Floor(float64(d.maxHits)*share + 1e-3))
	return min(max(scaled, 1), d.maxHits), mode
}

// owes reports whether a peek shows that a bucket is overdrawn. An empty bucket refills in
// the time of its whole burst.
func owes(l *penstock.Limit, dec *penstock.Decision) bool {
	n := l.Normal()
	if !n.IsBucket() || n.Count == 0 {
		return false
	}
	refill := float64(requestlimits.RefillTime(&n, n.Burst))
	return dec.Remaining == 0 && float64(dec.ResetAfter) > refill*(1+maxRateError)+float64(time.Millisecond)
}

// maxRateError is by how much the rate of a bucket may differ from that of its limit.
const maxRateError = 0.001

// untilUnit returns when one unit is left again, at the latest.
func untilUnit(l *penstock.Limit, dec *penstock.Decision) time.Duration {
	n := l.Normal()
	after := dec.ResetAfter
	if n.IsBucket() {
		after -= requestlimits.RefillTime(&n, n.Burst-1)
	}
	return max(after, time.Nanosecond)
}
