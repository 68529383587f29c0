package engine

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// decideEach is the mode of domains with compat: envoy: as in Envoy's own service, every
// descriptor is decided independently, and a denied request counts. In a full window it
// makes no difference how much was missing, so a denied descriptor takes what is left.
func (ev *evaluation) decideEach(ctx context.Context) (over bool, err error) {
	for i := range ev.limited {
		ev.queue(i, ev.limited[i].cost)
		ev.requests[i].AtMost = ev.limited[i].cost > 0
	}
	if err := ev.callEach(ctx); err != nil {
		ev.record() // some may have been taken, and must be refunded
		return false, err
	}
	for i := range ev.decisions {
		if ev.requests[i].AtMost && ev.decisions[i].Granted < ev.requests[i].Cost {
			deny(&ev.decisions[i], &ev.requests[i])
		}
	}
	ev.record()
	for i := range ev.limited {
		d := &ev.limited[i]
		over = over || d.overLimit() && !d.rule.Quota
	}
	return over || ev.quotaExhausted(), nil
}

// deny turns a decision that granted less than the cost into a denial. In a fixed window the
// cost fits when the next window begins, unless it exceeds the limit. The decision may be
// about a share of the limit during an outage, so the rule's own limit counts.
func deny(d *penstock.Decision, r *penstock.Request) {
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > maxAtOnce(r.Limit) {
		d.RetryAfter = penstock.Never
	}
}
