package judge

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
)

// decideAlone decides as Envoy's own service does: every descriptor by itself,
// and a refused hit counts. In a window that is full it makes no difference by
// how much it was missed, so what is refused takes what is left.
func (h *hearing) decideAlone(ctx context.Context) (over bool, err error) {
	for i := range h.members {
		h.ask(i, h.members[i].cost)
		h.requests[i].AtMost = h.members[i].cost > 0
	}
	if err := h.takeEach(ctx); err != nil {
		return false, err
	}
	for i := range h.decisions {
		if h.requests[i].AtMost && h.decisions[i].Granted < h.requests[i].Cost {
			refuse(&h.decisions[i], &h.requests[i])
		}
	}
	h.decided()
	for i := range h.members {
		m := &h.members[i]
		over = over || m.over() && !m.rule.Quota
	}
	return over || h.outOfQuota(), nil
}

// refuse makes a denial of a decision that granted less than the cost. In a
// fixed window the cost fits when the next one begins, unless the limit is below it.
// The decision may be about a share of the limit, which will not always be all there is.
func refuse(d *penstock.Decision, r *penstock.Request) {
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > mostOf(r.Limit) {
		d.RetryAfter = penstock.Never
	}
}
