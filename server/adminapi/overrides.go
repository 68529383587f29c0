package adminapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/overrides"
)

const (
	overridesPath = "/v1/overrides"
	overridesHelp = "other limits, none or bans for keys of rules: GET lists, PUT sets, as JSON or CSV, " +
		"DELETE ends one: ?rule=shop/user&key=42&reason=TEXT"
)

// maxOverridesAtOnce is how many overrides one request may set.
const maxOverridesAtOnce = 10_000

// handleOverrides answers /v1/overrides.
func (s *Server) handleOverrides(w http.ResponseWriter, r *http.Request) {
	q, err := decodeOverrideQuery(r)
	switch {
	case err != nil:
		s.refuse(r, audit.Target{Rule: q.rule, Key: q.key}, q.reason, err.Error())
	case r.Method == http.MethodPut:
		err = s.putOverrides(w, r, q)
	case r.Method == http.MethodDelete:
		err = s.deleteOverride(w, r, q)
	default:
		err = s.listOverrides(w, r, q)
	}
	if err != nil {
		httpserver.WriteProblem(w, overrideProblem(err))
	}
}

// overrideProblem returns the problem of an error, with the number of the override that it
// is about among several.
func overrideProblem(err error) httplimit.Problem {
	var field *overrides.FieldError
	var item *overrides.ItemError
	p := problemOf(err)
	if errors.As(err, &field) {
		p = httplimit.Problem{Status: http.StatusBadRequest, Detail: field.Error(), Parameter: field.Field}
	}
	if errors.Is(err, penstock.ErrUnavailable) || errors.Is(err, penstock.ErrBusy) {
		p.Detail += "; what Redis has received may be in force: list the overrides, or repeat the request"
	}
	if errors.As(err, &item) && item.Index > 0 {
		p.Detail = fmt.Sprintf("override %d: %s", item.Index+1, p.Detail)
	}
	return p
}

// An overrideQuery holds the parameters of /v1/overrides.
type overrideQuery struct {
	rule, key, reason, format, filter string
	n                                 int // how many are listed at most; 0 is all
}

func decodeOverrideQuery(r *http.Request) (*overrideQuery, error) {
	q := &overrideQuery{}
	return q, decodeQuery(r, map[string]func(string) error{
		"rule": text(&q.rule), "key": text(&q.key), "reason": text(&q.reason), "format": choice(&q.format, "csv", "json"),
		"filter": text(&q.filter), "n": number(&q.n, 1, overrides.MaxOverrides),
	})
}

func (s *Server) listOverrides(w http.ResponseWriter, r *http.Request, q *overrideQuery) error {
	rule, key := q.rule, q.key
	if key != "" && rule == "" { // what a key's text means depends on the rule
		return &parameterError{"rule", "want the rule of the key"}
	}
	if key != "" {
		o := s.resolveLoosely(rule, key)
		rule, key = o.Rule, o.Key
	}
	all := slices.DeleteFunc(s.engine.Overrides().List(rule, key), func(o overrides.Listed) bool {
		return !strings.Contains(strings.ToLower(strings.Join([]string{o.Rule, o.Key, o.Limit, o.Reason}, "\n")), strings.ToLower(q.filter))
	})
	total := len(all)
	if q.n > 0 {
		all = all[:min(total, q.n)]
	}
	s.engine.Overrides().AddUses(r.Context(), all)
	if q.format == "csv" {
		return writeOverridesCSV(w, all)
	}
	response := overridesResponse{make([]Override, len(all)), total, s.engine.Overrides().Durable(), !s.options.ReadOnly}
	for i := range all {
		response.Overrides[i] = newOverride(all[i])
	}
	writeJSON(w, http.StatusOK, response)
	return nil
}

// putOverrides sets the overrides of the body.
func (s *Server) putOverrides(w http.ResponseWriter, r *http.Request, q *overrideQuery) error {
	all, err := s.readOverrides(w, r, q)
	if err != nil {
		refused := append(all, overrides.Override{Reason: q.reason})[0]
		s.refuse(r, audit.Target{Rule: refused.Rule, Key: refused.Key}, refused.Reason, err.Error())
		return err
	}
	if err := s.changeOverrides(r, all, s.engine.Overrides().Put); err != nil {
		return err
	}
	response := overridesChanged{Set: len(all), Durable: s.engine.Overrides().Durable()}
	switch {
	case s.engine.Overrides().Shared():
	case response.Durable:
		response.Note = "in force on this daemon alone: only Redis shares overrides"
	default:
		response.Note = "in force on this daemon alone, and lost when it ends: only Redis shares overrides, and --data keeps them"
	}
	response.Note = strings.Trim(s.noteOf(all)+"; "+response.Note, "; ")
	writeJSON(w, http.StatusOK, response)
	return nil
}

// noteOf returns what an operator may not expect of overrides: of several, the first of which there is something.
func (s *Server) noteOf(all []overrides.Override) string {
	set := s.engine.Rules()
	if set == nil {
		return ""
	}
	for i := range all {
		rule := set.Rule(all[i].Rule)
		if rule == nil {
			continue
		}
		if note := all[i].Note(rule); note != "" && len(all) > 1 {
			return fmt.Sprintf("override %d, of %s, and perhaps others: %s", i+1, rule.Name, note)
		} else if note != "" {
			return note
		}
	}
	return ""
}

// readOverrides returns the overrides of the body, checked against the rules. With the error of one
// it returns that one alone, as the body names it.
func (s *Server) readOverrides(w http.ResponseWriter, r *http.Request, q *overrideQuery) ([]overrides.Override, error) {
	if *q != (overrideQuery{reason: q.reason}) {
		return nil, &parameterError{"rule", "want rule and key in the body"}
	}
	requests, err := decodeOverrides(w, r)
	if err != nil {
		return nil, err
	}
	set := s.engine.Rules()
	if set == nil {
		return nil, engine.ErrNoRules
	}
	resolver := overrideResolver{s.engine, set, map[string]int{}, time.Now()}
	all := make([]overrides.Override, len(requests))
	for i := range requests {
		requests[i].Reason = cmp.Or(requests[i].Reason, q.reason)
		if all[i], err = resolver.resolve(i, &requests[i]); err != nil {
			q := &requests[i]
			return []overrides.Override{{Rule: q.Rule, Key: q.Key, Reason: q.Reason}}, &overrides.ItemError{Index: i, Err: err}
		}
	}
	return all, nil
}

// An overrideResolver turns what operators write into overrides.
type overrideResolver struct {
	engine *engine.Engine
	set    *rules.Set
	seen   map[string]int // index by rule and key
	now    time.Time
}

func (v *overrideResolver) resolve(i int, q *overrideRequest) (o overrides.Override, err error) {
	rule := v.set.Rule(q.Rule)
	if rule == nil {
		return o, noSuchRule(v.set, q.Rule)
	}
	if rule.CountedBy != rule.Name {
		return o, &overrides.FieldError{Field: "rule", Err: fmt.Errorf("%s has no keys of its own: override those of %s", rule.Name, rule.CountedBy)}
	}
	o = overrides.Override{Rule: rule.Name, Limit: q.Limit, Reason: q.Reason}
	var other *rules.KeyError
	if o.Key, err = overrides.Resolve(v.set, rule, q.Key); errors.As(err, &other) {
		return o, err
	} else if err != nil {
		return o, &overrides.FieldError{Field: "key", Err: err}
	}
	if o.Until, err = q.end(v.now); err != nil {
		return o, err
	}
	if err := o.Validate(); err != nil {
		return o, err
	}
	if err := o.CheckRule(rule, v.engine.RequestLimits().Claim); err != nil {
		return o, &overrides.FieldError{Field: "limit", Err: err}
	}
	id := o.Rule + "\x00" + o.Key
	if first, ok := v.seen[id]; ok {
		return o, &parameterError{"key", fmt.Sprintf("%q of rule %s is also override %d", o.Key, o.Rule, first+1)}
	}
	v.seen[id] = i
	return o, checkReason(o.Reason)
}

// deleteOverride ends an override.
func (s *Server) deleteOverride(w http.ResponseWriter, r *http.Request, q *overrideQuery) error {
	o := overrides.Override{Rule: q.rule, Key: q.key}
	err := checkReason(q.reason)
	switch {
	case q.rule == "" || q.key == "" || *q != overrideQuery{rule: q.rule, key: q.key, reason: q.reason}:
		err = &parameterError{"key", "want rule and key"}
	case err == nil:
		o = s.resolveLoosely(q.rule, q.key)
		o.Reason = q.reason
	}
	if err != nil {
		s.refuse(r, audit.Target{Rule: q.rule, Key: q.key}, q.reason, err.Error())
		return err
	}
	err = s.changeOverrides(r, []overrides.Override{o}, s.engine.Overrides().Delete)
	if set := s.engine.Rules(); errors.Is(err, overrides.ErrNotFound) && set != nil && set.Rule(o.Rule) == nil {
		return noSuchRule(set, o.Rule)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, overridesChanged{Deleted: 1, Durable: s.engine.Overrides().Durable()})
	return nil
}

// resolveLoosely returns an override by its rule and key. An override of a rule that is no
// longer loaded is found by the key as it is listed. A network without an override means the
// key that looks like it: penalties ban masked addresses, and others know them by that name.
func (s *Server) resolveLoosely(rule, key string) overrides.Override {
	o := overrides.Override{Rule: rule, Key: key}
	if set := s.engine.Rules(); set != nil && set.Rule(rule) != nil {
		if resolved, err := overrides.Resolve(set, set.Rule(rule), key); err == nil {
			o.Key = resolved
		}
	}
	if literal := overrides.Literal(o.Key); s.engine.Overrides().Get(rule, o.Key) == nil && s.engine.Overrides().Get(rule, literal) != nil {
		o.Key = literal
	}
	return o
}

// changeOverrides sets or deletes overrides, with an entry of the audit log for each.
func (s *Server) changeOverrides(r *http.Request, all []overrides.Override, change func(context.Context, []overrides.Override) error) error {
	entries := make([]audit.Entry, len(all))
	for i := range all {
		entries[i] = s.overrideEntry(r, &all[i])
	}
	return s.options.Audit.Record(entries, func([]*audit.Pending) error { return change(r.Context(), all) })
}

// overrideEntry returns the entry of a change, with what applied before and what will after.
func (s *Server) overrideEntry(r *http.Request, o *overrides.Override) audit.Entry {
	e := entry(r)
	e.Target, e.Reason = audit.Target{Rule: o.Rule, Key: o.Key}, o.Reason
	if before := s.engine.Overrides().Get(o.Rule, o.Key); before != nil {
		e.Before = &audit.State{Limit: before.Limit, Expires: before.Until}
	}
	if o.Limit != "" {
		e.After = &audit.State{Limit: o.Limit, Expires: o.Until}
	}
	return e
}
