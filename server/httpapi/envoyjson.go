package httpapi

import (
	"errors"
	"net/http"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// handleEnvoyJSON answers /json as envoyproxy/ratelimit does: any method and any
// content type are accepted, and every failure to decide is a plain 400.
//
// Only requests of pages in browsers must have the content type JSON. A browser sends a
// CORS preflight before such a request, which fails here.
func (s *Server) handleEnvoyJSON(w http.ResponseWriter, r *http.Request) {
	if auth.IsCrossOrigin(r) && !isJSON(r.Header.Get("Content-Type")) {
		s.writeEnvoyError(w, r, errNotJSON)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	if err := c.readBody(r); err != nil {
		s.writeEnvoyError(w, r, err)
		return
	}
	caller := rlsproto.Caller{
		MayRefund: func() bool { return s.mayRefund(r) },
		Entry:     func() audit.Entry { return s.entry(r) },
	}
	start := s.startTimer()
	response, over, err := s.envoy.HandleJSON(r.Context(), c.body, caller)
	s.stopTimer(start)
	if err != nil {
		s.writeEnvoyError(w, r, err)
		return
	}
	w.Header()["Content-Type"] = jsonType
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(response)
}

var errNotJSON = errors.New("content type is not JSON")

func (s *Server) writeEnvoyError(w http.ResponseWriter, r *http.Request, err error) {
	status, reason := http.StatusBadRequest, rlsproto.ReasonOf(err)
	var refused *engine.LimitRefusal
	switch {
	case errors.Is(err, errTooLarge):
		w.Header().Set("Connection", "close")
		status, reason = http.StatusRequestEntityTooLarge, requestlog.TooLarge
	case errors.Is(err, errNotJSON):
		status, reason = http.StatusUnsupportedMediaType, requestlog.ContentType
	case errors.Is(err, rlsproto.ErrRefundForbidden), errors.As(err, &refused):
		status = http.StatusForbidden
	case errors.Is(err, audit.ErrUnwritable):
		status = http.StatusServiceUnavailable
	}
	s.requests.Invalid(reason, err.Error(), r.RemoteAddr)
	http.Error(w, http.StatusText(status), status)
}
