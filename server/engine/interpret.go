package engine

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/hitlimit"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// addsHits reports whether the store decides the descriptor under a hits limit.
func (d *limitedDescriptor) addsHits() bool { return hitlimit.Is(&d.template.Limit) }

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
	if hitlimit.Is(&r.Limit) && dec.Limit > 0 { // or else it was not decided, because of an error
		bound := hitlimit.Bound{Most: d.maxHits, KeepFree: d.keepFree}
		d.sum = bound.Compare(r, dec, ev.engine.options.OnFailure)
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
