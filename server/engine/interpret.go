package engine

import "github.com/penstock-io/penstock/server/hitlimit"

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
		hitlimit.Deny(dec, r)
	}
	if hitlimit.Is(&r.Limit) && dec.Limit > 0 { // or else it was not decided, because of an error
		bound := hitlimit.Bound{Most: d.maxHits, KeepFree: d.keepFree}
		d.sum = bound.Compare(r, dec, ev.engine.options.OnFailure)
	}
	switch {
	case d.rule.ChargeAlways && r.Cost == 0:
		d.spent = dec.Remaining == 0
		dec.Allowed = dec.Allowed && !d.spent
	case d.rule.ChargeAlways && r.Overdraw: // after the peek
		before := &d.status.Decision
		dec.Allowed, dec.Limit, dec.Remaining = !d.denied, before.Limit, max(before.Remaining-dec.Granted, 0)
	case d.underRule && r.Cost == 0: // after the charge, if there was one
		dec.Granted = d.granted()
	case d.phase == phaseAtMost && r.Cost < 0: // what is left of its grant
		dec.Granted += d.granted()
	case d.denyInDebt && r.Cost == 0:
		dec.Allowed = dec.Allowed && !hitlimit.Owes(&r.Limit, dec)
	}
	if !dec.Allowed && dec.RetryAfter == 0 {
		dec.RetryAfter = hitlimit.UntilUnit(&d.rule.Limit, dec)
	}
}
