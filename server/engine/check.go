package engine

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
)

// Check returns the error of a request that the rules cannot decide, or settle, whatever the
// store holds: a permit without an ID, or an ID under rules without settle. It is for APIs that
// decide several requests in turn, so that one that is invalid charges none of the others. An ID
// of "" is none.
func (e *Engine) Check(ctx context.Context, domain, id string, settle bool, ds []Descriptor) error {
	t, err := e.validate(domain, ds)
	if err != nil {
		return err
	}
	d := t.set.Domain(domain)
	if d == nil {
		return nil
	}
	var r Result
	r.reset(len(ds))
	ev := evaluations.Get().(*evaluation)
	defer ev.release()
	ev.engine, ev.result, ev.under, ev.compat = e, &r, under{id, settle}, d.CompatEnvoy || e.compatEnvoy
	if err := ev.find(ctx, t, d, ds); err != nil {
		return err
	}
	if err := ev.checkShapes(); err != nil {
		return err
	}
	return ev.checkTogether()
}

// checkShapes returns an error if the store would reject the request of a descriptor.
func (ev *evaluation) checkShapes() error {
	for i := range ev.limited {
		l := &ev.limited[i]
		r := *l.template
		r.Key, r.Cost, r.ID, r.Hold = ev.keyOf(l), l.cost, l.id, l.hold
		r.Settle = ev.under.settle && l.rule.Settle
		if err := r.ValidateShape(); err != nil {
			return fmt.Errorf("descriptor %d: %w", l.index, err)
		}
	}
	return nil
}

// checkTogether returns an error if the store would reject what is taken or settled all or nothing:
// an ID on two descriptors of one key, or a permit of another ID than that of the request.
func (ev *evaluation) checkTogether() error {
	if ev.compat {
		return nil
	}
	defer ev.clearQueue()
	for i := range ev.limited {
		switch d := &ev.limited[i]; {
		case ev.under.settle && d.rule.Settle && ev.denies(d):
			ev.queueSettlement(i)
		case !ev.under.settle && d.cost > 0 && !d.quota && !d.rule.Shadow && !d.rule.ChargeAlways:
			ev.queue(i, d.cost)
		}
	}
	if len(ev.requests) < 2 {
		return nil
	}
	return penstock.ValidateAll(ev.requests, ev.decisions)
}
