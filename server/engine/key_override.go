package engine

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/hitlimit"
	"github.com/penstock-io/penstock/server/overrides"
)

// A changedRule is a rule under an override.
type changedRule struct {
	rule  *rules.Rule
	state *ruleState // nil if the override is no limit
}

// change returns a rule as an override changes it. Many overrides have the same action, and only
// the first request under it pays for the preparation.
func (t *ruleTable) change(rule *rules.Rule, s *ruleState, a *overrides.Action) *changedRule {
	if known, ok := s.changed.Load(a); ok {
		return known.(*changedRule)
	}
	c := &changedRule{rule: rule, state: s}
	switch a.Kind {
	case overrides.Unlimited:
		c.rule, c.state = rule.WithoutLimit(), nil
	case overrides.Limited:
		c.rule = rule.WithLimit(overrides.LimitOf(rule.Limit, a.Limit))
		c.state = t.newState(c.rule)
		c.state.stats, c.state.source, c.state.overrides, c.state.changed = s.stats, s.source, s.overrides, s.changed
	}
	known, _ := s.changed.LoadOrStore(a, c)
	return known.(*changedRule)
}

// applyKeyOverride lets an override of the key replace the limit of its rule. It runs before
// a long key is shortened, so that no key escapes a range by its length.
func (f *found) applyKeyOverride(ctx context.Context, l *limitedDescriptor, s *ruleState) {
	key := viewOf(f.keys[l.key:l.end])
	entry, before := s.overrides.Find(key)
	if before != nil && !l.rule.Unlimited {
		l.beside, _ = f.table.carry(ctx, before, true, key, l.rule, s)
		f.hasBeside = f.hasBeside || l.beside != nil
	}
	if entry == nil || !entry.AppliesTo(l.rule) {
		return
	}
	changed := f.table.change(l.rule, s, entry.Action)
	l.beside = nil
	switch entry.Kind {
	case overrides.Unlimited:
		l.state = nil
	case overrides.Limited:
		l.beside, _ = f.table.carry(ctx, entry, false, key, l.rule, changed.state)
		f.hasBeside = f.hasBeside || l.beside != nil
		l.setState(changed.state)
	case overrides.Banned:
		l.state, l.template = s, &s.template
	}
	l.rule, l.override = changed.rule, entry
}

// stateOfKey returns the state of a rule as an override of the key changes it, for an operator.
// What the key has used under earlier limits is carried over first, as by a request: the next
// one would otherwise charge again what a refund or reset did not find.
func (t *ruleTable) stateOfKey(ctx context.Context, r *rules.Rule, key string, cost int64) (*ruleState, error) {
	state, done := &t.states[r.Index], true
	var beside []penstock.Limit
	found, before := state.overrides.Peek(key)
	if before != nil {
		beside, done = t.carry(ctx, before, true, key, r, state)
	}
	switch {
	case found == nil || !found.AppliesTo(r):
	case found.Kind == overrides.Limited:
		state = t.change(r, state, found.Action).state
		beside, done = t.carry(ctx, found, false, key, r, state)
	case cost == penstock.Reset: // a ban or an exemption leaves the units, until the key has a limit again
		beside = found.EarlierLimits(r, false, r.Limit)
	}
	if done = done && (cost >= 0 || overrides.Refund(ctx, t.engine.calls, key, t.stored(r, beside), cost)); !done && cost < 0 {
		return nil, fmt.Errorf("%w: it did not tell what the key has used under an earlier limit", penstock.ErrUnavailable)
	}
	return state, nil
}

// carry lets what the key has used under other limits count under the limit that applies now, in
// units. It is done at the first request under the limit. While the change is new, it returns the limits that
// other daemons may still decide by.
func (t *ruleTable) carry(ctx context.Context, entry *overrides.Entry, hasEnded bool, key string, rule *rules.Rule, to *ruleState) (beside []penstock.Limit, done bool) {
	if !entry.MustCarry(hasEnded) {
		return nil, true
	}
	ctx = context.WithoutCancel(ctx) // a caller that leaves must not lose the units
	now, isNew := to.template.Limit, entry.IsNew(hasEnded)
	now.Count = to.maxHits // not that of a hits limit
	from := entry.EarlierLimits(rule, hasEnded, now)
	done = entry.Carry(ctx, t.engine.calls, key, hasEnded, isNew, t.stored(rule, from), to.template.Limit)
	if isNew {
		beside = from
	}
	return beside, done
}

// stored returns limits of keys of a rule as the store has them.
func (t *ruleTable) stored(rule *rules.Rule, limits []penstock.Limit) []penstock.Limit {
	all := make([]penstock.Limit, len(limits))
	for i, l := range limits {
		all[i] = hitlimit.Stored(rule.WithLimit(l), t.isCompat(rule))
	}
	return all
}

// addBeside adds descriptors whose keys have got another limit a moment ago under earlier limits as well, which
// daemons that do not know of it decide by.
func (ev *evaluation) addBeside() {
	if ev.terms.AtMost && ev.terms.ID != "" {
		return // what several limits grant under an ID cannot be made equal
	}
	for i := range ev.limited {
		for _, l := range ev.limited[i].beside {
			d := ev.limited[i]
			if l.Capacity() < d.rule.Limit.Capacity() { // it could not be widened, and would deny what the new one allows
				continue
			}
			s := ev.table.newState(d.rule.WithLimit(l))
			d.template, d.maxHits, d.hits = &s.template, s.maxHits, s.hits
			d.status, d.first = &Status{Rule: d.rule, Quota: d.quota}, i
			ev.limited, ev.hasFurther = append(ev.limited, d), true
		}
	}
}

// mergeBeside removes the descriptors that addBeside has added to the first n. What they denied was denied
// under the limit that applies.
func (ev *evaluation) mergeBeside(n int) {
	for _, d := range ev.limited[n:] {
		first := &ev.limited[d.first]
		d.status.Decision.RetryAfter = min(d.status.Decision.RetryAfter, overrides.NewFor) // then it decides no more
		if first.status.merge(d.status) {
			first.denied, first.spent = d.denied, d.spent
		}
	}
	clear(ev.limited[n:])
	ev.limited = ev.limited[:n]
}
