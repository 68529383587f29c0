package judge

import (
	"context"

	"github.com/penstock-io/penstock"
)

// decideTogether decides all or nothing. Quota rules are taken first, since only
// all of them together refuse; then the enforced ones, as one; then what follows
// from the outcome.
func (h *hearing) decideTogether(ctx context.Context) (over bool, err error) {
	if err := h.takeQuotas(ctx); err != nil {
		return false, err
	}
	if over = h.outOfQuota(); !over {
		if over, err = h.takeEnforced(ctx); err != nil {
			return false, err
		}
	}
	return over, h.settle(ctx, over)
}

// takeQuotas takes what is under quota rules, each by itself.
func (h *hearing) takeQuotas(ctx context.Context) error {
	for i := range h.members {
		if m := &h.members[i]; m.rule.Quota && !m.rule.Shadow && m.cost > 0 {
			h.ask(i, m.cost)
		}
	}
	if err := h.takeEach(ctx); err != nil {
		return err
	}
	h.decided()
	return nil
}

// outOfQuota reports whether there are quota rules, and all of them refuse.
func (h *hearing) outOfQuota() bool {
	over := false
	for i := range h.members {
		if m := &h.members[i]; m.rule.Quota {
			if over = m.over(); !over {
				return false
			}
		}
	}
	return over
}

// over reports whether a member is over its limit, and that matters.
func (m *member) over() bool { return m.refused && !m.rule.Shadow }

// takeEnforced takes what is under rules that each can refuse, as one.
func (h *hearing) takeEnforced(ctx context.Context) (refused bool, err error) {
	for i := range h.members {
		if m := &h.members[i]; !m.rule.Quota && !m.rule.Shadow && m.cost > 0 {
			h.ask(i, m.cost)
		}
	}
	switch len(h.requests) {
	case 0:
		return false, nil
	case 1:
		h.decisions[0], err = h.judge.store.Take(ctx, h.requests[0])
	default:
		err = penstock.TakeAll(ctx, h.judge.store, h.requests, h.decisions)
	}
	if err != nil {
		h.forget()
		return false, err
	}
	refused = !allAllowed(h.decisions)
	h.decided()
	return refused, nil
}

// settle does what follows from the outcome. If the request passes, shadow rules
// are taken, and what is to be looked at or given back is. If it is refused, the
// rest is looked at, and what quota rules took is given back.
func (h *hearing) settle(ctx context.Context, over bool) error {
	for i := range h.members {
		m := &h.members[i]
		granted := h.verdict.Statuses[m.index].Decision.Granted
		switch {
		case over && granted > 0:
			h.ask(i, -granted)
			ctx = context.WithoutCancel(ctx) // for it is to be given back even to a caller who has gone
		case over && !m.decided:
			h.ask(i, 0)
		case !m.decided:
			h.ask(i, m.cost)
		}
	}
	if err := h.takeEach(ctx); err != nil {
		return err
	}
	if over {
		h.looked()
	} else {
		h.decided()
	}
	return nil
}

// undo gives back what was taken, because the request will not be decided. What
// cannot be given back stays charged, which admits too little rather than too
// much.
func (h *hearing) undo(ctx context.Context) {
	for i := range h.members {
		if granted := h.verdict.Statuses[h.members[i].index].Decision.Granted; granted > 0 {
			h.ask(i, -granted)
		}
	}
	_ = h.takeEach(context.WithoutCancel(ctx))
	h.forget()
}
