package engine

import "context"

// decideAll is the default mode: the request takes from all limits or from none. Quota rules
// are taken first, because only all of them together deny; then the enforced rules, all or
// nothing; then settle does what follows from the outcome.
func (ev *evaluation) decideAll(ctx context.Context) (over bool, err error) {
	if err := ev.takeQuotas(ctx); err != nil {
		return false, err
	}
	if over = ev.quotaExhausted(); !over {
		if over, err = ev.takeEnforced(ctx); err != nil {
			return false, err
		}
	}
	return over, ev.settle(ctx, over)
}

// takeQuotas takes from the quota rules, each independently.
func (ev *evaluation) takeQuotas(ctx context.Context) error {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.rule.Quota && !d.rule.Shadow && d.cost > 0 {
			ev.queue(i, d.cost)
		}
	}
	return ev.takeEach(ctx)
}

// takeEnforced takes from the rules that can each deny the request, all or nothing.
func (ev *evaluation) takeEnforced(ctx context.Context) (denied bool, err error) {
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.rule.Quota && !d.rule.Shadow && d.cost > 0 {
			ev.queue(i, d.cost)
		}
	}
	if err := ev.callAll(ctx); err != nil {
		ev.clearQueue() // nothing was taken
		return false, err
	}
	denied = !allAllowed(ev.decisions)
	ev.record()
	return denied, nil
}

// settle completes the decision. If the request is allowed, it takes from shadow rules, and
// does the peeks and refunds of the request. If it is denied, it refunds what quota rules
// took, and peeks at the rest.
func (ev *evaluation) settle(ctx context.Context, over bool) error {
	if over {
		return ev.settleDenied(ctx)
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.decided {
			ev.queue(i, d.cost)
		}
	}
	return ev.takeEach(ctx)
}

func (ev *evaluation) settleDenied(ctx context.Context) error {
	for i := range ev.limited {
		d := &ev.limited[i]
		if granted := ev.granted(d); granted > 0 {
			ev.queue(i, -granted)
			ctx = context.WithoutCancel(ctx) // refund even if the caller has gone
		} else if !d.decided {
			ev.queue(i, 0)
		}
	}
	err := ev.callEach(ctx)
	ev.recordPeeks()
	return err
}
