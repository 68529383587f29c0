package httpapi

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/takecall"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// decide decides the requests of the call, and logs denials.
func (c *call) decide(ctx context.Context) (takecall.Reply, error) {
	switch c.mode {
	case each:
		return c.decideEach(ctx)
	case all:
		return c.decideAll(ctx)
	}
	t := &c.requests[0]
	if t.ByRules() {
		return c.decideByRules(ctx, t)
	}
	r, err := t.storeRequest(c.server.engine, c.mayRefund)
	if err != nil {
		return takecall.Reply{}, err
	}
	return c.decideUnderLimit(ctx, r)
}

func (c *call) decideUnderLimit(ctx context.Context, r penstock.Request) (takecall.Reply, error) {
	d, err := c.server.engine.Take(ctx, r, c.mayRefund)
	if err != nil {
		return takecall.Reply{}, err
	}
	return c.underLimit(&r, &d), nil
}

// underLimit returns the reply to a request with a limit, and logs a denial.
func (c *call) underLimit(r *penstock.Request, d *penstock.Decision) takecall.Reply {
	if !d.Allowed {
		c.server.options.Requests.Denied(r.Limit, r.Key, d)
	}
	return takecall.UnderLimit(r, *d)
}

func (c *call) decideByRules(ctx context.Context, t *takeRequest) (takecall.Reply, error) {
	if err := t.Decide(ctx, c.server.engine, t.Descriptors, &c.result); err != nil {
		return takecall.Reply{}, err
	}
	c.server.options.Requests.DeniedByRules(t.Descriptors, &c.result)
	return takecall.Combine(!c.result.OverLimit, t.UnderRules(&c.result, t.Descriptors)), nil
}

// decideEach decides every request by itself: those with a limit in one call of
// the store, those by rules one after another.
func (c *call) decideEach(ctx context.Context) (takecall.Reply, error) {
	if err := c.prepare(ctx); err != nil {
		return takecall.Reply{}, err
	}
	if err := c.server.engine.TakeEach(ctx, c.storeRequests, c.decisions, c.mayRefund); err != nil {
		return takecall.Reply{}, c.locateRefusal(err)
	}
	parts := make([]takecall.Reply, len(c.requests))
	taken := 0
	for i := range c.requests {
		if t := &c.requests[i]; t.ByRules() {
			part, err := c.decideByRules(ctx, t)
			if err != nil {
				return takecall.Reply{}, inRequest(i, err)
			}
			parts[i] = part
		} else {
			parts[i] = c.underLimit(&c.storeRequests[taken], &c.decisions[taken])
			taken++
		}
	}
	return takecall.Combine(takecall.AllAllowed(parts), parts), nil
}

// prepare validates the requests before any of them is charged, and collects those with a limit.
func (c *call) prepare(ctx context.Context) error {
	for i := range c.requests {
		if err := c.prepareRequest(ctx, &c.requests[i]); err != nil {
			return inRequest(i, err)
		}
	}
	c.decisions = append(c.decisions, make([]penstock.Decision, len(c.storeRequests))...)
	return nil
}

func (c *call) prepareRequest(ctx context.Context, t *takeRequest) error {
	if t.ByRules() {
		return c.server.engine.Check(ctx, t.Domain, t.Terms(), t.Descriptors)
	}
	r, err := t.storeRequest(c.server.engine, c.mayRefund)
	if err != nil {
		return err
	}
	c.storeRequests = append(c.storeRequests, r)
	return r.Validate()
}

// decideAll grants all requests or charges none.
func (c *call) decideAll(ctx context.Context) (takecall.Reply, error) {
	if err := c.checkUniform(); err != nil {
		return takecall.Reply{}, err
	}
	if c.requests[0].ByRules() {
		return c.decideAllByRules(ctx)
	}
	if err := c.prepare(ctx); err != nil {
		return takecall.Reply{}, err
	}
	if err := c.server.engine.TakeAll(ctx, c.storeRequests, c.decisions, c.mayRefund); err != nil {
		return takecall.Reply{}, c.locateInvalid(c.locateRefusal(err))
	}
	parts := make([]takecall.Reply, len(c.storeRequests))
	for i := range parts {
		parts[i] = c.underLimit(&c.storeRequests[i], &c.decisions[i])
	}
	return takecall.Combine(takecall.AllAllowed(parts), parts), nil
}

// checkUniform returns an error unless all requests carry a limit, or all go by
// the rules of one domain.
func (c *call) checkUniform() error {
	for i := range c.requests {
		if err := c.requests[i].checkBeside(&c.requests[0]); err != nil {
			return inRequest(i, err)
		}
	}
	return nil
}

// checkBeside returns an error unless the request can be decided in one step with the first.
func (t *takeRequest) checkBeside(first *takeRequest) error {
	switch {
	case t.ByRules() != first.ByRules():
		return &fieldError{problem: "mode \"all\" cannot mix requests with a limit and requests by rules"}
	case t.Domain != first.Domain:
		return in("domain", &fieldError{problem: "mode \"all\" wants the same domain in all requests"})
	case !t.ByRules():
		return nil
	case t.Request.ID != first.Request.ID:
		return in("id", &fieldError{problem: "mode \"all\" wants the same id in all requests", kind: ProblemBadCost})
	case t.Request.AtMost:
		return in("at_most", &fieldError{problem: "at_most cannot be used in an all-or-nothing request", kind: ProblemBadCost})
	case t.Terms() != first.Terms():
		problem := "mode \"all\" wants the same keep_free and max_delay in all requests"
		return in("keep_free", &fieldError{problem: problem, kind: ProblemBadCost})
	}
	return nil
}

// locateRefusal adds to a refusal by the engine which request it is about.
func (c *call) locateRefusal(err error) error {
	var refused *requestlimits.Refusal
	var about *penstock.RequestError
	if !errors.As(err, &refused) || !errors.As(err, &about) {
		return err
	}
	at := about.Index // among the requests with a limit
	for i := 0; i <= at; i++ {
		if c.requests[i].ByRules() {
			at++
		}
	}
	return inRequest(at, refused)
}

// locateInvalid adds to the error of a TakeAll which request is invalid. If each of
// them is valid alone, the error is about the list.
func (c *call) locateInvalid(err error) error {
	for i := range c.storeRequests {
		if err := penstock.ValidateBatch(c.storeRequests[i:i+1], c.decisions[i:i+1], true); err != nil {
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
func (c *call) decideAllByRules(ctx context.Context) (takecall.Reply, error) {
	var descriptors []engine.Descriptor
	for i := range c.requests {
		descriptors = append(descriptors, c.requests[i].Descriptors...)
	}
	if err := c.requests[0].Decide(ctx, c.server.engine, descriptors, &c.result); err != nil {
		return takecall.Reply{}, aboutList(err)
	}
	c.server.options.Requests.DeniedByRules(descriptors, &c.result)
	rest := c.requests[0].UnderRules(&c.result, descriptors)
	parts := make([]takecall.Reply, len(c.requests))
	for i := range c.requests {
		n := len(c.requests[i].Descriptors)
		parts[i] = takecall.Combine(takecall.AllAllowed(rest[:n]), rest[:n:n])
		rest = rest[n:]
	}
	return takecall.Combine(!c.result.OverLimit, parts), nil
}
