package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rules"
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
	return e.evaluate(ctx, domain, under{id: id}, ds, r)
}

// Settle makes what was charged under the ID equal to the costs of the descriptors, under
// their rules with settle. All rules that can deny the request are settled or none is: an ID
// that is not remembered is [penstock.ErrUnknownID]. A shadow or quota rule, which may have
// granted nothing to an allowed request, is settled if it remembers the ID. Other rules are
// only peeked at.
func (e *Engine) Settle(ctx context.Context, domain, id string, ds []Descriptor, r *Result) error {
	return e.evaluate(ctx, domain, under{id: id, settle: true}, ds, r)
}

// under says under which ID a request is decided, and whether that is a settlement.
type under struct {
	id     string // "" for none
	settle bool
}

// setID sets the ID of the store's requests.
func (ev *evaluation) setID(domain *rules.Domain) error {
	if ev.under.id == "" || len(ev.limited) == 0 {
		return nil
	}
	first := ev.limited[0].rule.Name
	switch {
	case domain.CompatEnvoy || ev.engine.compatEnvoy:
		return fmt.Errorf("rule %s: %w: its hits are counted as Envoy's service counts them", first, ErrNoSettle)
	case !ev.hasSettle:
		return fmt.Errorf("rule %s: %w: it needs settle: true", first, ErrNoSettle)
	}
	longest := ev.longestHold()
	for i := range ev.limited {
		d := &ev.limited[i]
		switch {
		case d.rule.ChargeAlways:
			return fmt.Errorf("rule %s: %w: charge: always charges what was used already", d.rule.Name, ErrNoSettle)
		case d.cost < 0:
			return &penstock.FieldError{Field: "Cost", Problem: "must not be negative under an ID: settle it to 0", Kind: penstock.ErrBadCost}
		case !d.template.Limit.HasPermits(): // an entry names its permit
			d.id, d.hold = ev.under.id, d.rule.Hold
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
func (ev *evaluation) longestHold() (hold time.Duration) {
	for i := range ev.limited {
		hold = max(hold, remembered(&ev.limited[i]))
	}
	return hold
}

// remembered returns how long the limit of a descriptor remembers an ID by itself.
func remembered(d *limitedDescriptor) time.Duration {
	return max(d.rule.Hold, requestlimits.IDLifetime(&d.template.Limit))
}

// settleID settles the descriptors of rules with settle, and peeks at the others.
func (ev *evaluation) settleID(ctx context.Context) error {
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.rule.Settle && ev.denies(d) {
			ev.queueSettlement(i)
		}
	}
	if err := ev.callAll(ctx); err != nil {
		ev.clearQueue()
		return err
	}
	ev.record()
	for i := range ev.limited {
		if d := &ev.limited[i]; d.rule.Settle && !d.decided {
			if err := ev.settleIfKnown(ctx, i); err != nil {
				return err
			}
		}
	}
	for i := range ev.limited {
		if !ev.limited[i].decided {
			ev.queue(i, 0)
		}
	}
	return ev.takeEach(ctx)
}

// denies reports whether a descriptor can deny the request by itself: if the request was
// allowed, the descriptor was granted.
func (ev *evaluation) denies(d *limitedDescriptor) bool {
	return !d.rule.Shadow && !d.quota && !ev.engine.shadow
}

// settleIfKnown settles a descriptor by itself, unless its ID is not remembered.
func (ev *evaluation) settleIfKnown(ctx context.Context, i int) error {
	ev.queueSettlement(i)
	err := ev.callEach(ctx)
	if err == nil {
		ev.record()
		return nil
	}
	ev.clearQueue()
	if errors.Is(err, penstock.ErrUnknownID) {
		return nil
	}
	return err
}

func (ev *evaluation) queueSettlement(i int) {
	d := &ev.limited[i]
	r := ev.enqueue(i, d.template, d.cost)
	r.ID, r.Hold, r.Settle = d.id, d.hold, true
}
