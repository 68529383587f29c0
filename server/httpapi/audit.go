package httpapi

import (
	"net/http"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/internal/auth"
)

// reasonHeader is the header with the reason for a refund or reset.
const reasonHeader = "Penstock-Reason"

// entry returns an entry of the audit log for a request.
func (s *Server) entry(r *http.Request) audit.Entry {
	i := s.engine.Identify(auth.HTTPCaller(r))
	return audit.Entry{
		API: "http", Verb: r.Method + " " + r.URL.Path, Actor: auth.HTTPActor(r, i), Reason: r.Header.Get(reasonHeader),
	}
}

// decide decides the requests of a call, with a record in the audit log of those that
// refund or reset.
func (s *Server) decide(c *call, r *http.Request, refunds bool, mayRefund func() bool) (takeResponse, error) {
	if !refunds {
		return c.decide(r.Context(), s.engine, mayRefund)
	}
	ps, err := s.audit.BeginAll(s.refundEntries(c, r))
	if err != nil {
		return takeResponse{}, err
	}
	response, err := c.decide(r.Context(), s.engine, mayRefund)
	if err != nil {
		audit.FailAll(ps, err)
		return response, err
	}
	c.recordRefunds(ps, &response)
	return response, nil
}

// refundEntries returns an entry for each refund and reset of a call, in their order.
func (s *Server) refundEntries(c *call, r *http.Request) (entries []audit.Entry) {
	e := s.entry(r)
	for i := range c.requests {
		switch t := &c.requests[i]; {
		case t.fields.has(ruleFields):
			entries = append(entries, e.OfDescriptors(t.domain, t.descriptors)...)
		case t.refunds():
			entries = append(entries, e.OfRequest(t.limit, t.key, t.cost))
		}
	}
	return entries
}

// recordRefunds records how the actions of refundEntries ended.
func (c *call) recordRefunds(ps []*audit.Pending, response *takeResponse) {
	for i := range c.requests {
		t, part := &c.requests[i], response
		if c.mode != single {
			part = &response.parts[i]
		}
		switch {
		case t.fields.has(ruleFields):
			ps = t.recordDescriptors(ps, part.parts)
		case t.refunds():
			ps[0].Return(nil, &part.decision)
			ps = ps[1:]
		}
	}
}

// recordDescriptors records how the descriptors of a request ended, and returns the actions
// that are left.
func (t *takeRequest) recordDescriptors(ps []*audit.Pending, parts []takeResponse) []*audit.Pending {
	for i := range t.descriptors {
		if t.descriptors[i].Cost < 0 {
			ps[0].Return(parts[i].rule, &parts[i].decision)
			ps = ps[1:]
		}
	}
	return ps
}
