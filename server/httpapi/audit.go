package httpapi

import (
	"net/http"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// entry returns an entry of the audit log for a request.
func (s *Server) entry(r *http.Request) audit.Entry {
	return auth.HTTPEntry(r, s.engine.Identify(auth.HTTPCaller(r)))
}

// decide decides the requests of a call, with a record in the audit log of those that
// refund or reset.
func (s *Server) decide(c *call, r *http.Request, refunds bool) (response takecall.Reply, err error) {
	if !refunds {
		return c.decide(r.Context())
	}
	err = s.options.Audit.Record(s.refundEntries(c, r), func(ps []*audit.Pending) error {
		if response, err = c.decide(r.Context()); err == nil {
			c.recordRefunds(ps, &response)
		}
		return err
	})
	return response, err
}

// refundEntries returns an entry for each refund and reset of a call, in their order.
func (s *Server) refundEntries(c *call, r *http.Request) (entries []audit.Entry) {
	e := s.entry(r)
	for i := range c.requests {
		entries = append(entries, c.requests[i].AuditEntries(e)...)
	}
	return entries
}

// recordRefunds records how the actions of refundEntries ended.
func (c *call) recordRefunds(ps []*audit.Pending, response *takecall.Reply) {
	if c.mode == single {
		c.requests[0].RecordRefunds(ps, response)
		return
	}
	for i := range c.requests {
		ps = c.requests[i].RecordRefunds(ps, &response.Parts[i])
	}
}
