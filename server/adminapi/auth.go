package adminapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// authorize returns the handler of an endpoint for authorized callers and allowed
// methods. It answers all other requests with 401 or 405.
func (s *Server) authorize(e endpoint) http.HandlerFunc {
	methods := strings.Split(e.methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		switch {
		case !e.public && !s.engine.MayRefund(auth.HTTPCaller(r)):
			h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
			httpserver.WriteProblem(w, httplimit.Problem{
				Status: http.StatusUnauthorized,
				Detail: "want the header Authorization: Bearer TOKEN",
			})
		case !slices.Contains(methods, r.Method):
			httpserver.MethodNotAllowed(w, r, e.methods)
		default:
			defer httpserver.SuspendTimeout(r)() // profiles take long
			e.handle(w, r)
		}
	}
}
