package adminapi

import (
	"net/http"

	"github.com/penstock-io/penstock/server/observe"
)

// maxInspectedRules bounds the calls of the store for one inspection.
const maxInspectedRules = 32

// An inspection is the response of /v1/inspect.
type inspection struct {
	// States are those of the key under each rule that it can be a key of, or under the
	// rule or limit of the request. More means that there are further such rules.
	States []*keyState `json:"states"`
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
	result := &inspection{States: []*keyState{}, More: more, Seen: []observe.SeenKey{}, Actions: !s.options.ReadOnly}
	seen := map[string]bool{}
	for _, t := range targets {
		state, err := s.peek(r.Context(), t)
		if err != nil {
			return nil, err
		}
		result.States = append(result.States, state)
		if !seen[t.key] {
			seen[t.key] = true
			result.Seen = append(result.Seen, s.observer.Seen(t.key)...)
		}
	}
	return result, nil
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
		if len(targets) == maxInspectedRules {
			return targets, true
		}
		targets = append(targets, s.underOverride(newTarget(rule, key)))
	}
	return targets, false
}
