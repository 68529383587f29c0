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

// A keyRequest is what to do about one key: of a rule, of a limit, or of whatever
// rule a descriptor has.
type keyRequest struct {
	said    map[string]bool
	rule    string
	limit   string
	key     string
	domain  string
	entries []rules.Entry
	cost    int64 // 0 to look, less to give back
}

// badParameter says which parameter of the URL cannot be used.
type badParameter struct{ name, problem string }

func (e *badParameter) Error() string { return e.problem }

const maxParameters = 24

// keys answers /v1/keys. A key can be any bytes, escaped as usual in a URL.
func (d *Server) keys(w http.ResponseWriter, r *http.Request) {
	k, err := readKeyRequest(r)
	if err == nil {
		err = d.answerKey(w, r, k)
	}
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
	}
}

func readKeyRequest(r *http.Request) (*keyRequest, error) {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, err
	}
	k := &keyRequest{said: map[string]bool{}}
	switch r.Method {
	case http.MethodDelete:
		k.cost = penstock.Reset
	case http.MethodPost:
		k.cost = -1
	}
	for _, p := range parameters {
		if err := k.read(p, r.Method); err != nil {
			return nil, err
		}
	}
	return k, k.check()
}

func (k *keyRequest) read(p httpserver.Parameter, method string) error {
	fields := map[string]*string{"rule": &k.rule, "limit": &k.limit, "key": &k.key, "domain": &k.domain}
	field, known := fields[p.Name]
	if !known && p.Name != "units" {
		k.entries = append(k.entries, rules.Entry{Key: p.Name, Value: p.Value})
		return nil
	}
	if k.said[p.Name] {
		return &badParameter{p.Name, "is there twice"}
	}
	k.said[p.Name] = true
	if known {
		*field = p.Value
		return nil
	}
	units, err := strconv.ParseInt(p.Value, 10, 64)
	if err != nil || units < 1 || method != http.MethodPost {
		return &badParameter{"units", "want a whole number of 1 or more, with POST"}
	}
	k.cost = -units
	return nil
}

// check returns an error unless it is clear which key is meant.
func (k *keyRequest) check() error {
	var named []string
	for _, name := range []string{"rule", "limit", "domain"} {
		if k.said[name] {
			named = append(named, name)
		}
	}
	switch {
	case len(named) != 1:
		return &badParameter{"rule", "want one of rule, limit and domain"}
	case k.said["domain"] && k.said["key"]:
		return &badParameter{"key", "want entries with a domain, such as remote_address=203.0.113.9"}
	case k.said["domain"]:
		return nil
	case len(k.entries) > 0:
		return &badParameter{k.entries[0].Key, fmt.Sprintf("%.80q is not known without a domain", k.entries[0].Key)}
	case k.key == "":
		return &badParameter{"key", "want a key with a " + named[0]}
	}
	return nil
}

// answerKey does what is asked and tells how the key stands.
func (d *Server) answerKey(w http.ResponseWriter, r *http.Request, k *keyRequest) error {
	told, err := d.do(r.Context(), k)
	if err != nil {
		return err
	}
	if k.cost < 0 {
		d.options.Log.Info("units given back", "method", r.Method, "rule", told.Rule, "limit", told.Limit,
			"key", k.key, "entries", fmt.Sprintf("%q", k.entries), "granted", told.decision.Granted, "from", r.RemoteAddr)
	}
	writeJSON(w, http.StatusOK, told)
	return nil
}

// standing is what /v1/keys answers.
type standing struct {
	Rule     string          `json:"rule,omitempty"`
	Limit    string          `json:"limit,omitempty"`
	Key      string          `json:"key,omitempty"`
	Decision json.RawMessage `json:"decision"`

	decision penstock.Decision
}

func newStanding(rule string, limit penstock.Limit, key string, d penstock.Decision) *standing {
	text := append(httpserver.AppendDecision([]byte{'{'}, &d), '}')
	return &standing{Rule: rule, Limit: limit.String(), Key: key, Decision: text, decision: d}
}

// do asks the store, and not as one of those whom it counts.
func (d *Server) do(ctx context.Context, k *keyRequest) (*standing, error) {
	if k.said["domain"] {
		return d.doByEntries(ctx, k)
	}
	limit, err := d.limitOf(k)
	if err != nil {
		return nil, err
	}
	decision, err := d.judge.Store().Take(ctx, penstock.Request{Key: k.key, Limit: limit, Cost: k.cost})
	if err != nil {
		return nil, err
	}
	return newStanding(k.rule, limit, k.key, decision), nil
}

func (d *Server) limitOf(k *keyRequest) (penstock.Limit, error) {
	if k.said["limit"] {
		return penstock.ParseLimit(k.limit)
	}
	set := d.judge.Rules()
	if set == nil {
		return penstock.Limit{}, engine.ErrNoRules
	}
	all := set.Rules()
	at := slices.IndexFunc(all, func(r *rules.Rule) bool { return r.Name == k.rule })
	switch {
	case at < 0:
		return penstock.Limit{}, errNoRule
	case all[at].Unlimited:
		return penstock.Limit{}, &badParameter{"rule", "is unlimited, and counts nothing"}
	}
	return all[at].Limit, nil
}

var errNoRule = errors.New("no such rule is loaded")

// doByEntries lets the rules find the key.
func (d *Server) doByEntries(ctx context.Context, k *keyRequest) (*standing, error) {
	var v engine.Result
	err := d.judge.Decide(ctx, k.domain, []engine.Descriptor{{Entries: k.entries, Cost: k.cost}}, &v)
	if err != nil {
		return nil, err
	}
	st := v.Statuses[0]
	if st.Rule == nil || st.Rule.Unlimited {
		return nil, errNoRule
	}
	return newStanding(st.Rule.Name, st.Rule.Limit, d.keyOf(k), st.Decision), nil
}

// keyOf returns the key that the rules make of the entries.
func (d *Server) keyOf(k *keyRequest) string {
	set := d.judge.Rules()
	if set == nil || set.Domain(k.domain) == nil {
		return "" // the rules were replaced a moment ago
	}
	_, key := set.Domain(k.domain).Match(k.entries, nil)
	return string(key)
}

// problemOf returns what to answer for an error.
func problemOf(err error) httplimit.Problem {
	var parameter *badParameter
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
