package adminapi

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
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

// key answers /v1/keys: GET peeks at a key, POST refunds units, DELETE resets
// it. A key can be any bytes, escaped as usual in a URL.
func (s *Server) key(r *http.Request) (*KeyState, error) {
	k, err := decodeKeyRequest(r)
	var limits []keyTarget
	if err == nil {
		limits, err = s.find(k)
	}
	if err != nil {
		s.refuse(r, s.refusedTarget(k), k.reason, err.Error())
		return nil, err
	}
	return s.peekOrAct(r, k, limits)
}

// peekOrAct peeks at a key, or refunds or resets it, under all limits of its rule.
// If the first limit fails, nothing is done; if another does, the rest is done all the same, so that what is left is known.
func (s *Server) peekOrAct(r *http.Request, k *keyRequest, limits []keyTarget) (*KeyState, error) {
	if k.cost == 0 && k.id == "" {
		return s.peek(r.Context(), limits)
	}
	ds := make([]penstock.Decision, len(limits))
	var partial partialError
	for i, t := range limits {
		var err error
		if ds[i], err = s.actOnRecord(r, k, t); err != nil && i == 0 {
			return nil, err
		}
		partial.add(t, err)
		r = r.WithContext(context.WithoutCancel(r.Context())) // a caller that leaves gets all limits
	}
	if partial.cause != nil {
		return nil, &partial
	}
	state, err := s.stateAfter(r.Context(), limits, ds)
	if err != nil {
		return nil, fmt.Errorf("do not repeat it: it is done, but the state of the key cannot be read: %w", err)
	}
	return state, nil
}

// A partialError means that an action was carried out under some limits of a rule, and failed under others.
type partialError struct {
	done, failed []string // names of rules
	cause        error    // of the first failure
}

func (e *partialError) add(t keyTarget, err error) {
	switch {
	case t.rule == nil: // a limit in a request is alone
	case err == nil:
		e.done = append(e.done, t.rule.Name)
	default:
		e.failed = append(e.failed, t.rule.Name)
		if e.cause == nil {
			e.cause = err
		}
	}
}

func (e *partialError) Error() string { return e.text(e.cause.Error()) }

func (e *partialError) Unwrap() error { return e.cause }

func (e *partialError) text(cause string) string {
	return fmt.Sprintf("it is done under %s, and failed under %s, each of which can be repeated by its name as rule: %s",
		strings.Join(e.done, " and "), strings.Join(e.failed, " and "), cause)
}

// actOnRecord refunds, settles or resets a key under one limit, with a record in the audit log.
func (s *Server) actOnRecord(r *http.Request, k *keyRequest, t keyTarget) (d penstock.Decision, err error) {
	e := entry(r)
	e.Reason, e.Target = k.reason, t.auditTarget()
	err = s.options.Audit.Record([]audit.Entry{e}, func(ps []*audit.Pending) (err error) {
		d, err = s.act(r.Context(), k, t, ps[0])
		return err
	})
	return d, err
}

// act refunds, settles or resets a key, and adds to the record what that has changed.
func (s *Server) act(ctx context.Context, k *keyRequest, t keyTarget, p *audit.Pending) (d penstock.Decision, err error) {
	before, err := s.peekUnits(ctx, t)
	if err != nil {
		return d, err
	}
	if d, err = s.takeUnits(ctx, t, k.cost, k.id); err != nil {
		return d, err
	}
	p.Before, p.After = audit.After(&before), audit.After(&d)
	if k.id == "" {
		p.Units = -d.Granted
	}
	return d, nil
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
	id      string // to settle
	cost    int64  // 0 peeks, negative refunds, penstock.Reset resets; of a settlement, what was used
	reason  string
}

// refusedTarget returns the key as a request names it that is refused, for the audit log. A parameter that is no entry of
// a rule may be there by mistake, such as a token: it is recorded without its value.
func (s *Server) refusedTarget(k *keyRequest) audit.Target {
	t := audit.Target{Domain: k.domain, Rule: k.rule, Limit: k.limit, Key: k.key}
	if t.Key != "" || len(k.entries) == 0 {
		return t
	}
	t.Key = withoutValues(k.entries)
	if set := s.engine.Rules(); set != nil {
		if rule, key := set.Domain(k.domain).Match(k.entries, nil); rule != nil {
			t.Key = string(key)
		}
	}
	return t
}

// withoutValues returns the text of entries, with dots in place of their values.
func withoutValues(entries []rules.Entry) string {
	names := slices.Clone(entries)
	for i := range names {
		names[i].Value = "..."
	}
	return string(rules.AppendKey(nil, names))
}

const maxParameters = 24

// settleParameter is the parameter with the ID that a POST settles, instead of refunding.
const settleParameter = "settle"

// decodeKeyRequest returns a request that identifies one key. If it is invalid, what could
// be decoded of it is returned too.
func decodeKeyRequest(r *http.Request) (*keyRequest, error) {
	k, err := decodeKeyParameters(r)
	if err != nil {
		return k, err
	}
	return k, k.check()
}

func decodeKeyParameters(r *http.Request) (k *keyRequest, err error) {
	k = &keyRequest{}
	switch r.Method {
	case http.MethodDelete:
		k.cost = penstock.Reset
	case http.MethodPost:
		k.cost = -1
	}
	units := func(text string) error {
		units, err := strconv.ParseInt(text, 10, 64)
		if err != nil || units < 0 || r.Method != http.MethodPost {
			return errors.New("want a whole number, 1 or more, with POST")
		}
		k.cost = -units
		return nil
	}
	k.has, err = decodeWithEntries(r, map[string]func(string) error{
		"rule": text(&k.rule), "limit": text(&k.limit), "key": text(&k.key), "domain": text(&k.domain),
		"reason": text(&k.reason), settleParameter: text(&k.id), "units": units,
	}, &k.entries)
	if err != nil {
		return k, err
	}
	return k, k.decodeSettlement(r.Method)
}

// decodeSettlement makes a POST with an ID settle its units.
func (k *keyRequest) decodeSettlement(method string) error {
	switch {
	case !k.has[settleParameter] && k.has["units"] && k.cost == 0:
		return &parameterError{"units", "want a whole number, 1 or more, with POST"}
	case !k.has[settleParameter]:
		return nil
	case method != http.MethodPost || k.id == "":
		return &parameterError{settleParameter, "want the ID of a take, with POST"}
	case !k.has["units"]:
		return &parameterError{"units", "want the units that were used"}
	}
	k.cost = -k.cost
	return nil
}

// check returns an error unless the parameters identify one key.
func (k *keyRequest) check() error {
	given := 0
	for _, name := range []string{"rule", "limit", "domain"} {
		if k.has[name] {
			given++
		}
	}
	switch {
	case given != 1:
		return &parameterError{"rule", "want one of rule, limit and domain"}
	case len(k.entries) > 0 && !k.has["domain"]:
		name := k.entries[0].Key
		return &parameterError{name, fmt.Sprintf("unknown parameter %.80q; entries of a descriptor need a domain", name)}
	case len(k.entries) > 0 && k.has["key"]:
		return &parameterError{"key", "want either a key or entries with a domain"}
	case k.key == "" && k.has["limit"]:
		return &parameterError{"key", "want a key with a limit"}
	}
	if err := k.parseEntries(); err != nil {
		return err
	}
	return k.checkReason()
}

// checkReason returns an error unless a refund or reset has a reason, and a peek has none.
func (k *keyRequest) checkReason() error {
	switch {
	case k.cost != 0 || k.id != "":
		return checkReason(k.reason)
	case k.has["reason"]:
		return &parameterError{"reason", "want a reason with POST and DELETE only"}
	}
	return nil
}

// parseEntries reads the entries of a descriptor from the key. Only there can they have
// names that are names of parameters too.
func (k *keyRequest) parseEntries() (err error) {
	switch {
	case !k.has["domain"]:
		return nil
	case k.has["key"]:
		if k.entries, err = rules.ParseDescriptor(k.key); err != nil {
			return &parameterError{"key", err.Error()}
		}
	case len(k.entries) == 0:
		return &parameterError{"domain", "want entries with a domain, such as remote_address=203.0.113.9"}
	}
	return nil
}

// KeyState is the response of /v1/keys.
type KeyState struct {
	Rule  string `json:"rule,omitempty"`
	Mode  string `json:"mode,omitempty"` // "shadow" if the rule never denies
	Limit string `json:"limit,omitempty"`
	Key   string `json:"key,omitempty"`

	// WouldAllow is whether a request for one unit would be granted now, and
	// RetryAfter when it will be: in seconds, and null for never.
	WouldAllow bool            `json:"would_allow"`
	RetryAfter json.RawMessage `json:"retry_after"`
	Decision   json.RawMessage `json:"decision"`

	// Held is how many permits of a concurrent limit are held, as the store knows; null for
	// other limits.
	Held *int64 `json:"held,omitempty"`

	// Override is the one that applies to the key. Of a limit that it replaces, Limit
	// is the new one.
	Override *Override `json:"override,omitempty"`

	// If the rule has further limits, Of is its name, Rule that of its tightest limit, which
	// the rest is about, and Also are the states under its others.
	Of   string      `json:"of,omitempty"`
	Also []*KeyState `json:"also,omitempty"`

	next penstock.Decision // about one unit
}

// peek returns the state of the key. The counters of requests do not include it.
func (s *Server) peek(ctx context.Context, limits []keyTarget) (*KeyState, error) {
	ds := make([]penstock.Decision, len(limits))
	for i, t := range limits {
		var err error
		if ds[i], err = s.peekUnits(ctx, t); err != nil {
			return nil, err
		}
	}
	return s.stateAfter(ctx, limits, ds)
}

// stateAfter returns the state of the key after a decision under each of its limits.
func (s *Server) stateAfter(ctx context.Context, limits []keyTarget, ds []penstock.Decision) (*KeyState, error) {
	states := make([]*KeyState, len(limits))
	for i, t := range limits {
		next, err := s.nextUnit(ctx, t, ds[i])
		if err != nil {
			return nil, err
		}
		states[i] = t.state(ds[i], next)
	}
	return combine(states), nil
}

// combine returns the state under the tightest limit of a rule, with the states under its others.
func combine(states []*KeyState) *KeyState {
	most := 0
	for i := range states {
		if states[i].tighterThan(states[most]) {
			most = i
		}
	}
	tightest := states[most]
	if len(states) > 1 {
		tightest.Of = states[0].Rule
		tightest.Also = slices.Delete(states, most, most+1) // not before: it may move another to the front
	}
	return tightest
}

// tighterThan reports whether a limit says more about the next unit than another one of the rule. A ban
// says most: neither time nor a refund ends it.
func (state *KeyState) tighterThan(other *KeyState) bool {
	if banned := state.isBanned(); banned != other.isBanned() {
		return banned
	}
	return state.next.TighterThan(other.next)
}

func (state *KeyState) isBanned() bool {
	return state.Override != nil && state.Override.Limit == overrides.Banned.String()
}

// nextUnit returns when a request for one unit will be granted; 0 is now. Peeks do not
// say that, so it requests a unit if none remains that may be taken. If there is one after all, it is
// refunded, even if the caller has gone.
func (s *Server) nextUnit(ctx context.Context, t keyTarget, d penstock.Decision) (time.Duration, error) {
	if d.Remaining > t.keepFree() {
		return 0, nil
	}
	if t.limit.HasPermits() {
		return s.nextPermit(ctx, t)
	}
	d, err := s.takeUnits(ctx, t, 1, "")
	if err != nil || !d.Allowed {
		return d.RetryAfter, err
	}
	if d.Granted > 0 {
		_, err = s.takeUnits(context.WithoutCancel(ctx), t, -1, "")
	}
	return 0, err
}

// nextPermit is nextUnit under a concurrent limit, where only an ID can take permits.
func (s *Server) nextPermit(ctx context.Context, t keyTarget) (time.Duration, error) {
	r := penstock.Request{Key: t.key, Limit: t.limit, Cost: 1, ID: rand.Text()}
	d, err := s.engine.Store().Take(ctx, r)
	if err != nil || !d.Allowed {
		return d.RetryAfter, err
	}
	r.Cost = -1
	_, err = s.engine.Store().Take(context.WithoutCancel(ctx), r)
	return 0, err
}

func (s *Server) peekUnits(ctx context.Context, t keyTarget) (penstock.Decision, error) {
	return s.takeUnits(ctx, t, 0, "")
}

// takeUnits has the store decide, or settle what was taken under an ID. A rule may be stored under
// another limit than its own.
func (s *Server) takeUnits(ctx context.Context, t keyTarget, cost int64, settle string) (penstock.Decision, error) {
	switch {
	case t.rule != nil && settle != "":
		return s.engine.SettleRule(ctx, t.rule, t.key, settle, cost)
	case t.rule != nil:
		return s.engine.TakeRule(ctx, t.rule, t.key, cost)
	}
	r := penstock.Request{Key: t.key, Limit: t.limit, Cost: cost, ID: settle, Settle: settle != ""}
	d, err := s.engine.Store().Take(ctx, r)
	s.engine.Denials.ForgetReturned(&r)
	return d, err
}

func (t *keyTarget) state(d penstock.Decision, next time.Duration) *KeyState {
	state := &KeyState{
		Limit: t.limit.String(), Key: t.key, WouldAllow: next == 0, RetryAfter: httpserver.AppendSeconds(nil, next),
		Decision: append(httpserver.AppendDecision([]byte{'{'}, &d), '}'),
		next:     penstock.Decision{Allowed: next == 0, Remaining: d.Remaining, RetryAfter: next, ResetAfter: d.ResetAfter},
	}
	if t.limit.HasPermits() {
		held := heldPermits(&d)
		state.Held = &held
	}
	if t.rule != nil {
		state.Rule = t.rule.Name
		if t.rule.Shadow {
			state.Mode = "shadow"
		}
	}
	if t.override != nil {
		state.setOverride(t.override)
	}
	return state
}

// setOverride adds the override that applies to the key, and what it does to one unit.
func (state *KeyState) setOverride(e *overrides.Entry) {
	o := newOverride(e.Listed())
	state.Override = &o
	switch e.Kind {
	case overrides.Unlimited:
		state.next = penstock.Decision{Allowed: true, Remaining: math.MaxInt64}
	case overrides.Banned:
		state.next = penstock.Decision{RetryAfter: e.Remaining()}
	default:
		return
	}
	state.WouldAllow, state.RetryAfter = state.next.Allowed, httpserver.AppendSeconds(nil, state.next.RetryAfter)
}

// auditTarget returns the key for the audit log.
func (t *keyTarget) auditTarget() audit.Target {
	target := audit.Target{Limit: t.limit.String(), Key: t.key}
	if t.rule != nil {
		target.Rule, target.Limit = t.rule.Name, t.limit.WithName("").String()
	}
	return target
}

// A parameterError means that a parameter of the URL is invalid.
type parameterError struct{ name, problem string }

func (e *parameterError) Error() string { return e.problem }

// asParameterError returns an error about the body as one about no parameter, or nil.
func asParameterError(err error) error {
	if err == nil {
		return nil
	}
	return &parameterError{"", err.Error()}
}

// problemOf returns the problem of an error.
func problemOf(err error) httplimit.Problem {
	p := httplimit.Problem{Status: http.StatusServiceUnavailable, Detail: err.Error()}
	var parameter *parameterError
	var field *penstock.FieldError
	switch {
	case errors.As(err, &parameter):
		p.Status, p.Detail, p.Parameter = http.StatusBadRequest, parameter.problem, parameter.name
	case errors.As(err, &field):
		p.Status, p.Detail, p.Parameter = http.StatusBadRequest, strings.TrimPrefix(p.Detail, "penstock: "), "limit"
	case errors.Is(err, engine.ErrNoSettle), errors.Is(err, penstock.ErrBadCost):
		p.Status, p.Parameter = http.StatusBadRequest, settleParameter
	case errors.Is(err, penstock.ErrUnknownID):
		p.Status, p.Parameter = http.StatusNotFound, settleParameter
		p.Detail = "nothing was taken under this ID, or it is no longer remembered"
	case errors.Is(err, overrides.ErrFull):
		p.Status = http.StatusInsufficientStorage
	case errors.Is(err, httpserver.ErrBadQuery), errors.Is(err, engine.ErrNoDomain):
		p.Status = http.StatusBadRequest
	case isNotFound(err):
		p.Status = http.StatusNotFound
	}
	if partial, ok := errors.AsType[*partialError](err); ok {
		p = problemOf(partial.cause)
		p.Detail = partial.text(p.Detail)
	}
	return p
}

// isNotFound reports whether a rule, a key of it or an override does not exist.
func isNotFound(err error) bool {
	_, noRule := errors.AsType[*notFoundError](err)
	_, noKey := errors.AsType[*rules.KeyError](err)
	return noRule || noKey || errors.Is(err, engine.ErrNoRules) || errors.Is(err, overrides.ErrNotFound)
}
