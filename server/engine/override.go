package engine

import (
	"bytes"
	"context"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// An override is a limit that a descriptor brings. It decides that descriptor alone. Its hits
// are counted where those of the rule are, as in Envoy's service, so a caller that brings one
// only now and then does not get both allowances. Only an override of another unit, or of a
// descriptor that no rule counts in the same way, is counted apart, as a request limit.

// useOverride makes a rule of the limit that the descriptor itself has.
func (ev *evaluation) useOverride(l *limitedDescriptor, t *ruleTable, domain *rules.Domain, d *Descriptor) error {
	l.rule = ev.result.overrideRule(d.Own)
	l.state = &ev.engine.requestLimitState
	l.override, l.count = true, l.rule.Limit.Count
	l.template = ev.newTemplate(penstock.Request{Limit: l.rule.Limit})
	if s := ev.ruleBelow(l, t, domain, d); s != nil {
		l.underRule, l.counter, *l.template = true, s.counter, s.template
		l.template.KeepFree = 0
		return l.rule.Limit.Validate()
	}
	if canCount(&l.rule.Limit) {
		l.template.Limit = countingLimit(l.rule.Limit)
	}
	ev.keys = appendOverrideKey(ev.keys[:l.key], domain.Name, d.Entries)
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
	if rule == nil || rule.Unlimited || !takesOverrides(rule) || rule.Limit.Period != d.Own.Limit.Period || d.Own.Limit.Align != penstock.AlignClock {
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

// appendOverrideKey appends the key of a descriptor with its own limit. It contains the
// domain, so that domains do not share counters.
func appendOverrideKey(buf []byte, domain string, entries []rules.Entry) []byte {
	buf = rules.AppendKey(buf, []rules.Entry{{Key: domain}})
	buf = append(buf, '|')
	return rules.AppendKey(buf, entries)
}

// takeOverrides takes from counters by the limits that descriptors bring, where requests are
// decided all or nothing. A counter has no room to check for the limit of a single request, so
// the hits are added first, and refunded if they are too many. That never admits too much,
// but other requests may see them for a moment.
func (ev *evaluation) takeOverrides(ctx context.Context) error {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.override && !d.decided && d.cost > 0 && (d.underRule || d.isCounting()) {
			ev.queueOverride(i)
		}
	}
	if len(ev.queued) == 0 {
		return nil
	}
	if err := ev.takeEach(ctx); err != nil {
		return err
	}
	ev.queueRefunds(func(d *limitedDescriptor) bool { return d.override && d.denied && !d.rule.ChargeAlways })
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

// queueOverride queues the cost of a descriptor with its own limit. Under a rule, a counting
// peek after it tells what the limit is compared with.
func (ev *evaluation) queueOverride(i int) {
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
