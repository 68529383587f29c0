package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// This file is about requests by rules under an ID: a repeated one is charged once. A caller may also
// take an estimate, and settle it under the same ID once the cost is known.
//
// The ID stands on every limit of the request, so that a repeated take is charged once, as
// a whole. Only rules with settle are settled: a limit on requests beside one on tokens
// stays as it was charged.

// setID sets the ID of the store's requests.
func (f *found) setID() error {
	if f.terms.ID != "" && len(f.limited) > 0 && f.limited[0].trial != nil { // candidates alone refuse no request
		clear(f.limited)
		f.limited = f.limited[:0]
	}
	if f.terms.ID == "" || len(f.limited) == 0 {
		return nil
	}
	first := f.limited[0].rule.Name
	switch {
	case f.compat:
		return fmt.Errorf("rule %s: %w: its hits are counted as Envoy's service counts them", first, ErrNoSettle)
	case f.terms.Settle && !f.hasSettle:
		return fmt.Errorf("rule %s: %w: it needs settle: true", first, ErrNoSettle)
	}
	// By all limits: quota rules are taken before the rules that deny. Would they remember the ID longer,
	// then a repetition that is denied would refund what the first request was granted.
	longest := time.Duration(0)
	for i := range f.limited {
		if d := &f.limited[i]; d.trial == nil {
			longest = max(longest, remembered(d))
		}
	}
	for i := range f.limited {
		d := &f.limited[i]
		switch {
		case d.rule.ChargeAlways:
			return fmt.Errorf("rule %s: %w: charge: always charges what was used already", d.rule.Name, ErrNoSettle)
		case d.cost < 0:
			return &penstock.FieldError{Field: "Cost", Problem: "must not be negative under an ID: settle it to 0", Kind: penstock.ErrBadCost}
		case !d.template.Limit.HasPermits(): // an entry names its permit
			d.id, d.hold = f.terms.ID, d.rule.Hold
			if longest > remembered(d) {
				d.hold = longest
			}
		}
	}
	return nil
}

// remembered returns how long the limit of a descriptor remembers an ID by itself.
func remembered(d *limitedDescriptor) time.Duration {
	return max(d.rule.Hold, requestlimits.IDLifetime(&d.template.Limit))
}

// Check returns the error of a request that the rules cannot decide, or settle, whatever the
// store holds: a permit without an ID, or an ID to settle under rules without settle. It is for APIs that
// decide several requests in turn, so that one that is invalid charges none of the others.
func (e *Engine) Check(ctx context.Context, domain string, terms Terms, ds []Descriptor) error {
	var r Result
	ev, err := e.open(domain, terms, ds, &r)
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
func (f *found) checkShapes() error {
	for i := range f.limited {
		d := &f.limited[i]
		r := *d.template
		r.Key, r.Cost, r.ID, r.Hold, r.Settle = f.keyOf(d), d.cost, d.id, d.hold, d.way.settle
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
		if d := &ev.limited[i]; d.trial == nil && (d.phase == phaseEnforced || d.phase == phaseSettle) {
			ev.ask(d)
		}
	}
	if len(ev.requests) < 2 {
		return nil
	}
	ev.makeRoom()
	return penstock.ValidateBatch(ev.requests, ev.decisions, true)
}
