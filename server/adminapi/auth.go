package adminapi

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// authorize returns the handler of an endpoint for authorized callers and allowed
// methods. It answers all other requests with 401, 403, 405 or 429.
func (s *Server) authorize(e endpoint) http.HandlerFunc {
	methods := strings.Split(e.methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if !e.public {
			i, wait := s.identify(auth.HTTPCaller(r))
			if !i.MayRefund {
				s.rejectCaller(w, r, wait)
				return
			}
			r = withIdentity(r, i)
		}
		switch {
		case !slices.Contains(methods, r.Method):
			httpserver.MethodNotAllowed(w, r, e.methods)
		case s.options.ReadOnly && actionOf(r) != "":
			s.rejectAction(w, r)
		case e.public: // a caller without rights must not hold its connection by not reading
			e.handle(w, r)
		default:
			defer httpserver.SuspendTimeout(r)() // profiles take long
			e.handle(w, r)
		}
	}
}

// identify returns what the engine knows about a caller. If it sent a token, and too many
// wrong ones came before, the token is not checked until wait has passed.
func (s *Server) identify(c callers.Caller) (i callers.Identity, wait time.Duration) {
	if c.Token == "" || !s.engine.HasToken() {
		return s.engine.Identify(c), 0
	}
	if wait = s.failures.wait(c.Address); wait == 0 {
		i = s.engine.Identify(c)
		s.failures.note(c.Address, i.MayRefund)
	}
	return i, wait
}

// rejectCaller answers a caller that has no right to the admin API. Wait is above 0 if its
// token was not checked.
func (s *Server) rejectCaller(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	p := httplimit.Problem{Status: http.StatusUnauthorized, Detail: "want the header Authorization: Bearer TOKEN"}
	if wait > 0 {
		seconds := int64(math.Ceil(wait.Seconds()))
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
		p = httplimit.Problem{Status: http.StatusTooManyRequests, Detail: "too many wrong tokens"}
	} else {
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
	}
	s.refuseUnread(r, p.Detail)
	httpserver.WriteProblem(w, p)
}

// rejectAction answers a request for an action while there are none.
func (s *Server) rejectAction(w http.ResponseWriter, r *http.Request) {
	const detail = "the server allows no actions on the admin listener (--admin-actions=false)"
	s.refuseUnread(r, detail)
	httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusForbidden, Detail: detail})
}
