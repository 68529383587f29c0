package engine

import "context"

// takeGates decides the descriptors that deny by what is left, and not by what they ask for.
// They come first, because their hits are charged whatever the rest of the request brings.
//
// The hits of a rule with charge: always report what has happened. They are charged in full,
// and the request is denied if nothing was left before: a peek comes before the charge, in the
// same call. A peek of Envoy's is a gate too: it asks whether a request may begin whose hits
// are reported when it ends, so it is denied at a key that owes.
func (ev *evaluation) takeGates(ctx context.Context) error {
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.decided || !ev.isGate(d) {
			continue
		}
		ev.queue(i, 0)
		if d.cost > 0 {
			ev.queue(i, d.cost)
			ev.requests[len(ev.requests)-1].Overdraw = true
		}
	}
	return ev.takeEach(ctx)
}

func (ev *evaluation) isGate(d *limitedDescriptor) bool {
	if d.rule.ChargeAlways {
		return d.cost >= 0
	}
	return d.denyInDebt && d.cost == 0 && !(ev.compat && d.isCounting())
}

// anyOver reports whether a descriptor denies the request by itself.
func (ev *evaluation) anyOver() bool {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.overLimit() && !d.quota {
			return true
		}
	}
	return false
}
