package overrides

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
)

// AppliesTo reports whether an override can replace what a rule does. A rule that was reloaded may have become
// concurrent, or a rate, which its overrides are not: then they do not apply, or else a release of permits would
// refund a rate. Keys of an unlimited rule can only be banned.
func (a *Action) AppliesTo(rule *rules.Rule) bool {
	return a.Kind == Banned || !rule.Unlimited && (a.Kind == Unlimited || a.Limit.HasPermits() == rule.Limit.HasPermits())
}

// CheckRule returns an error if the override cannot apply to keys of its rule. Claim is that of
// requestlimits.Options: it says whether the store can decide under a limit.
func (o *Override) CheckRule(rule *rules.Rule, claim func(...penstock.Limit) error) error {
	action, err := ParseAction(o.Limit)
	if err != nil {
		return err
	}
	switch {
	case action.Kind == Banned:
	case rule.Unlimited:
		return fmt.Errorf("rule %s is unlimited: its keys can only be banned", rule.Name)
	case action.Kind == Unlimited:
	case action.Limit.HasQueue() && !rule.Limit.HasQueue():
		return fmt.Errorf("a leaky-bucket delays requests, and rule %s does not: want another algorithm", rule.Name)
	case !action.AppliesTo(rule):
		return fmt.Errorf("rule %s is %s: a limit over time and a concurrent one cannot replace each other, because permits have IDs", rule.Name, rule.Limit.Algorithm)
	default:
		return claim(LimitOf(rule.Limit, action.Limit))
	}
	return nil
}

// Note returns what an operator may not expect of a limit for a key of a rule, or "": it has nothing of the rule's limit
// but what its text says, and the further limits of the rule stay.
func (o *Override) Note(rule *rules.Rule) string {
	action, err := ParseAction(o.Limit)
	if err != nil || action.Kind != Limited {
		return ""
	}
	var notes []string
	switch own, others := action.Limit.Normal(), rule.Limit.Normal(); {
	case own.Algorithm != others.Algorithm:
		notes = append(notes, fmt.Sprintf("this key has a %s, other keys of the rule a %s", own.Algorithm, others.Algorithm))
	case own.IsBucket() && own.Burst == own.Count && others.Burst != others.Count:
		notes = append(notes, fmt.Sprintf("this key has a burst of %d, other keys of the rule one of %d; burst= sets it", own.Burst, others.Burst))
	}
	for _, also := range rule.Limits()[1:] {
		notes = append(notes, fmt.Sprintf("also %s, which is unchanged: %s", also.Name, also.Limit.WithName("")))
	}
	return strings.Join(notes, "; ")
}

// LimitOfKey returns the limit that applies to a key of a rule, with the override that
// causes it, or nil. A ban leaves the rule's limit.
func (s *Set) LimitOfKey(rule *rules.Rule, key string) (penstock.Limit, *Entry) {
	found, _ := s.Index(rule.CountedBy).Peek(key)
	switch {
	case found == nil || !found.AppliesTo(rule):
		return rule.Limit, nil
	case found.Kind == Limited:
		return LimitOf(rule.Limit, found.Limit), found
	}
	return rule.Limit, found
}

// EarlierLimits returns the limits with a state of their own under which units may still be charged to the key of a
// rule, beside the limit that applies now: that of the rule, and of overrides of the key before this one. If this
// one has ended, its own is one of them. Each is wide enough to see all that was charged under any of them.
func (e *Entry) EarlierLimits(rule *rules.Rule, hasEnded bool, now penstock.Limit) (earlier []penstock.Limit) {
	all := []penstock.Limit{rule.Limit}
	for _, l := range e.from {
		all = append(all, LimitOf(rule.Limit, l))
	}
	if hasEnded && e.Kind == Limited {
		all = append(all, LimitOf(rule.Limit, e.Limit))
	}
	capacity, known := now.Capacity(), []penstock.Limit{now.Identity()}
	for _, l := range all {
		capacity = max(capacity, l.Capacity())
	}
	for _, l := range all {
		if l.Count > 0 && !l.HasPermits() && !now.HasPermits() && !slices.Contains(known, l.Identity()) { // permits are held, not used
			known, earlier = append(known, l.Identity()), append(earlier, widened(l, capacity))
		}
	}
	return earlier
}

// widened returns a limit with another capacity, if its rate is not too slow for that.
func widened(l penstock.Limit, capacity int64) penstock.Limit {
	w := l
	if w.IsBucket() {
		w.Burst = capacity
	} else {
		w.Count = capacity
	}
	if w.Validate() != nil {
		return l
	}
	return w
}
