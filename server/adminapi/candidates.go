package adminapi

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/timespan"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/candidates"
)

const (
	candidatesPath = "/v1/candidates"
	candidatesHelp = "limits that are tried beside those in force: GET compares them, ?rule=NAME&keys=N, " +
		"PUT tries one, ?rule=shop/user&limit=300/1m&for=1h&reason=TEXT, DELETE ends it"
)

// A Candidate is a limit that is tried, as /v1/candidates shows it. It counts since Since.
type Candidate struct {
	Rule      string    `json:"rule"`
	Limit     string    `json:"limit,omitempty"` // in force; none if the candidate rules have a rule more
	Candidate string    `json:"candidate"`
	Origin    string    `json:"origin"` // rule, file or api
	File      string    `json:"file,omitempty"`
	Line      int       `json:"line,omitempty"` // of the rule in force
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until,omitzero"`

	candidates.Counts

	NewlyDeniedKeys  []CandidateKey `json:"newly_denied_keys"`
	NewlyAllowedKeys []CandidateKey `json:"newly_allowed_keys"`
}

// A CandidateKey is a key of which the limits say different things, of at least so many requests.
type CandidateKey struct {
	Key      string `json:"key"`
	Requests uint64 `json:"requests"`
}

type candidatesResponse struct {
	Candidates []Candidate `json:"candidates"`
	Actions    bool        `json:"actions"` // whether this API can change them
}

// A candidateQuery holds the parameters of /v1/candidates.
type candidateQuery struct {
	rule, limit, reason, length string
	keys                        int
}

// candidates answers /v1/candidates.
func (s *Server) candidates(r *http.Request) (*candidatesResponse, error) {
	q := candidateQuery{keys: defaultTopKeys}
	known := map[string]func(string) error{"rule": text(&q.rule), "keys": number(&q.keys, 0, maxTopKeys)}
	if actionOf(r) != "" {
		known["reason"] = text(&q.reason)
	}
	if r.Method == http.MethodPut {
		known["limit"], known["for"] = text(&q.limit), text(&q.length)
	}
	err := decodeQuery(r, known)
	var change func() error
	if err == nil && actionOf(r) != "" {
		change, err = s.decodeChange(r, &q)
	}
	if err != nil {
		s.refuse(r, q.target(), q.reason, err.Error())
		return nil, err
	}
	if change != nil {
		e := entry(r)
		e.Reason, e.Target = q.reason, q.target()
		err = s.options.Audit.Record([]audit.Entry{e}, func([]*audit.Pending) error { return change() })
	}
	if err != nil {
		return nil, err
	}
	return s.listCandidates(&q), nil
}

func (q *candidateQuery) target() audit.Target { return audit.Target{Rule: q.rule, Limit: q.limit} }

// decodeChange returns a function that sets or ends the candidate of a rule.
func (s *Server) decodeChange(r *http.Request, q *candidateQuery) (change func() error, err error) {
	var rule *rules.Rule
	if set := s.engine.Rules(); set != nil {
		rule = set.Rule(q.rule)
	}
	switch {
	case q.rule == "":
		err = &parameterError{"rule", "want the name of a rule"}
	case rule == nil:
		err = &notFoundError{what: fmt.Sprintf("no rule %.200q", q.rule)}
	default:
		err = checkReason(q.reason)
	}
	if err != nil || r.Method == http.MethodDelete {
		return func() error { return s.endCandidate(q.rule) }, err
	}
	limit, err := penstock.ParseLimit(q.limit)
	var until time.Time
	if err == nil && q.length != "" {
		until, err = endOf(q.length)
	}
	return func() error { return s.tryCandidate(rule, limit, until) }, err
}

func (s *Server) endCandidate(rule string) error {
	if !s.engine.Trials.End(rule) {
		return &notFoundError{what: "no candidate of this rule was set at runtime, and one of a rule file ends when it is removed there"}
	}
	return nil
}

func (s *Server) tryCandidate(rule *rules.Rule, limit penstock.Limit, until time.Time) error {
	if err := s.engine.Trials.Try(rule, limit, until); err != nil {
		return &parameterError{"limit", "it cannot be counted: " + err.Error()}
	}
	return nil
}

// endOf returns the time so far from now, such as 1h or 2d.
func endOf(length string) (time.Time, error) {
	d, ok := timespan.Parse(length)
	if !ok || d <= 0 {
		return time.Time{}, &parameterError{"for", "want a time such as 30m, 1h or 7d"}
	}
	return time.Now().Add(d).UTC(), nil
}

// listCandidates returns the candidates of a rule, or all.
func (s *Server) listCandidates(q *candidateQuery) *candidatesResponse {
	set := s.engine.Rules()
	list := &candidatesResponse{Candidates: []Candidate{}, Actions: !s.options.ReadOnly}
	for _, c := range s.engine.Candidates() {
		if q.rule != "" && q.rule != c.Rule {
			continue
		}
		one := newCandidate(c, q.keys)
		if r := set.Rule(c.Rule); r != nil {
			one.File, one.Line = r.File, r.Line
		}
		list.Candidates = append(list.Candidates, one)
	}
	return list
}

func newCandidate(c *candidates.Comparison, keys int) Candidate {
	return Candidate{
		Rule: c.Rule, Limit: c.Limit, Candidate: c.Candidate, Origin: string(c.Origin), Since: c.Since.UTC(), Until: c.Until,
		Counts:          c.Counts(),
		NewlyDeniedKeys: candidateKeys(c.Differing(true, keys)), NewlyAllowedKeys: candidateKeys(c.Differing(false, keys)),
	}
}

func candidateKeys(s topkeys.Summary) []CandidateKey {
	keys := []CandidateKey{}
	for _, e := range s.Entries {
		if n := e.Guaranteed(); n > 0 {
			keys = append(keys, CandidateKey{strings.ToValidUTF8(e.Key, "\uFFFD"), n})
		}
	}
	return keys
}
