package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/rules"
)

// handleKey answers /v1/keys: GET peeks at a key, POST refunds units, DELETE resets
// it. A key can be any bytes, escaped as usual in a URL.
func (s *Server) handleKey(w http.ResponseWriter, r *http.Request) {
	k, err := decodeKeyRequest(r)
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	state, err := s.take(r.Context(), k)
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	s.logChange(r, k, state)
	writeJSON(w, http.StatusOK, state)
}

// A keyRequest is the request of /v1/keys. It identifies a key by its rule, by its
// limit, or by the entries of a descriptor that the rules match.
type keyRequest struct {
	has     map[string]bool // the parameters that are present
	rule    string
	limit   string
	key     string
	domain  string
	entries []rules.Entry
	cost    int64 // 0 peeks, negative refunds, penstock.Reset resets
}

const maxParameters = 24

func decodeKeyRequest(r *http.Request) (*keyRequest, error) {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, err
	}
	k := &keyRequest{has: map[string]bool{}}
	switch r.Method {
	case http.MethodDelete:
		k.cost = penstock.Reset
	case http.MethodPost:
		k.cost = -1
	}
	for _, p := range parameters {
		if err := k.decodeParameter(p, r.Method); err != nil {
			return nil, err
		}
	}
	return k, k.check()
}

func (k *keyRequest) decodeParameter(p httpserver.Parameter, method string) error {
	fields := map[string]*string{"rule": &k.rule, "limit": &k.limit, "key": &k.key, "domain": &k.domain}
	field, known := fields[p.Name]
	if !known && p.Name != "units" {
		k.entries = append(k.entries, rules.Entry{Key: p.Name, Value: p.Value})
		return nil
	}
	if k.has[p.Name] {
		return &parameterError{p.Name, "duplicate parameter"}
	}
	k.has[p.Name] = true
	if known {
		*field = p.Value
		return nil
	}
	units, err := strconv.ParseInt(p.Value, 10, 64)
	if err != nil || units < 1 || method != http.MethodPost {
		return &parameterError{"units", "want a whole number, 1 or more, with POST"}
	}
	k.cost = -units
	return nil
}

// check returns an error unless the parameters identify one key.
func (k *keyRequest) check() error {
	var given []string
	for _, name := range []string{"rule", "limit", "domain"} {
		if k.has[name] {
			given = append(given, name)
		}
	}
	switch {
	case len(given) != 1:
		return &parameterError{"rule", "want one of rule, limit and domain"}
	case k.has["domain"] && k.has["key"]:
		return &parameterError{"key", "want entries with a domain, such as remote_address=203.0.113.9"}
	case k.has["domain"]:
		return nil
	case len(k.entries) > 0:
		name := k.entries[0].Key
		return &parameterError{name, fmt.Sprintf("unknown parameter %.80q; entries of a descriptor need a domain", name)}
	case k.key == "":
		return &parameterError{"key", "want a key with a " + given[0]}
	}
	return nil
}

// take peeks at the key, refunds or resets it. The counters of requests do not
// include it.
func (s *Server) take(ctx context.Context, k *keyRequest) (*keyState, error) {
	if k.has["domain"] {
		return s.takeByRules(ctx, k)
	}
	limit, err := s.limitOf(k)
	if err != nil {
		return nil, err
	}
	d, err := s.engine.Store().Take(ctx, penstock.Request{Key: k.key, Limit: limit, Cost: k.cost})
	if err != nil {
		return nil, err
	}
	return newKeyState(k.rule, limit, k.key, d), nil
}

var errNoRule = errors.New("no such rule")

func (s *Server) limitOf(k *keyRequest) (penstock.Limit, error) {
	if k.has["limit"] {
		l, err := penstock.ParseLimit(k.limit)
		return engine.RequestLimit(l), err
	}
	set := s.engine.Rules()
	if set == nil {
		return penstock.Limit{}, engine.ErrNoRules
	}
	all := set.Rules()
	i := slices.IndexFunc(all, func(r *rules.Rule) bool { return r.Name == k.rule })
	switch {
	case i < 0:
		return penstock.Limit{}, errNoRule
	case all[i].Unlimited:
		return penstock.Limit{}, &parameterError{"rule", "the rule is unlimited and has no state"}
	}
	return all[i].Limit, nil
}

// takeByRules is take for the key that the rules make of the entries.
func (s *Server) takeByRules(ctx context.Context, k *keyRequest) (*keyState, error) {
	var result engine.Result
	err := s.engine.Decide(ctx, k.domain, []engine.Descriptor{{Entries: k.entries, Cost: k.cost}}, &result)
	if err != nil {
		return nil, err
	}
	status := result.Statuses[0]
	if status.Rule == nil || status.Rule.Unlimited {
		return nil, errNoRule
	}
	return newKeyState(status.Rule.Name, status.Rule.Limit, s.keyByRules(k), status.Decision), nil
}

func (s *Server) keyByRules(k *keyRequest) string {
	set := s.engine.Rules()
	if set == nil || set.Domain(k.domain) == nil {
		return "" // the rules were replaced meanwhile
	}
	_, key := set.Domain(k.domain).Match(k.entries, nil)
	return string(key)
}

// keyState is the response of /v1/keys.
type keyState struct {
	Rule     string          `json:"rule,omitempty"`
	Limit    string          `json:"limit,omitempty"`
	Key      string          `json:"key,omitempty"`
	Decision json.RawMessage `json:"decision"`

	decision penstock.Decision
}

func newKeyState(rule string, limit penstock.Limit, key string, d penstock.Decision) *keyState {
	text := append(httpserver.AppendDecision([]byte{'{'}, &d), '}')
	return &keyState{Rule: rule, Limit: limit.String(), Key: key, Decision: text, decision: d}
}

// logChange logs a refund or reset.
func (s *Server) logChange(r *http.Request, k *keyRequest, state *keyState) {
	if k.cost >= 0 {
		return
	}
	message := "units refunded"
	if k.cost == penstock.Reset {
		message = "key reset"
	}
	s.options.Log.Info(message, "method", r.Method, "rule", state.Rule, "limit", state.Limit,
		"key", k.key, "entries", fmt.Sprintf("%q", k.entries), "granted", state.decision.Granted, "from", r.RemoteAddr)
}

// A parameterError means that a parameter of the URL is invalid.
type parameterError struct{ name, problem string }

func (e *parameterError) Error() string { return e.problem }

// problemOf returns the problem of an error.
func problemOf(err error) httplimit.Problem {
	var parameter *parameterError
	var field *penstock.FieldError
	switch {
	case errors.As(err, &parameter):
		return httplimit.Problem{Status: http.StatusBadRequest, Detail: parameter.problem, Parameter: parameter.name}
	case errors.As(err, &field):
		return httplimit.Problem{
			Status: http.StatusBadRequest, Parameter: "limit",
			Detail: strings.TrimPrefix(err.Error(), "penstock: "),
		}
	case errors.Is(err, httpserver.ErrBadQuery), errors.Is(err, engine.ErrNoDomain):
		return httplimit.Problem{Status: http.StatusBadRequest, Detail: err.Error()}
	case errors.Is(err, errNoRule), errors.Is(err, engine.ErrNoRules):
		return httplimit.Problem{Status: http.StatusNotFound, Detail: err.Error()}
	}
	return httplimit.Problem{Status: http.StatusServiceUnavailable, Detail: err.Error()}
}
