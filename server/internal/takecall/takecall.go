// Package takecall is what callers of the HTTP and the RESP API can ask for: units of a key
// under a limit that they bring, or of descriptors by the rules of a domain. Each API parses
// calls and encodes replies in its own way; what a call means is written here, once.
package takecall

import (
	"context"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
)

// A Call asks for units under a limit, or by rules.
type Call struct {
	Limit   string           // as text; "" if the call goes by rules
	Request penstock.Request // without its limit; by rules only Cost and what Terms returns have a meaning

	Domain      string // "" if the call brings its limit
	Descriptors []engine.Descriptor

	Hurried bool // see engine.Terms
}

// ByRules reports whether the rules of a domain decide the call.
func (c *Call) ByRules() bool { return c.Domain != "" }

// Refunds reports whether the call refunds units or resets a key, which undoes a limit.
// Returning what was taken under an ID does not count: only the caller that took it knows the
// ID, and the store returns no more than it took.
func (c *Call) Refunds() bool {
	for i := range c.Descriptors {
		if c.Descriptors[i].Cost < 0 && !c.Descriptors[i].ReleaseOnly {
			return true
		}
	}
	return !c.ByRules() && c.Request.Cost < 0 && c.Request.ID == ""
}

// StoreRequest returns the request for the store, of a call that brings its limit. It calls
// mayRefund if the right of the caller matters for that limit.
func (c *Call) StoreRequest(e *engine.Engine, mayRefund func() bool) (penstock.Request, error) {
	r, err := e.RequestLimits().RequestUnder(c.Limit, mayRefund) // with a limit that is compiled already
	asked := &c.Request
	r.Key, r.Cost, r.ID, r.NewID, r.Hold = asked.Key, asked.Cost, asked.ID, asked.NewID, asked.Hold
	r.AtMost, r.Overdraw, r.Settle = asked.AtMost, asked.Overdraw, asked.Settle
	r.MaxDelay, r.KeepFree = asked.MaxDelay, asked.KeepFree
	return r, err
}

// Terms returns the terms of a call by rules.
func (c *Call) Terms() engine.Terms {
	r := &c.Request
	return engine.Terms{ID: r.ID, Settle: r.Settle, AtMost: r.AtMost, KeepFree: r.KeepFree, MaxDelay: r.MaxDelay, Hurried: c.Hurried}
}

// Decide decides or settles descriptors in the domain of the call.
func (c *Call) Decide(ctx context.Context, e *engine.Engine, ds []engine.Descriptor, r *engine.Result) error {
	return e.DecideOn(ctx, c.Domain, c.Terms(), ds, r)
}

// AuditEntries returns an entry for each refund and reset of the call, in their order.
func (c *Call) AuditEntries(e audit.Entry) []audit.Entry {
	switch {
	case c.ByRules():
		return e.OfDescriptors(c.Domain, c.Descriptors)
	case c.Refunds():
		return []audit.Entry{e.OfRequest(c.Limit, c.Request.Key, c.Request.Cost)}
	}
	return nil
}

// RecordRefunds records how the actions of AuditEntries ended, and returns those that are left.
func (c *Call) RecordRefunds(ps []*audit.Pending, r *Reply) []*audit.Pending {
	if !c.ByRules() {
		if !c.Refunds() {
			return ps
		}
		ps[0].Return(nil, &r.Decision)
		return ps[1:]
	}
	for i := range c.Descriptors {
		if c.Descriptors[i].Cost < 0 {
			ps[0].Return(r.Parts[i].Rule, &r.Parts[i].Decision)
			ps = ps[1:]
		}
	}
	return ps
}
