package httpapi

import (
	"net/http"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// writeProblem writes the problem of a request, and logs it if the request is at fault.
func (s *Server) writeProblem(w http.ResponseWriter, r *http.Request, p httplimit.Problem) {
	text := p.Detail
	if at := p.Pointer + p.Parameter; at != "" {
		text = at + ": " + text
	}
	s.requests.Invalid(reasons[p.Type], text, r.RemoteAddr)
	httpserver.WriteProblem(w, p)
}

// reasons maps the types of problems to the reasons for which requests are invalid. Other
// problems are not the request's fault.
var reasons = map[string]requestlog.Reason{
	ProblemMalformed:    requestlog.Malformed,
	ProblemBadLimit:     requestlog.BadLimit,
	ProblemBadKey:       requestlog.BadKey,
	ProblemBadCost:      requestlog.BadCost,
	ProblemForbidden:    requestlog.Forbidden,
	ProblemLimitRefused: requestlog.Forbidden,
	ProblemTooLarge:     requestlog.TooLarge,
	ProblemNotJSON:      requestlog.ContentType,
	ProblemNoRules:      requestlog.NoRules,
}

// logDenials logs the denied requests of a call.
func (s *Server) logDenials(c *call, r *takeResponse) {
	switch {
	case c.mode == single:
		s.logDenial(&c.requests[0], r)
	case c.mode == all && r.decision.Allowed: // parts may deny in shadow mode
	default:
		for i := range c.requests {
			s.logDenial(&c.requests[i], &r.parts[i])
		}
	}
}

// logDenial logs a request if it is denied: by the limit that it carries, or by those of its
// descriptors that denied it.
func (s *Server) logDenial(t *takeRequest, r *takeResponse) {
	switch {
	case r.decision.Allowed:
	case t.fields.has(ruleFields):
		for i := range r.parts {
			if p := &r.parts[i]; !p.decision.Allowed {
				s.requests.DeniedByRule(p.rule, t.descriptors[i].Entries, p.decision.RetryAfter)
			}
		}
	default:
		s.requests.Denied(r.limit, t.key, &r.decision)
	}
}
