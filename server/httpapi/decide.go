package httpapi

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A result is the answer to a question, or to one descriptor of it, or to all
// questions of a call together.
type result struct {
	decision penstock.Decision
	limited  bool           // whether any limit applied; else only Allowed means something
	limit    penstock.Limit // unless there are parts
	rule     *rules.Rule    // nil where the request named its limit
	parts    []result
}

// shadow reports whether the result was decided only to see what it would be.
func (r *result) shadow() bool { return r.rule != nil && r.rule.Shadow }

// decide has the judge answer the questions.
func (c *call) decide(ctx context.Context, j *engine.Engine, limits *limitCache) (result, error) {
	switch c.mode {
	case each:
		return c.decideEach(ctx, j, limits)
	case all:
		return c.decideAll(ctx, j, limits)
	}
	q := &c.questions[0]
	if q.said.has(byRules) {
		return c.decideByRules(ctx, j, q)
	}
	r, err := q.request(limits)
	if err != nil {
		return result{}, err
	}
	d, err := j.Take(ctx, r)
	return result{decision: d, limited: true, limit: r.Limit}, err
}

func (c *call) decideByRules(ctx context.Context, j *engine.Engine, q *question) (result, error) {
	if err := j.Decide(ctx, q.domain, q.descriptors, &c.verdict); err != nil {
		return result{}, err
	}
	return together(!c.verdict.OverLimit, resultsOf(c.verdict.Statuses)), nil
}

// decideEach decides every question by itself, those about keys in one trip.
func (c *call) decideEach(ctx context.Context, j *engine.Engine, limits *limitCache) (result, error) {
	if err := c.prepareEach(limits); err != nil {
		return result{}, err
	}
	if err := c.checkRules(j); err != nil {
		return result{}, err
	}
	if err := j.TakeEach(ctx, c.requests, c.decisions); err != nil {
		return result{}, err
	}
	parts := make([]result, len(c.questions))
	passes, taken := true, 0
	for i := range c.questions {
		if q := &c.questions[i]; q.said.has(byRules) {
			part, err := c.decideByRules(ctx, j, q)
			if err != nil {
				return result{}, inRequest(i, err)
			}
			parts[i] = part
		} else {
			parts[i] = result{decision: c.decisions[taken], limited: true, limit: c.requests[taken].Limit}
			taken++
		}
		passes = passes && parts[i].decision.Allowed
	}
	return together(passes, parts), nil
}

// prepareEach collects the requests about keys. What is wrong with any of them is
// found before anything is charged.
func (c *call) prepareEach(limits *limitCache) error {
	for i := range c.questions {
		q := &c.questions[i]
		if q.said.has(byRules) {
			continue
		}
		r, err := q.request(limits)
		if err == nil {
			err = r.Validate()
		}
		if err != nil {
			return inRequest(i, err)
		}
		c.requests = append(c.requests, r)
	}
	c.decisions = append(c.decisions, make([]penstock.Decision, len(c.requests))...)
	return nil
}

// checkRules returns an error if a question is for rules, and there are none. It is
// asked before anything is charged.
func (c *call) checkRules(j *engine.Engine) error {
	for i := range c.questions {
		if c.questions[i].said.has(byRules) && j.Rules() == nil {
			return inRequest(i, engine.ErrNoRules)
		}
	}
	return nil
}

// decideAll decides the questions as one.
func (c *call) decideAll(ctx context.Context, j *engine.Engine, limits *limitCache) (result, error) {
	ruled := c.questions[0].said.has(byRules)
	for i := range c.questions {
		switch q := &c.questions[i]; {
		case q.said.has(byRules) != ruled:
			return result{}, inRequest(i, &fieldError{
				problem: "limits that requests name and limits of the rules cannot be decided as one",
			})
		case q.domain != c.questions[0].domain:
			return result{}, inRequest(i, &fieldError{
				path: []string{"domain"}, problem: "rules of different domains cannot be decided as one",
			})
		}
	}
	if ruled {
		return c.decideAllByRules(ctx, j)
	}
	if err := c.prepareEach(limits); err != nil {
		return result{}, err
	}
	if err := j.TakeAll(ctx, c.requests, c.decisions); err != nil {
		return result{}, c.locate(ctx, err)
	}
	parts := make([]result, len(c.requests))
	passes := true
	for i, d := range c.decisions {
		parts[i] = result{decision: d, limited: true, limit: c.requests[i].Limit}
		passes = passes && d.Allowed
	}
	return together(passes, parts), nil
}

// locate says which request stands in the way of a TakeAll, if it is one alone.
// Otherwise it is all of them together.
func (c *call) locate(ctx context.Context, err error) error {
	var d [1]penstock.Decision
	for i := range c.requests {
		if err := penstock.TakeAll(ctx, penstock.AllowAll, c.requests[i:i+1], d[:]); err != nil {
			return inRequest(i, err)
		}
	}
	var field *fieldError
	if err = asFieldError(err); errors.As(err, &field) {
		field.path = []string{"requests"}
	}
	return err
}

// decideAllByRules puts the descriptors of all questions into one.
func (c *call) decideAllByRules(ctx context.Context, j *engine.Engine) (result, error) {
	var descriptors []engine.Descriptor
	for i := range c.questions {
		descriptors = append(descriptors, c.questions[i].descriptors...)
	}
	if err := j.Decide(ctx, c.questions[0].domain, descriptors, &c.verdict); err != nil {
		return result{}, under("requests", err)
	}
	rest := resultsOf(c.verdict.Statuses)
	parts := make([]result, len(c.questions))
	for i := range c.questions {
		n := len(c.questions[i].descriptors)
		parts[i] = together(noneOver(rest[:n]), rest[:n:n])
		rest = rest[n:]
	}
	return together(!c.verdict.OverLimit, parts), nil
}

func noneOver(parts []result) bool {
	for i := range parts {
		if !parts[i].decision.Allowed {
			return false
		}
	}
	return true
}

// resultsOf returns the results of descriptors. One that is in shadow passes,
// whatever was decided.
func resultsOf(statuses []engine.Status) []result {
	parts := make([]result, len(statuses))
	for i, s := range statuses {
		s.Decision.Allowed = !s.OverLimit
		parts[i] = result{decision: s.Decision, rule: s.Rule}
		if s.Rule != nil && !s.Rule.Unlimited {
			parts[i].limited, parts[i].limit = true, s.Rule.Limit
		}
	}
	return parts
}

// together returns the result that speaks for several: the tightest of those
// that made the outcome what it is.
func together(passes bool, parts []result) result {
	ds := make([]penstock.Decision, 0, len(parts))
	for i := range parts {
		if p := &parts[i]; p.limited && !p.shadow() && p.decision.Allowed == passes {
			ds = append(ds, p.decision)
		}
	}
	r := result{decision: penstock.Tightest(ds), limited: len(ds) > 0, parts: parts}
	r.decision.Allowed = passes
	return r
}
