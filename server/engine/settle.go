package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// This file is about requests by rules under an ID. The caller takes an estimate, and
// settles it under the same ID once the cost is known.
//
// The ID stands on every limit of the request, so that a repeated take is charged once, as
// a whole. Only rules with settle are settled: a limit on requests beside one on tokens
// stays as it was charged.

// DecideWithID is [Engine.Decide] under an ID: a repeated request is charged once. Units that
// were taken stay charged after an error, because a repetition is granted the same. If rules
// apply and none of them has settle, the error is [ErrNoSettle].
func (e *Engine) DecideWithID(ctx context.Context, domain, id string, ds []Descriptor, r *Result) error {
	return e.evaluate(ctx, domain, requestID{text: id}, ds, r)
}

// Settle makes what was charged under the ID equal to the costs of the descriptors, under
// their rules with settle. All rules that can deny the request are settled or none is: an ID
// that is not remembered is [penstock.ErrUnknownID]. A shadow or quota rule, which may have
// granted nothing to an allowed request, is settled if it remembers the ID. Other rules are
// only peeked at.
func (e *Engine) Settle(ctx context.Context, domain, id string, ds []Descriptor, r *Result) error {
	return e.evaluate(ctx, domain, requestID{text: id, settle: true}, ds, r)
}

// A requestID is the ID under which a request is decided, or settled.
type requestID struct {
	text   string // "" for none
	settle bool
}

// setID sets the ID of the store's requests.
func (f *found) setID() error {
	if f.id.text == "" || len(f.limited) == 0 {
		return nil
	}
	first := f.limited[0].rule.Name
	switch {
	case f.compat:
		return fmt.Errorf("rule %s: %w: its hits are counted as Envoy's service counts them", first, ErrNoSettle)
	case !f.hasSettle:
		return fmt.Errorf("rule %s: %w: it needs settle: true", first, ErrNoSettle)
	}
	longest := f.longestHold()
	for i := range f.limited {
		d := &f.limited[i]
		switch {
		case d.rule.ChargeAlways:
			return fmt.Errorf("rule %s: %w: charge: always charges what was used already", d.rule.Name, ErrNoSettle)
		case d.cost < 0:
			return &penstock.FieldError{Field: "Cost", Problem: "must not be negative under an ID: settle it to 0", Kind: penstock.ErrBadCost}
		case !d.template.Limit.HasPermits(): // an entry names its permit
			d.id, d.hold = f.id.text, d.rule.Hold
			if longest > remembered(d) {
				d.hold = longest
			}
		}
	}
	return nil
}

// longestHold returns how long the ID is remembered, by all limits: quota rules are taken before
// the rules that deny. Would they remember it longer, then a repetition that is denied would
// refund what the first request was granted.
func (f *found) longestHold() (hold time.Duration) {
	for i := range f.limited {
		hold = max(hold, remembered(&f.limited[i]))
	}
	return hold
}

// remembered returns how long the limit of a descriptor remembers an ID by itself.
func remembered(d *limitedDescriptor) time.Duration {
	return max(d.rule.Hold, requestlimits.IDLifetime(&d.template.Limit))
}

// Check returns the error of a request that the rules cannot decide, or settle, whatever the
// store holds: a permit without an ID, or an ID under rules without settle. It is for APIs that
// decide several requests in turn, so that one that is invalid charges none of the others. An ID
// of "" is none.
func (e *Engine) Check(ctx context.Context, domain, id string, settle bool, ds []Descriptor) error {
	var r Result
	ev, err := e.open(domain, requestID{id, settle}, ds, &r)
	if err != nil {
		return err
	}
	defer ev.release()
	if ev.domain == nil {
		return nil
	}
	if err := ev.find(ctx); err != nil {
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
		d := &ev.limited[i]
		r := *d.template
		r.Key, r.Cost, r.ID, r.Hold, r.Settle = ev.keyOf(d), d.cost, d.id, d.hold, d.way.settle
		if err := r.Validate(); err != nil {
			return fmt.Errorf("descriptor %d: %w", d.index, err)
		}
	}
	return nil
}

// checkTogether returns an error if the store would reject what is taken or settled all or nothing:
// an ID on two descriptors of one key, or a permit of another ID than that of the request.
func (ev *evaluation) checkTogether() error {
	defer ev.queue.clear()
	for i := range ev.limited {
		if d := &ev.limited[i]; d.phase == phaseEnforced || d.phase == phaseSettle {
			ev.ask(d)
		}
	}
	if len(ev.requests) < 2 {
		return nil
	}
	return penstock.ValidateBatch(ev.requests, ev.decisions, true)
}
