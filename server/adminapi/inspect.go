package adminapi

import (
	"context"
	"net/http"
	"slices"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/observe"
)

// The bounds of one inspection: how many rules that a text may be a key of are searched, by one call
// of the store, and how many of these states are returned, each by calls of its own.
const (
	maxSearchedRules  = 1000
	maxInspectedRules = 32
)

// An inspection is the response of /v1/inspect.
type inspection struct {
	// States are those of the key under each rule that it can be a key of, or under the
	// rule or limit of the request: first where it is among the top keys, then where it has an
	// override, then where units are charged to it. More means that there are further such rules.
	States []*KeyState `json:"states"`
	More   bool        `json:"more"`

	// Seen is what the daemon knows of these keys, and of equal keys under limits in
	// requests, if they are among the top keys.
	Seen []observe.SeenKey `json:"seen"`

	// Actions is whether these keys can be refunded and reset here: a client that shows
	// them need not offer what is answered with 403.
	Actions bool `json:"actions"`
}

// inspect answers /v1/inspect: everything about one key. The parameters are those of
// /v1/keys; a key alone means all rules.
func (s *Server) inspect(r *http.Request) (*inspection, error) {
	targets, more, err := s.findAll(r)
	if err != nil {
		return nil, err
	}
	result := &inspection{States: []*KeyState{}, Seen: []observe.SeenKey{}, Actions: !s.options.ReadOnly}
	seen := s.seen(targets)
	if len(targets) > 1 {
		s.sortByInterest(r.Context(), targets, seen)
	}
	shown := targets[:min(len(targets), maxInspectedRules)]
	result.More = more || len(shown) < len(targets)
	for _, t := range shown {
		state, err := s.peek(r.Context(), t)
		if err != nil {
			return nil, err
		}
		result.States = append(result.States, state)
		result.Seen = append(result.Seen, seen[t.key]...)
		delete(seen, t.key)
	}
	return result, nil
}

// seen returns what the lists of top keys have of the targets, by key.
func (s *Server) seen(targets []keyTarget) map[string][]observe.SeenKey {
	all := map[string][]observe.SeenKey{}
	for _, t := range targets {
		if _, ok := all[t.key]; !ok {
			all[t.key] = s.observer.Seen(t.key)
		}
	}
	return all
}

// sortByInterest sorts keys of rules by what an operator who writes a value alone may mean, and
// those of one kind as the rules are.
func (s *Server) sortByInterest(ctx context.Context, targets []keyTarget, seen map[string][]observe.SeenKey) {
	of, keys := make([]*rules.Rule, len(targets)), make([]string, len(targets))
	for i, t := range targets {
		of[i], keys[i] = t.rule, t.key
	}
	charged, _ := s.engine.Charged(ctx, of, keys) // without an answer nothing is; the peeks will tell why
	rank := map[*rules.Rule]int{}
	for i, t := range targets {
		switch {
		case slices.ContainsFunc(seen[t.key], func(k observe.SeenKey) bool { return k.Rule == t.rule.Name }):
		case t.override != nil:
			rank[t.rule] = 1
		case charged[i]:
			rank[t.rule] = 2
		default:
			rank[t.rule] = 3
		}
	}
	slices.SortStableFunc(targets, func(a, b keyTarget) int { return rank[a.rule] - rank[b.rule] })
}

// findAll returns the keys that a request means, and whether there are more of them.
func (s *Server) findAll(r *http.Request) (targets []keyTarget, more bool, err error) {
	k, err := decodeKeyParameters(r)
	if err != nil {
		return nil, false, err
	}
	if k.has["rule"] || k.has["limit"] || k.has["domain"] {
		if err := k.check(); err != nil {
			return nil, false, err
		}
		t, err := s.find(k)
		return []keyTarget{t}, false, err
	}
	if k.key == "" || len(k.entries) > 0 {
		return nil, false, &parameterError{"key", "want a key, alone or with one of rule, limit and domain"}
	}
	targets, more = s.findUnderAllRules(k.key)
	return targets, more, nil
}

// findUnderAllRules returns the keys that a text means, one for each rule that has such a
// key.
func (s *Server) findUnderAllRules(text string) (targets []keyTarget, more bool) {
	set := s.engine.Rules()
	if set == nil {
		return nil, false
	}
	for _, rule := range set.Rules() {
		if rule.Unlimited {
			continue
		}
		key, err := set.ParseKey(rule, text)
		if err != nil {
			continue
		}
		if len(targets) == maxSearchedRules {
			return targets, true
		}
		targets = append(targets, s.underOverride(newTarget(rule, key)))
	}
	return targets, false
}
