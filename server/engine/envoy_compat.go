package engine

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// decideAlone decides as Envoy's own service does: every descriptor by itself,
// and a refused hit counts. In a window that is full it makes no difference by
// how much it was missed, so what is refused takes what is left.
func (ev *evaluation) decideAlone(ctx context.Context) (over bool, err error) {
	for i := range ev.limited {
		ev.ask(i, ev.limited[i].cost)
		ev.requests[i].AtMost = ev.limited[i].cost > 0
	}
	if err := ev.takeEach(ctx); err != nil {
		return false, err
	}
	for i := range ev.decisions {
		if ev.requests[i].AtMost && ev.decisions[i].Granted < ev.requests[i].Cost {
			refuse(&ev.decisions[i], &ev.requests[i])
		}
	}
	ev.decided()
	for i := range ev.limited {
		m := &ev.limited[i]
		over = over || m.over() && !m.rule.Quota
	}
	return over || ev.outOfQuota(), nil
}

// refuse makes a denial of a decision that granted less than the cost. In a
// fixed window the cost fits when the next one begins, unless the limit is below it.
// The decision may be about a share of the limit, which will not always be all there is.
func refuse(d *penstock.Decision, r *penstock.Request) {
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > maxAtOnce(r.Limit) {
		d.RetryAfter = penstock.Never
	}
}
