package adminapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/rules"
)

const (
	maxTopKeys     = 500
	defaultTopKeys = 20

	maxRuleRows     = 1000
	defaultRuleRows = 100

	maxFilter = 200 // bytes
)

// handleLive answers /v1/live.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	q := observe.LiveQuery{Window: observe.TwoMinutes, Scope: observe.ScopeDaemon, Sort: observe.SortNames[0], Rules: defaultRuleRows}
	err := decodeQuery(r, map[string]func(string) error{
		"window": choice(func(text string) { q.Window = observe.Window(text) }, texts(observe.Windows)...),
		"scope":  choice(func(text string) { q.Scope = text }, observe.ScopeDaemon, observe.ScopeAll),
		"sort":   choice(func(text string) { q.Sort = text }, observe.SortNames...),
		"rules":  number(&q.Rules, 0, maxRuleRows),
		"filter": short(&q.Filter, maxFilter),
	})
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	writeCompactJSON(w, liveResponse{s.observer.Live(r.Context(), q), s.failedReload()})
}

// A liveResponse is the response of /v1/live, with how the last load of the rules of this
// daemon failed, if it did.
type liveResponse struct {
	*observe.Live
	FailedReload *Reload `json:"failed_reload,omitempty"`
}

// failedReload returns how the last load of the rules failed, with its first error alone, or
// nil if it did not.
func (s *Server) failedReload() *Reload {
	last := s.options.Reload()
	if last == nil || len(last.Errors) == 0 {
		return nil
	}
	last.Errors = last.Errors[:1]
	return last
}

// handleTop answers /v1/top.
func (s *Server) handleTop(w http.ResponseWriter, r *http.Request) {
	q := observe.TopQuery{By: observe.ByAsked, Scope: observe.ScopeDaemon, N: defaultTopKeys}
	err := decodeQuery(r, map[string]func(string) error{
		"by":    choice(func(text string) { q.By = text }, observe.ByAsked, observe.ByDenied),
		"scope": choice(func(text string) { q.Scope = text }, observe.ScopeDaemon, observe.ScopeAll),
		"n":     number(&q.N, 1, maxTopKeys),
		"rule": func(text string) error {
			q.Rule = &text
			return nil
		},
	})
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	writeCompactJSON(w, s.observer.Top(r.Context(), q))
}

// decodeQuery calls for each parameter of a query the function of its name.
func decodeQuery(r *http.Request, set map[string]func(string) error) error {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, p := range parameters {
		switch {
		case set[p.Name] == nil:
			return &parameterError{p.Name, fmt.Sprintf("unknown parameter %.80q", p.Name)}
		case seen[p.Name]:
			return &parameterError{p.Name, "duplicate parameter"}
		}
		seen[p.Name] = true
		if err := set[p.Name](p.Value); err != nil {
			return &parameterError{p.Name, err.Error()}
		}
	}
	return nil
}

// choice returns a function that accepts some words.
func choice(set func(string), words ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("want %s", strings.Join(words, ", "))
		}
		set(text)
		return nil
	}
}

func number(n *int, least, most int) func(string) error {
	return func(text string) (err error) {
		if *n, err = strconv.Atoi(text); err != nil || *n < least || *n > most {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return nil
	}
}

func short(s *string, most int) func(string) error {
	return func(text string) error {
		if len(text) > most {
			return fmt.Errorf("want at most %d bytes", most)
		}
		*s = text
		return nil
	}
}

func texts[T ~string](all []T) (words []string) {
	for _, word := range all {
		words = append(words, string(word))
	}
	return words
}

// An Explanation is the response of /v1/explain.
type Explanation struct {
	// Text is what penstock rules explain prints.
	Text string `json:"text"`

	// Rule is the rule that applies, and Key the key that the descriptor is counted
	// under; null and empty if none applies.
	Rule *string `json:"rule"`
	Key  string  `json:"key"`
}

// handleExplain answers /v1/explain: which rule applies to the entries of a descriptor.
func (s *Server) handleExplain(w http.ResponseWriter, r *http.Request) {
	x, err := s.explain(r)
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	writeJSON(w, http.StatusOK, x)
}

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
	explanation := &Explanation{Text: x.String(), Key: x.Key}
	if x.Rule != nil {
		explanation.Rule = &x.Rule.Name
	}
	return explanation, nil
}

// decodeDescriptor returns the domain and the entries of a query, in their order. Entries
// that have the name of a parameter, "domain" or "key", are written in key instead.
func decodeDescriptor(r *http.Request) (domain string, entries []rules.Entry, err error) {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return "", nil, err
	}
	k := &keyRequest{has: map[string]bool{}}
	for _, p := range parameters {
		switch p.Name {
		case "rule", "limit", "units", "reason": // no parameters here
			k.entries = append(k.entries, rules.Entry{Key: p.Name, Value: p.Value})
		default:
			if err := k.decodeParameter(p, r.Method); err != nil {
				return "", nil, err
			}
		}
	}
	switch {
	case k.domain == "":
		return "", nil, engine.ErrNoDomain
	case k.has["key"] && len(k.entries) > 0:
		return "", nil, &parameterError{"key", "want either a key or entries with a domain"}
	}
	return k.domain, k.entries, k.parseEntries()
}
