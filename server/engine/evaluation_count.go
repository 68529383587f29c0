package engine

import (
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// count updates the counters of the rules. A settlement counts only if the store failed:
// what it settles was counted when it was taken.
func (ev *evaluation) count(domain *rules.Domain, ds []Descriptor, err error) {
	if ev.under.settle && (err == nil || errors.Is(err, penstock.ErrUnknownID)) {
		return
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		granted := ev.granted(d)
		if err == nil && d.cost >= 0 && ev.engine.countHits {
			ev.countLookup(d)
			if d.cost > 0 {
				ev.countHits(ev.hitsOf(domain, d, ds[d.index].Entries), d)
			}
		}
		switch {
		case err != nil:
			d.state.counters.Errors.Add(1)
		case d.cost < 0:
			ev.countRelease(d)
		case d.cost == 0:
		case d.denied:
			ev.countDenied(d)
			ev.countHeldID(d)
			ev.countKey(d)
		case granted > 0:
			d.state.counters.countAllowed(granted)
			ev.countKey(d)
		}
	}
}

// countRelease counts a release of permits.
func (ev *evaluation) countRelease(d *limitedDescriptor) {
	if d.rule.ID == "" || !d.decided {
		return
	}
	permits := &d.state.counters.Permits
	if released := -ev.granted(d); released > 0 {
		permits.Released.Add(uint64(released))
		return
	}
	permits.NotHeld.Add(1)
}

// countDenied counts a denial, also towards the penalty of its rule. A key with an override
// of its own is not penalized: the ban would replace it.
func (ev *evaluation) countDenied(d *limitedDescriptor) {
	shadow := d.rule.Shadow || ev.engine.shadow
	d.state.counters.countDenied(d.cost, shadow)
	switch {
	case d.banned():
		d.state.counters.Banned.Add(1)
	case d.rule.Penalty != nil && d.keyOverride == nil && !shadow:
		ev.engine.overrides.CountDenial(d.rule.Name, ev.keyOf(d), d.rule.Penalty)
	}
}

// countHeldID counts a denial whose only reason is the ID: the permits that it asked for were
// free.
func (ev *evaluation) countHeldID(d *limitedDescriptor) {
	free := ev.result.Statuses[d.index].Decision.Remaining - d.template.KeepFree
	if d.newID && !d.banned() && free >= d.cost {
		d.state.counters.Permits.HeldIDs.Add(1)
	}
}

// countKey counts the key of a descriptor that was decided.
func (ev *evaluation) countKey(d *limitedDescriptor) {
	if ev.engine.topKeys == nil {
		return
	}
	outcome := outcomeOf(d.denied, d.rule.Shadow || ev.engine.shadow)
	remaining := ev.result.Statuses[d.index].Decision.Remaining
	if d.state.source == nil {
		ev.engine.topKeys.RecordLimit(&d.rule.Limit, ev.keyOf(d), outcome, d.cost, remaining)
	} else if sample, ok := ev.engine.topKeys.Sample(outcome); ok {
		ev.engine.topKeys.RecordSample(sample, d.state.source, ev.keyOf(d), d.cost, remaining)
	}
}
