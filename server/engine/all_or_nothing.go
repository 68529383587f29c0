package engine

import "context"

// decideAll is the default mode: the request takes from all limits or from none. Gates are
// decided first, then descriptors with their own limit and quota rules, each independently:
// only all quota rules together deny. The enforced rules follow, all or nothing, and complete does
// what follows from the outcome.
func (ev *evaluation) decideAll(ctx context.Context) (over bool, err error) {
	ev.decideBanned()
	ev.decideCached()
	if over, err = ev.takeEarly(ctx); err != nil {
		return false, err
	}
	if !over {
		if over, err = ev.takeEnforced(ctx); err != nil {
			return false, err
		}
	}
	if err = ev.complete(ctx, over); err == nil && ev.engine.cacheDenials {
		ev.cacheOver()
	}
	return over, err
}

// takeEarly takes what is taken before the enforced rules.
func (ev *evaluation) takeEarly(ctx context.Context) (over bool, err error) {
	if err := ev.takeGates(ctx); err != nil {
		return false, err
	}
	if ev.anyOver() {
		return true, nil
	}
	if err := ev.takeOwnLimits(ctx); err != nil {
		return false, err
	}
	if ev.anyOver() {
		return true, nil
	}
	err = ev.takeQuotas(ctx)
	return ev.quotaExhausted(), err
}

// takeQuotas takes from the quota rules, each independently. What they take under an ID stays
// charged after an error, so a request that the store would reject afterwards takes nothing.
func (ev *evaluation) takeQuotas(ctx context.Context) error {
	if ev.under.id != "" {
		if err := ev.checkTogether(); err != nil {
			return err
		}
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; d.quota && !d.rule.Shadow && !d.decided && d.cost > 0 {
			ev.queue(i, d.cost)
		}
	}
	return ev.takeEach(ctx)
}

// takeEnforced takes from the rules that can each deny the request, all or nothing.
func (ev *evaluation) takeEnforced(ctx context.Context) (denied bool, err error) {
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.quota && !d.rule.Shadow && !d.decided && d.cost > 0 {
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

// complete does what follows from the outcome. If the request is allowed, it takes from shadow
// rules, and does the peeks and refunds of the request. If it is denied, it refunds what was taken under
// descriptors' own limits and by quota rules, releases permits, whose work has ended whatever the
// answer is, and peeks at the rest.
func (ev *evaluation) complete(ctx context.Context, over bool) error {
	if over {
		return ev.completeDenied(ctx)
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; d.decided {
			continue
		} else if d.hasOwnLimit {
			ev.queueOwnLimit(i)
		} else {
			ev.queue(i, d.cost)
		}
	}
	return ev.takeEach(ctx)
}

func (ev *evaluation) completeDenied(ctx context.Context) error {
	isReturned := func(d *limitedDescriptor) bool { return ev.granted(d) > 0 && !d.rule.ChargeAlways }
	for i := range ev.limited {
		if d := &ev.limited[i]; !isReturned(d) && d.releases() {
			ev.queue(i, d.cost)
		}
	}
	releases := len(ev.queued)
	ev.queueRefunds(isReturned)
	if len(ev.queued) > releases {
		ctx = context.WithoutCancel(ctx) // refund even if the caller has gone
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; !isReturned(d) && !d.releases() && !d.decided {
			ev.queue(i, 0)
		}
	}
	err := ev.callEach(ctx)
	ev.recordPeeks()
	return err
}
