package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
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
		f.table.carry(ctx, before, true, key, l.rule, s)
	}
	if entry == nil || l.rule.Unlimited && entry.Kind != overrides.Banned || !fits(l.rule, entry.Action) {
		return
	}
	changed := f.table.change(l.rule, s, entry.Action)
	switch entry.Kind {
	case overrides.Unlimited:
		l.state = nil
	case overrides.Limited:
		f.table.carry(ctx, entry, false, key, l.rule, changed.state)
		l.setState(changed.state)
	case overrides.Banned:
		l.state, l.template = s, &s.template
	}
	l.rule, l.override = changed.rule, entry
}

// ruleOfKey returns a rule and its state as an override of the key changes them, for an operator.
// What the key has used under earlier limits is carried over first, as by a request: the next
// one would otherwise charge again what a refund or reset did not find.
func (t *ruleTable) ruleOfKey(ctx context.Context, r *rules.Rule, key string, cost int64) (*rules.Rule, *ruleState, error) {
	state, done := &t.states[r.Index], true
	found, before := state.overrides.Peek(key)
	if before != nil {
		done = t.carry(ctx, before, true, key, r, state)
	}
	switch {
	case found == nil || !fits(r, found.Action):
	case found.Kind == overrides.Limited:
		changed := t.change(r, state, found.Action)
		done = t.carry(ctx, found, false, key, r, changed.state)
		r, state = changed.rule, changed.state
	case cost == penstock.Reset:
		done = t.resetEarlier(ctx, found, key, r) && done
	}
	if !done && cost < 0 {
		return nil, nil, fmt.Errorf("%w: it did not tell what the key has used under an earlier limit", penstock.ErrUnavailable)
	}
	return r, state, nil
}

// resetEarlier resets the key under the limits of earlier overrides. A ban or an exemption
// leaves the units there, until the key has a limit again.
func (t *ruleTable) resetEarlier(ctx context.Context, entry *overrides.Entry, key string, rule *rules.Rule) (done bool) {
	compat := t.isCompat(rule)
	own := storedLimit(rule, compat).Identity()
	for _, l := range earlierLimits(rule, entry.EarlierLimits(false), compat) {
		if l.Identity() == own {
			continue // the caller resets it
		}
		d, err := t.engine.calls.Take(ctx, penstock.Request{Key: key, Limit: l, Cost: penstock.Reset})
		if err != nil || d.Source == penstock.SourceFallback {
			return false
		}
	}
	return true
}

// carry moves what the key has used under other limits to the limit that applies now, in
// units. It is done at the first request under the limit.
func (t *ruleTable) carry(ctx context.Context, entry *overrides.Entry, hasEnded bool, key string, rule *rules.Rule, to *ruleState) (done bool) {
	if !entry.MustCarry(hasEnded) {
		return true
	}
	ctx = context.WithoutCancel(ctx) // a caller that leaves must not lose the units
	from := earlierLimits(rule, entry.EarlierLimits(hasEnded), t.isCompat(rule))
	return entry.Carry(ctx, t.engine.calls, key, hasEnded, from, to.template.Limit)
}

// earlierLimits returns the limits that a key of a rule may have been charged under, as they are
// stored. Those that share a state see no more of it than they hold, so the largest comes first.
func earlierLimits(rule *rules.Rule, overridden []penstock.Limit, compat bool) []penstock.Limit {
	all := []penstock.Limit{storedLimit(rule, compat)}
	for _, l := range overridden {
		all = append(all, storedLimit(rule.WithLimit(overrides.LimitOf(rule.Limit, l)), compat))
	}
	slices.SortStableFunc(all, func(a, b penstock.Limit) int { return cmp.Compare(b.Capacity(), a.Capacity()) })
	return all
}

// keyOverrides are the overrides of keys of rules.
type keyOverrides struct {
	overrides *overrides.Set
	claim     func(...penstock.Limit) error // see requestlimits.Options
}

// Overrides returns the engine's overrides.
func (k *keyOverrides) Overrides() *overrides.Set { return k.overrides }

// fits reports whether an override can replace the limit of a rule. A rule that was reloaded may
// have become concurrent, or a rate, which its overrides are not: then they do not apply, or
// else a release of permits would refund a rate.
func fits(rule *rules.Rule, a *overrides.Action) bool {
	return a.Kind != overrides.Limited ||
		a.Limit.HasPermits() == rule.Limit.HasPermits()
}

// CheckOverride returns an error if an override cannot apply to keys of its rule.
func (k *keyOverrides) CheckOverride(rule *rules.Rule, o *overrides.Override) error {
	action, err := overrides.ParseAction(o.Limit)
	if err != nil {
		return err
	}
	switch {
	case action.Kind == overrides.Banned:
	case rule.Unlimited:
		return fmt.Errorf("rule %s is unlimited: its keys can only be banned", rule.Name)
	case action.Kind == overrides.Unlimited:
	case action.Limit.HasQueue() && !rule.Limit.HasQueue():
		return fmt.Errorf("a leaky-bucket delays requests, and rule %s does not: want another algorithm", rule.Name)
	case !fits(rule, action):
		return fmt.Errorf("rule %s is %s: a limit over time and a concurrent one cannot replace each other, because permits have IDs", rule.Name, rule.Limit.Algorithm)
	default:
		return k.claim(overrides.LimitOf(rule.Limit, action.Limit))
	}
	return nil
}

// LimitOfKey returns the limit that applies to a key of a rule, with the override that
// causes it, or nil. A ban leaves the rule's limit.
func (k *keyOverrides) LimitOfKey(rule *rules.Rule, key string) (penstock.Limit, *overrides.Entry) {
	found, _ := k.overrides.Index(rule.CountedBy).Peek(key)
	switch {
	case found != nil && !fits(rule, found.Action):
		return rule.Limit, nil
	case found != nil && found.Kind == overrides.Limited && !rule.Unlimited:
		return overrides.LimitOf(rule.Limit, found.Limit), found
	}
	return rule.Limit, found
}
