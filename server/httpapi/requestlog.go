package httpapi

import (
	"net/http"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
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
