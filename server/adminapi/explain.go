package adminapi

import (
	"net/http"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// An Explanation is the response of /v1/explain.
type Explanation struct {
	// Text is what penstock rules explain prints.
	Text string `json:"text"`

	// Rule is the rule that applies, and Key the key that the descriptor is counted
	// under; null and empty if none applies.
	Rule *string `json:"rule"`
	Key  string  `json:"key"`
}

// explain answers /v1/explain: which rule applies to the entries of a descriptor.
func (s *Server) explain(r *http.Request) (*Explanation, error) {
	domain, entries, err := decodeDescriptor(r)
	if err != nil {
		return nil, err
	}
	set := s.engine.Rules()
	if set == nil {
		return nil, engine.ErrNoRules
	}
	x := set.Explain(domain, entries)
	x.Regions = s.options.DescribeRegions(r.Context(), x.Rule, x.Key)
	explanation := &Explanation{Text: x.String(), Key: x.Key}
	if x.Rule != nil {
		explanation.Rule = &x.Rule.Name
	}
	return explanation, nil
}

// decodeDescriptor returns the domain and the entries of a query, in their order. Entries
// that have the name of a parameter, "domain" or "key", are written in key instead.
func decodeDescriptor(r *http.Request) (domain string, entries []rules.Entry, err error) {
	k := &keyRequest{}
	known := map[string]func(string) error{"domain": text(&k.domain), "key": text(&k.key)}
	if k.has, err = decodeWithEntries(r, known, &k.entries); err != nil {
		return "", nil, err
	}
	switch {
	case k.domain == "":
		return "", nil, engine.ErrNoDomain
	case k.has["key"] && len(k.entries) > 0:
		return "", nil, &parameterError{"key", "want either a key or entries with a domain"}
	}
	return k.domain, k.entries, k.parseEntries()
}
