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
	for _, limits := range shown {
		state, err := s.peek(r.Context(), limits)
		if err != nil {
			return nil, err
		}
		result.States = append(result.States, state)
		result.Seen = append(result.Seen, seen[limits[0].key]...)
		delete(seen, limits[0].key)
	}
	return result, nil
}

// seen returns what the lists of top keys have of the targets, by key.
func (s *Server) seen(targets [][]keyTarget) map[string][]observe.SeenKey {
	all := map[string][]observe.SeenKey{}
	for _, limits := range targets {
		if key := limits[0].key; all[key] == nil {
			all[key] = s.observer.Seen(key)
		}
	}
	return all
}

// sortByInterest sorts keys of rules by what an operator who writes a value alone may mean, and
// those of one kind as the rules are.
func (s *Server) sortByInterest(ctx context.Context, targets [][]keyTarget, seen map[string][]observe.SeenKey) {
	var of []*rules.Rule
	var keys []string
	for _, t := range slices.Concat(targets...) {
		of, keys = append(of, t.rule), append(keys, t.key)
	}
	charged, _ := s.engine.Charged(ctx, of, keys) // without an answer nothing is; the peeks will tell why
	rank := map[*rules.Rule]int{}
	for _, limits := range targets {
		rank[limits[0].rule] = 3
		for i, t := range limits {
			switch {
			case slices.ContainsFunc(seen[t.key], func(k observe.SeenKey) bool { return k.Rule == t.rule.Name }):
				rank[limits[0].rule] = 0
			case t.override != nil:
				rank[limits[0].rule] = min(rank[limits[0].rule], 1)
			case charged[i]:
				rank[limits[0].rule] = min(rank[limits[0].rule], 2)
			}
		}
		charged = charged[len(limits):]
	}
	slices.SortStableFunc(targets, func(a, b []keyTarget) int { return rank[a[0].rule] - rank[b[0].rule] })
}

// findAll returns the keys that a request means, each under all limits of its rule, and whether there are
// more of them.
func (s *Server) findAll(r *http.Request) (targets [][]keyTarget, more bool, err error) {
	k, err := decodeKeyParameters(r)
	if err != nil {
		return nil, false, err
	}
	if k.has["rule"] || k.has["limit"] || k.has["domain"] {
		if err := k.check(); err != nil {
			return nil, false, err
		}
		limits, err := s.find(k)
		return [][]keyTarget{limits}, false, err
	}
	if k.key == "" || len(k.entries) > 0 {
		return nil, false, &parameterError{"key", "want a key, alone or with one of rule, limit and domain"}
	}
	targets, more = s.findUnderAllRules(k.key)
	return targets, more, nil
}

// findUnderAllRules returns the keys that a text means, one for each rule that has such a
// key.
func (s *Server) findUnderAllRules(text string) (targets [][]keyTarget, more bool) {
	set := s.engine.Rules()
	if set == nil {
		return nil, false
	}
	for _, rule := range set.Rules() {
		if rule.Unlimited || rule.IsFurther() { // its rule has it
			continue
		}
		key, err := set.ParseKey(rule, text)
		if err != nil {
			continue
		}
		if len(targets) == maxSearchedRules {
			return targets, true
		}
		targets = append(targets, s.underAllLimits(newTarget(rule, key)))
	}
	return targets, false
}
