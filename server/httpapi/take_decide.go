package httpapi

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A takeResponse is the response to a request, to one of its descriptors, or to a
// list of requests.
type takeResponse struct {
	decision penstock.Decision
	limited  bool           // false if no limit applied; then only Allowed has a meaning
	limit    penstock.Limit // zero if there are parts
	cost     int64          // what was requested; zero if there are parts
	rule     *rules.Rule    // nil if the request carried its limit
	parts    []takeResponse // of descriptors, or of the requests of a list
}

// shadow reports whether the rule is in shadow mode, which never denies.
func (r *takeResponse) shadow() bool { return r.rule != nil && r.rule.Shadow }

// decide decides the requests of the call. It calls mayRefund if the right of the
// caller matters for a limit that it brings.
func (c *call) decide(ctx context.Context, e *engine.Engine, mayRefund func() bool) (takeResponse, error) {
	switch c.mode {
	case each:
		return c.decideEach(ctx, e, mayRefund)
	case all:
		return c.decideAll(ctx, e, mayRefund)
	}
	t := &c.requests[0]
	if t.fields.has(ruleFields) {
		return c.decideByRules(ctx, e, t)
	}
	r, err := t.storeRequest(e, mayRefund)
	if err != nil {
		return takeResponse{}, err
	}
	d, err := e.Take(ctx, r, mayRefund)
	return storeResponse(&r, d), err
}

// storeResponse returns the response to a request with a limit.
func storeResponse(r *penstock.Request, d penstock.Decision) takeResponse {
	return takeResponse{decision: d, limited: true, limit: r.Limit, cost: r.Cost}
}

func (c *call) decideByRules(ctx context.Context, e *engine.Engine, t *takeRequest) (takeResponse, error) {
	if err := t.decideByRules(ctx, e, t.descriptors, &c.result); err != nil {
		return takeResponse{}, err
	}
	return combine(!c.result.OverLimit, responsesOf(c.result.Statuses, t.descriptors)), nil
}

// decideByRules decides or settles descriptors in the domain of the request, under its ID
// if it has one.
func (t *takeRequest) decideByRules(ctx context.Context, e *engine.Engine, ds []engine.Descriptor, r *engine.Result) error {
	switch {
	case t.settle:
		return e.Settle(ctx, t.domain, t.id, ds, r)
	case t.id != "":
		return e.DecideWithID(ctx, t.domain, t.id, ds, r)
	}
	return e.Decide(ctx, t.domain, ds, r)
}

// decideEach decides every request by itself: those with a limit in one call of
// the store, those by rules one after another.
func (c *call) decideEach(ctx context.Context, e *engine.Engine, mayRefund func() bool) (takeResponse, error) {
	if err := c.prepareStoreRequests(e, mayRefund); err != nil {
		return takeResponse{}, err
	}
	if err := c.checkByRules(ctx, e); err != nil {
		return takeResponse{}, err
	}
	if err := e.TakeEach(ctx, c.storeRequests, c.decisions, mayRefund); err != nil {
		return takeResponse{}, c.locateRefusal(err)
	}
	parts := make([]takeResponse, len(c.requests))
	taken := 0
	for i := range c.requests {
		if t := &c.requests[i]; t.fields.has(ruleFields) {
			part, err := c.decideByRules(ctx, e, t)
			if err != nil {
				return takeResponse{}, inRequest(i, err)
			}
			parts[i] = part
		} else {
			parts[i] = storeResponse(&c.storeRequests[taken], c.decisions[taken])
			taken++
		}
	}
	return combine(allAllowed(parts), parts), nil
}

// prepareStoreRequests collects the requests with a limit, and validates them
// before any of them is charged.
func (c *call) prepareStoreRequests(e *engine.Engine, mayRefund func() bool) error {
	for i := range c.requests {
		t := &c.requests[i]
		if t.fields.has(ruleFields) {
			continue
		}
		r, err := t.storeRequest(e, mayRefund)
		if err == nil {
			err = r.ValidateShape() // the limit is valid: it comes from the cache
		}
		if err != nil {
			return inRequest(i, err)
		}
		c.storeRequests = append(c.storeRequests, r)
	}
	c.decisions = append(c.decisions, make([]penstock.Decision, len(c.storeRequests))...)
	return nil
}

// checkByRules validates the requests by rules before any request is charged.
func (c *call) checkByRules(ctx context.Context, e *engine.Engine) error {
	for i := range c.requests {
		t := &c.requests[i]
		if !t.fields.has(ruleFields) {
			continue
		}
		if err := e.Check(ctx, t.domain, t.id, t.settle, t.descriptors); err != nil {
			return inRequest(i, err)
		}
	}
	return nil
}

// decideAll grants all requests or charges none.
func (c *call) decideAll(ctx context.Context, e *engine.Engine, mayRefund func() bool) (takeResponse, error) {
	if err := c.checkUniform(); err != nil {
		return takeResponse{}, err
	}
	if c.requests[0].fields.has(ruleFields) {
		return c.decideAllByRules(ctx, e)
	}
	if err := c.prepareStoreRequests(e, mayRefund); err != nil {
		return takeResponse{}, err
	}
	if err := e.TakeAll(ctx, c.storeRequests, c.decisions, mayRefund); err != nil {
		return takeResponse{}, c.locateInvalid(c.locateRefusal(err))
	}
	parts := make([]takeResponse, len(c.storeRequests))
	for i, d := range c.decisions {
		parts[i] = storeResponse(&c.storeRequests[i], d)
	}
	return combine(allAllowed(parts), parts), nil
}

// checkUniform returns an error unless all requests carry a limit, or all go by
// the rules of one domain.
func (c *call) checkUniform() error {
	first := &c.requests[0]
	for i := range c.requests {
		switch t := &c.requests[i]; {
		case t.fields.has(ruleFields) != first.fields.has(ruleFields):
			return inRequest(i, &fieldError{
				problem: "mode \"all\" cannot mix requests with a limit and requests by rules",
			})
		case t.domain != first.domain:
			return inRequest(i, &fieldError{
				path: []string{"domain"}, problem: "mode \"all\" wants the same domain in all requests",
			})
		case t.id != first.id && t.fields.has(ruleFields):
			return inRequest(i, &fieldError{
				path: []string{"id"}, problem: "mode \"all\" wants the same id in all requests", kind: ProblemBadCost,
			})
		}
	}
	return nil
}

// locateRefusal adds to a refusal by the engine which request it is about.
func (c *call) locateRefusal(err error) error {
	var refused *engine.LimitRefusal
	var about *penstock.RequestError
	if !errors.As(err, &refused) || !errors.As(err, &about) {
		return err
	}
	taken := 0
	for i := range c.requests {
		if c.requests[i].fields.has(ruleFields) {
			continue
		}
		if taken == about.Index {
			return inRequest(i, refused)
		}
		taken++
	}
	return err
}

// locateInvalid adds to the error of a TakeAll which request is invalid. If each of
// them is valid alone, the error is about the list.
func (c *call) locateInvalid(err error) error {
	for i := range c.storeRequests {
		if err := penstock.ValidateAll(c.storeRequests[i:i+1], c.decisions[i:i+1]); err != nil {
			return inRequest(i, err)
		}
	}
	return aboutList(err)
}

// aboutList returns an error about a field as one about the list.
func aboutList(err error) error {
	var field *fieldError
	if err = asFieldError(err); errors.As(err, &field) && field.kind != ProblemLimitRefused {
		field.path = []string{"requests"}
	}
	return err
}

// decideAllByRules decides the descriptors of all requests in one call.
func (c *call) decideAllByRules(ctx context.Context, e *engine.Engine) (takeResponse, error) {
	var descriptors []engine.Descriptor
	for i := range c.requests {
		descriptors = append(descriptors, c.requests[i].descriptors...)
	}
	if err := c.requests[0].decideByRules(ctx, e, descriptors, &c.result); err != nil {
		return takeResponse{}, aboutList(err)
	}
	rest := responsesOf(c.result.Statuses, descriptors)
	parts := make([]takeResponse, len(c.requests))
	for i := range c.requests {
		n := len(c.requests[i].descriptors)
		parts[i] = combine(allAllowed(rest[:n]), rest[:n:n])
		rest = rest[n:]
	}
	return combine(!c.result.OverLimit, parts), nil
}

func allAllowed(parts []takeResponse) bool {
	for i := range parts {
		if !parts[i].decision.Allowed {
			return false
		}
	}
	return true
}

// responsesOf returns the responses of descriptors. A rule in shadow mode allows
// whatever its limit decided.
func responsesOf(statuses []engine.Status, descriptors []engine.Descriptor) []takeResponse {
	parts := make([]takeResponse, len(statuses))
	for i, s := range statuses {
		s.Decision.Allowed = !s.OverLimit
		parts[i] = takeResponse{decision: s.Decision, rule: s.Rule, cost: descriptors[i].Cost}
		if s.Limited() {
			parts[i].limited, parts[i].limit = true, s.Rule.Limit
		}
	}
	return parts
}

// combine returns one response for several: its decision is the tightest of those
// that agree with the outcome.
func combine(allowed bool, parts []takeResponse) takeResponse {
	ds := make([]penstock.Decision, 0, len(parts))
	for i := range parts {
		if p := &parts[i]; p.limited && !p.shadow() && p.decision.Allowed == allowed {
			ds = append(ds, p.decision)
		}
	}
	r := takeResponse{decision: penstock.Tightest(ds), limited: len(ds) > 0, parts: parts}
	r.decision.Allowed = allowed
	return r
}
