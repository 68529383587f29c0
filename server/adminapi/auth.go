package adminapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// guard lets only those to an endpoint who may ask it, and in the way it is asked.
func (d *Server) guard(e endpoint) http.HandlerFunc {
	methods := strings.Split(e.methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		switch {
		case !e.open && !d.knows(r):
			h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
			httpserver.WriteProblem(w, httplimit.Problem{
				Status: http.StatusUnauthorized,
				Detail: "want Authorization: Bearer and the server's token",
			})
		case !slices.Contains(methods, r.Method):
			httpserver.MethodNotAllowed(w, r, e.methods)
		default:
			defer httpserver.SuspendTimeout(r)() // profiles take their time
			e.answer(w, r)
		}
	}
}

// knows reports whether the caller may see and change things here.
func (d *Server) knows(r *http.Request) bool {
	from, token := auth.HTTPCaller(r)
	return d.options.Loopback && from.IsLoopback() || d.judge.ValidToken(token)
}
