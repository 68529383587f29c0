package engine

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// decideEach is the mode of compat: envoy: as in Envoy's own service, every descriptor is
// decided independently, and a denied request counts.
func (ev *evaluation) decideEach(ctx context.Context) (over bool, err error) {
	ev.decideBanned()
	ev.beginLookups()
	if err := ev.takeGates(ctx); err != nil {
		return false, err
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.decided && !ev.decideFromCache(d) {
			ev.queue(i, d.cost)
			ev.requests[len(ev.requests)-1].AtMost = d.cost > 0 && d.rule.ID == "" // a denied request holds no permit
		}
	}
	if err := ev.callEach(ctx); err != nil {
		ev.record() // some may have been taken, and must be refunded
		return false, err
	}
	for n := range ev.decisions {
		deny(&ev.decisions[n], &ev.requests[n])
	}
	ev.record()
	ev.cacheOver()
	return ev.anyOver() || ev.quotaExhausted(), nil
}

// deny turns a decision that granted less than the cost into a denial. It is about buckets and
// logs, which Envoy's service does not have: they cannot count beyond their limit, so a
// denied descriptor takes what is left. The decision may be about a share of the limit during
// an outage, so the rule's own limit counts.
func deny(d *penstock.Decision, r *penstock.Request) {
	if !r.AtMost || d.Granted >= r.Cost {
		return
	}
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > r.Limit.Capacity()-r.KeepFree {
		d.RetryAfter = penstock.Never
	}
}
