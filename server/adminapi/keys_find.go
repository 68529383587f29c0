package adminapi

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// A keyTarget is a key of a store, and one limit that it is counted under.
type keyTarget struct {
	rule  *rules.Rule // nil for a limit that the request names
	limit penstock.Limit
	key   string

	override *overrides.Entry // that applies to the key, or nil
}

// A notFoundError means that no rule has the name, or applies to the entries.
type notFoundError struct{ what, nearest string }

func (e *notFoundError) Error() string {
	if e.nearest == "" {
		return e.what + "; /rules lists all rules"
	}
	return e.what + ": did you mean " + e.nearest + "?"
}

// find returns the key that a request means under each limit of its rule, and under the overrides that
// apply to it.
func (s *Server) find(k *keyRequest) ([]keyTarget, error) {
	t, err := s.findTarget(k)
	if err != nil {
		return nil, err
	}
	return s.underAllLimits(t), nil
}

// underAllLimits returns a key of a rule under each limit of the rule. A key that is exempt from the rule is
// under none of the further ones.
func (s *Server) underAllLimits(t keyTarget) []keyTarget {
	if t.rule == nil {
		return []keyTarget{t}
	}
	var all []keyTarget
	for _, rule := range t.rule.Limits() {
		under := s.underOverride(newTarget(rule, t.key))
		all = append(all, under)
		if rule == t.rule && under.isExempt() {
			break
		}
	}
	return all
}

func (t *keyTarget) isExempt() bool {
	return t.override != nil && t.override.Kind == overrides.Unlimited
}

// keepFree returns how many units of its limit must remain after a take.
func (t *keyTarget) keepFree() int64 {
	if t.rule == nil || t.rule.KeepFree == 0 {
		return 0
	}
	return t.rule.WithLimit(t.limit).KeepFree
}

// underOverride returns the target with the limit that an override of its whole key gives it. The
// store knows long keys by their hash.
func (s *Server) underOverride(t keyTarget) keyTarget {
	if t.rule != nil && !t.rule.Unlimited {
		t.limit, t.override = s.engine.Overrides().LimitOfKey(t.rule, t.key)
		t.key = string(rules.ShortenKey([]byte(t.key), 0))
	}
	return t
}

func (s *Server) findTarget(k *keyRequest) (keyTarget, error) {
	if k.has["limit"] {
		limit, err := penstock.ParseLimit(k.limit)
		return keyTarget{limit: requestlimits.Of(limit), key: k.key}, err
	}
	set := s.engine.Rules()
	switch {
	case set == nil:
		return keyTarget{}, engine.ErrNoRules
	case k.has["rule"]:
		return findByRule(set, k)
	case k.domain == "":
		return keyTarget{}, engine.ErrNoDomain
	}
	return findByEntries(set, k)
}

func findByRule(set *rules.Set, k *keyRequest) (keyTarget, error) {
	rule := set.Rule(k.rule)
	switch {
	case rule == nil:
		return keyTarget{}, noSuchRule(set, k.rule)
	case rule.Unlimited:
		return keyTarget{}, errUnlimited(rule)
	}
	key, err := set.ParseKey(rule, k.key)
	return newTarget(rule, key), err
}

func errUnlimited(r *rules.Rule) error {
	return &parameterError{"rule", fmt.Sprintf("rule %s is unlimited and has no state", r.Name)}
}

func findByEntries(set *rules.Set, k *keyRequest) (keyTarget, error) {
	domain := set.Domain(k.domain)
	if domain == nil {
		return keyTarget{}, &notFoundError{fmt.Sprintf("no such rule: no file defines domain %.200q", k.domain), spelling.Similar(k.domain, set.DomainNames())}
	}
	rule, key := domain.Match(k.entries, nil)
	if rule == nil {
		what := fmt.Sprintf("no such rule: none of domain %s applies to %.200q", domain.Name, withoutValues(k.entries))
		return keyTarget{}, &notFoundError{what, nearestForm(k, set)}
	}
	if rule.Unlimited {
		return keyTarget{}, errUnlimited(rule)
	}
	return newTarget(rule, string(key)), nil
}

func newTarget(rule *rules.Rule, key string) keyTarget {
	return keyTarget{rule: rule, limit: rule.Limit, key: key}
}

func noSuchRule(set *rules.Set, name string) error {
	var names []string
	for _, r := range set.Rules() {
		names = append(names, r.Name)
	}
	return &notFoundError{fmt.Sprintf("no such rule: %.200q", name), spelling.Similar(name, names)}
}

// nearestForm returns the key form of the rule of the domain that is most similar to the
// entries, in the keys alone.
func nearestForm(k *keyRequest, set *rules.Set) string {
	var forms, names []string
	for _, r := range set.Rules() {
		if domain, nodes := r.Path(); domain == k.domain {
			forms = append(forms, r.KeyForm())
			names = append(names, entryKeys(nodes))
		}
	}
	i := slices.Index(names, spelling.Similar(entryKeys(k.entries), names))
	if i < 0 {
		return ""
	}
	return forms[i]
}

func entryKeys(entries []rules.Entry) (keys string) {
	for _, e := range entries {
		keys += e.Key + "|"
	}
	return keys
}
