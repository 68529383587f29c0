package engine

import (
	"context"

	"github.com/penstock-io/penstock"
)

// decideTogether decides all or nothing. Quota rules are taken first, since only
// all of them together refuse; then the enforced ones, as one; then what follows
// from the outcome.
func (ev *evaluation) decideTogether(ctx context.Context) (over bool, err error) {
	if err := ev.takeQuotas(ctx); err != nil {
		return false, err
	}
	if over = ev.outOfQuota(); !over {
		if over, err = ev.takeEnforced(ctx); err != nil {
			return false, err
		}
	}
	return over, ev.settle(ctx, over)
}

// takeQuotas takes what is under quota rules, each by itself.
func (ev *evaluation) takeQuotas(ctx context.Context) error {
	for i := range ev.limited {
		if m := &ev.limited[i]; m.rule.Quota && !m.rule.Shadow && m.cost > 0 {
			ev.ask(i, m.cost)
		}
	}
	if err := ev.takeEach(ctx); err != nil {
		return err
	}
	ev.decided()
	return nil
}

// outOfQuota reports whether there are quota rules, and all of them refuse.
func (ev *evaluation) outOfQuota() bool {
	over := false
	for i := range ev.limited {
		if m := &ev.limited[i]; m.rule.Quota {
			if over = m.over(); !over {
				return false
			}
		}
	}
	return over
}

// over reports whether a member is over its limit, and that matters.
func (m *limitedDescriptor) over() bool { return m.refused && !m.rule.Shadow }

// takeEnforced takes what is under rules that each can refuse, as one.
func (ev *evaluation) takeEnforced(ctx context.Context) (refused bool, err error) {
	for i := range ev.limited {
		if m := &ev.limited[i]; !m.rule.Quota && !m.rule.Shadow && m.cost > 0 {
			ev.ask(i, m.cost)
		}
	}
	switch len(ev.requests) {
	case 0:
		return false, nil
	case 1:
		ev.decisions[0], err = ev.engine.store.Take(ctx, ev.requests[0])
	default:
		err = penstock.TakeAll(ctx, ev.engine.store, ev.requests, ev.decisions)
	}
	if err != nil {
		ev.forget()
		return false, err
	}
	refused = !allAllowed(ev.decisions)
	ev.decided()
	return refused, nil
}

// settle does what follows from the outcome. If the request passes, shadow rules
// are taken, and what is to be looked at or given back is. If it is refused, the
// rest is looked at, and what quota rules took is given back.
func (ev *evaluation) settle(ctx context.Context, over bool) error {
	for i := range ev.limited {
		m := &ev.limited[i]
		granted := ev.result.Statuses[m.index].Decision.Granted
		switch {
		case over && granted > 0:
			ev.ask(i, -granted)
			ctx = context.WithoutCancel(ctx) // for it is to be given back even to a caller who has gone
		case over && !m.decided:
			ev.ask(i, 0)
		case !m.decided:
			ev.ask(i, m.cost)
		}
	}
	if err := ev.takeEach(ctx); err != nil {
		return err
	}
	if over {
		ev.looked()
	} else {
		ev.decided()
	}
	return nil
}

// undo gives back what was taken, because the request will not be decided. What
// cannot be given back stays charged, which admits too little rather than too
// much.
func (ev *evaluation) undo(ctx context.Context) {
	for i := range ev.limited {
		if granted := ev.result.Statuses[ev.limited[i].index].Decision.Granted; granted > 0 {
			ev.ask(i, -granted)
		}
	}
	_ = ev.takeEach(context.WithoutCancel(ctx))
	ev.forget()
}
