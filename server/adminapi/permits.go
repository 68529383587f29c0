package adminapi

import (
	"context"
	"net/http"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
)

// The response of /v1/permits: the rules with a concurrent limit. More means that there are
// further such rules.
type (
	permitsResponse struct {
		Rules []permitRule `json:"rules"`
		More  bool         `json:"more"`
	}

	permitRule struct {
		Rule    string          `json:"rule"`
		Limit   string          `json:"limit"`
		Totals  observe.Counts  `json:"totals"`  // since the daemon has started
		Permits observe.Permits `json:"permits"` // likewise

		// Keys are those of the top keys that are known in full. How many permits they
		// hold is what the store says now, whichever daemon granted them.
		Keys []permitKey `json:"keys"`
	}

	permitKey struct {
		Key  string `json:"key"`
		Held int64  `json:"held"`
		Free int64  `json:"free"`
	}
)

const (
	maxPermitKeys     = 20 // of each rule, because the store is asked for each of them
	defaultPermitKeys = 5
)

// permits answers /v1/permits.
func (s *Server) permits(r *http.Request) (*permitsResponse, error) {
	only, keys := "", defaultPermitKeys
	err := decodeQuery(r, map[string]func(string) error{"rule": text(&only), "keys": number(&keys, 0, maxPermitKeys)})
	if err != nil {
		return nil, err
	}
	set := s.engine.Rules()
	if set == nil {
		return nil, engine.ErrNoRules
	}
	return s.permitRules(r.Context(), set, only, keys)
}

func (s *Server) permitRules(ctx context.Context, set *rules.Set, only string, keys int) (*permitsResponse, error) {
	counters := map[string]*engine.RuleStats{}
	for _, c := range s.engine.RuleStats() {
		counters[c.Rule] = c
	}
	response := &permitsResponse{Rules: []permitRule{}}
	for _, rule := range set.Rules() {
		c := counters[rule.Name]
		if c == nil || !c.HasPermits || only != "" && rule.Name != only {
			continue
		}
		if len(response.Rules) == maxInspectedRules {
			response.More = true
			break
		}
		one := permitRule{
			Rule: rule.Name, Limit: rule.Limit.WithName("").String(), Totals: observe.CountsOf(c), Permits: observe.PermitsOf(c),
		}
		var err error
		if one.Keys, err = s.permitKeys(ctx, rule, keys); err != nil {
			return nil, err
		}
		response.Rules = append(response.Rules, one)
	}
	return response, nil
}

// permitKeys asks the store about the keys of a rule that were asked for most.
func (s *Server) permitKeys(ctx context.Context, rule *rules.Rule, n int) ([]permitKey, error) {
	keys := []permitKey{}
	if n == 0 {
		return keys, nil
	}
	top := s.observer.Top(ctx, observe.TopQuery{Scope: observe.ScopeDaemon, By: observe.ByAsked, Rule: &rule.Name, N: n})
	for _, k := range top.Keys {
		if k.Truncated || k.KeyBase64 != "" {
			continue // its text is not the key
		}
		t := s.underOverride(newTarget(rule, k.Key))
		d, err := s.peekUnits(ctx, t)
		if err != nil {
			return nil, err
		}
		keys = append(keys, permitKey{Key: k.Key, Held: heldPermits(&d), Free: d.Remaining})
	}
	return keys, nil
}

// heldPermits returns how many permits of a key are held. After the count was lowered there can
// be more of them than that, which a decision does not say.
func heldPermits(d *penstock.Decision) int64 { return max(d.Limit-d.Remaining, 0) }
