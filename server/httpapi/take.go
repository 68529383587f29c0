package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// handleTake answers POST /v1/take: take_decode.go reads the body, take_decide.go
// decides the requests, take_encode.go writes the response.
func (s *Server) handleTake(w http.ResponseWriter, r *http.Request) { s.take(w, r, false) }

// handleSettle answers POST /v1/settle. Its body is that of a take under an ID, and its
// cost is what was used. It needs no permission: only the
// caller that took knows the ID.
func (s *Server) handleSettle(w http.ResponseWriter, r *http.Request) { s.take(w, r, true) }

func (s *Server) take(w http.ResponseWriter, r *http.Request, settle bool) {
	if !httpserver.IsJSON(r.Header.Get("Content-Type")) {
		s.writeProblem(w, r, notJSON)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	if err := c.decode(r, min(s.engine.MaxDescriptors(), maxRequests)); err != nil {
		s.writeTakeProblem(w, r, err)
		return
	}
	if err := c.prepareSettle(settle); err != nil {
		s.writeTakeProblem(w, r, err)
		return
	}
	mayRefund := func() bool { return s.mayRefund(r) }
	for i := range c.requests {
		s.engine.MarkReleases(c.requests[i].Domain, c.requests[i].Descriptors)
	}
	refunds := c.refunds()
	if (refunds || s.usesReservedName(c.requests)) && !mayRefund() {
		s.audit.RefuseAll(s.refundEntries(c, r), refundForbidden.Detail)
		s.writeProblem(w, r, refundForbidden)
		return
	}
	start := s.startTimer()
	response, err := s.decide(c, r, refunds, mayRefund)
	s.stopTimer(r.Context(), start)
	if err != nil {
		s.writeTakeProblem(w, r, err)
		return
	}
	s.logDenials(c, &response)
	c.encode(w, &response, s.headers)
}

// prepareSettle makes the requests of a call settlements.
func (c *call) prepareSettle(settle bool) error {
	for i := range c.requests {
		if !settle {
			return nil
		}
		c.requests[i].Request.Settle = true
		if err := c.requests[i].checkSettle(); err != nil && c.mode == single {
			return err
		} else if err != nil {
			return inRequest(i, err)
		}
	}
	return nil
}

// A call holds the buffers of one HTTP request. Calls are pooled.
type call struct {
	body, out []byte
	reader    jsonReader

	mode     mode
	requests []takeRequest

	storeRequests []penstock.Request
	decisions     []penstock.Decision
	result        engine.Result
	applied       []httplimit.Answer // the limits that the headers report
}

// A mode says how the requests of one call are decided.
type mode string

const (
	single mode = ""     // not a list
	each   mode = "each" // every request by itself
	all    mode = "all"  // all are granted or none is charged
)

var calls = sync.Pool{New: func() any { return &call{body: make([]byte, 0, 512), out: make([]byte, 0, 512)} }}

// maxPooled is the capacity above which buffers are not pooled.
const maxPooled = 8 << 10

// release returns the call to the pool, without references to keys.
func (c *call) release() {
	if cap(c.body) > maxPooled || cap(c.out) > maxPooled || len(c.requests) > 1 {
		return
	}
	clear(c.requests)
	clear(c.storeRequests)
	clear(c.result.Statuses)
	clear(c.applied)
	c.body, c.out, c.reader, c.mode = c.body[:0], c.out[:0], jsonReader{}, single
	c.requests, c.storeRequests, c.decisions = c.requests[:0], c.storeRequests[:0], c.decisions[:0]
	c.applied = c.applied[:0]
	calls.Put(c)
}

// mayRefund reports whether the caller may refund units, and so is exempt from the
// ceilings of limits in requests.
func (s *Server) mayRefund(r *http.Request) bool { return s.engine.MayRefund(auth.HTTPCaller(r)) }

// refunds reports whether a request of the call does.
func (c *call) refunds() bool {
	for i := range c.requests {
		if c.requests[i].Refunds() {
			return true
		}
	}
	return false
}

// usesReservedName reports whether a request carries a limit with a name of CL.THROTTLE's
// or of overrides. Such a limit can change what was counted there, like a refund.
func (s *Server) usesReservedName(requests []takeRequest) bool {
	for i := range requests {
		r := &requests[i]
		if !strings.Contains(r.Limit, "name=") {
			continue
		}
		if l, err := s.engine.RequestLimits().ParseLimit(r.Limit); err == nil && requestlimits.HasReservedName(l) {
			return true
		}
	}
	return false
}

func (s *Server) writeTakeProblem(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, httpserver.ErrTooLarge) {
		w.Header().Set("Connection", "close") // rather than read the rest of the body
		s.writeProblem(w, r, tooLarge)
		return
	}
	s.writeProblem(w, r, problemOf(err))
}
