package httpapi

import (
	"net/http"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// writeProblem writes the problem of a request, and logs it if the request is at fault.
func (s *Server) writeProblem(w http.ResponseWriter, r *http.Request, p httplimit.Problem) {
	text := p.Detail
	if at := p.Pointer + p.Parameter; at != "" {
		text = at + ": " + text
	}
	s.options.Requests.Invalid(problemTypes[p.Type].reason, text, r.RemoteAddr)
	if p.Type == ProblemTooLarge {
		w.Header().Set("Connection", "close") // rather than read the rest of the body
	}
	httpserver.WriteProblem(w, p)
}

// logDenials logs the denied requests of a call.
func (s *Server) logDenials(c *call, r *takecall.Reply) {
	switch {
	case c.mode == single:
		s.logDenial(&c.requests[0].Call, r)
	case c.mode == all && r.Decision.Allowed: // parts may deny in shadow mode
	default:
		for i := range c.requests {
			s.logDenial(&c.requests[i].Call, &r.Parts[i])
		}
	}
}

// logDenial logs a request if it is denied: by the limit that it carries, or by those of its
// descriptors that denied it.
func (s *Server) logDenial(t *takecall.Call, r *takecall.Reply) {
	switch {
	case r.Decision.Allowed:
	case t.ByRules():
		for i := range r.Parts {
			if p := &r.Parts[i]; !p.Decision.Allowed {
				s.options.Requests.DeniedByRule(p.Rule, t.Descriptors[i].Entries, &p.Decision)
			}
		}
	default:
		s.options.Requests.Denied(r.Limit, t.Request.Key, &r.Decision)
	}
}
