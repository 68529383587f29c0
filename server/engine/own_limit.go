package engine

import (
	"bytes"
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rules"
)

// This file is about descriptors that bring their own limit, which Envoy calls an override.
// (Overrides of keys by an operator are in key_override.go.) It decides that descriptor alone. Its
// hits are counted where those of the rule are, as in Envoy's service, so a caller that brings a
// limit only now and then does not get both allowances. Only a limit of another unit, or of a
// descriptor that no rule counts in the same way, is counted apart, as a request limit.

// useOwnLimit makes a rule of the limit that the descriptor itself has.
func (ev *evaluation) useOwnLimit(l *limitedDescriptor, t *ruleTable, domain *rules.Domain, d *Descriptor) error {
	l.rule = ev.result.ownRule(d.Own)
	l.state = &ev.engine.requestLimitState
	l.hasOwnLimit, l.count = true, l.rule.Limit.Count
	l.template = ev.newTemplate(penstock.Request{Limit: l.rule.Limit})
	if s := ev.ruleBelow(l, t, domain, d); s != nil {
		l.underRule, l.counter, *l.template = true, s.counter, s.template
		l.template.KeepFree = 0
		return l.rule.Limit.Validate()
	}
	if canCount(&l.rule.Limit) {
		l.template.Limit = countingLimit(l.rule.Limit)
	}
	ev.keys = appendOwnLimitKey(ev.keys[:l.key], domain.Name, d.Entries)
	return l.rule.Limit.Validate()
}

// newTemplate returns a template that belongs to the evaluation.
func (ev *evaluation) newTemplate(r penstock.Request) *penstock.Request {
	ev.templates = append(ev.templates, r)
	return &ev.templates[len(ev.templates)-1]
}

// ruleBelow returns the state of the rule that counts the descriptor's hits, or nil. Then the
// key is that of the rule.
func (ev *evaluation) ruleBelow(l *limitedDescriptor, t *ruleTable, domain *rules.Domain, d *Descriptor) *ruleState {
	var rule *rules.Rule
	rule, ev.keys = domain.Match(d.Entries, ev.keys)
	if rule == nil || rule.Unlimited || !countsOwnLimits(rule) || rule.Limit.Period != d.Own.Limit.Period || d.Own.Limit.Align != penstock.AlignClock {
		return nil
	}
	end := len(ev.keys)
	ev.keys = rules.AppendKey(ev.keys, d.Entries)
	own := bytes.Equal(ev.keys[l.key:end], ev.keys[end:]) // a pattern's shared counter is not its own
	ev.keys = ev.keys[:end]
	if !own {
		return nil
	}
	l.rule.ChargeAlways = rule.ChargeAlways
	return &t.states[rule.Index]
}

// appendOwnLimitKey appends the key of a descriptor with its own limit. It contains the
// domain, so that domains do not share counters.
func appendOwnLimitKey(buf []byte, domain string, entries []rules.Entry) []byte {
	buf = rules.AppendKey(buf, []rules.Entry{{Key: domain}})
	buf = append(buf, '|')
	return rules.AppendKey(buf, entries)
}

// An ownAdmission is the admission of a descriptor with its own limit.
type ownAdmission struct {
	index     int // among the descriptors
	admission requestlimits.Admission
}

// admitOwnLimits makes room for what descriptors with their own limit leave behind.
func (ev *evaluation) admitOwnLimits(ds []Descriptor) error {
	for i := range ev.limited {
		l := &ev.limited[i]
		if !l.hasOwnLimit || l.underRule {
			continue
		}
		r := *l.template
		r.Key, r.Cost, r.ID, r.Hold = ev.keyOf(l), l.cost, l.id, l.hold
		a, err := ev.engine.requestLimits.Admit(&r, len(ev.limited) > 1, func() bool { return ds[l.index].Own.MayRefund })
		if err != nil {
			ev.settleAdmissions(nil)
			return fmt.Errorf("descriptor %d: %w", l.index, err)
		}
		ev.ownAdmissions = append(ev.ownAdmissions, ownAdmission{l.index, a})
	}
	return nil
}

// settleAdmissions settles the admissions by the decisions, or by the error.
func (ev *evaluation) settleAdmissions(err error) {
	for i := range ev.ownAdmissions {
		o := &ev.ownAdmissions[i]
		d := penstock.Decision{}
		if o.index < len(ev.result.Statuses) {
			d.Granted = ev.result.Statuses[o.index].Decision.Granted
		}
		o.admission.Settle(&d, err)
	}
}

// takeOwnLimits takes from counters by the limits that descriptors bring, where requests are
// decided all or nothing. A counter has no room to check for the limit of a single request, so
// the hits are added first, and refunded if they are too many. That never admits too much,
// but other requests may see them for a moment.
func (ev *evaluation) takeOwnLimits(ctx context.Context) error {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.hasOwnLimit && !d.decided && d.cost > 0 && (d.underRule || d.isCounting()) {
			ev.queueOwnLimit(i)
		}
	}
	if len(ev.queued) == 0 {
		return nil
	}
	if err := ev.takeEach(ctx); err != nil {
		return err
	}
	ev.queueRefunds(func(d *limitedDescriptor) bool { return d.hasOwnLimit && d.denied && !d.rule.ChargeAlways })
	if len(ev.queued) == 0 {
		return nil
	}
	err := ev.callEach(context.WithoutCancel(ctx))
	ev.recordDenials()
	return err
}

// recordDenials stores what is left after the refunds of descriptors that are denied.
func (ev *evaluation) recordDenials() {
	for n, i := range ev.queued {
		d := &ev.limited[i]
		before := ev.result.Statuses[d.index].Decision
		ev.interpret(d, n)
		dec := ev.decisions[n]
		dec.Allowed, dec.Granted, dec.RetryAfter = false, 0, before.RetryAfter
		ev.setStatus(d, &dec)
	}
	ev.clearQueue()
}

// queueOwnLimit queues the cost of a descriptor with its own limit. Under a rule, a counting
// peek after it tells what the limit is compared with.
func (ev *evaluation) queueOwnLimit(i int) {
	d := &ev.limited[i]
	ev.queue(i, d.cost)
	r := &ev.requests[len(ev.requests)-1]
	if d.isCounting() {
		r.AtMost = d.cost > 0
		return
	}
	r.Overdraw = d.cost > 0
	if d.cost != 0 {
		ev.queue(i, 0)
	}
}

// queueRefunds queues the refunds of what some descriptors have taken. The peeks come after all of
// them, so that one that fails keeps no refund from being made.
func (ev *evaluation) queueRefunds(isReturned func(*limitedDescriptor) bool) {
	for i := range ev.limited {
		if d := &ev.limited[i]; isReturned(d) && ev.granted(d) > 0 {
			ev.queue(i, -ev.granted(d))
		}
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; isReturned(d) && d.underRule && !d.isCounting() {
			ev.queue(i, 0)
		}
	}
}
