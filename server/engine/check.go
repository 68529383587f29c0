package engine

import (
	"context"
	"fmt"
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
	if err := ev.find(ctx, t, d, ds, 0); err != nil {
		return err
	}
	return ev.checkShapes()
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
