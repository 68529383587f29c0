package httpapi

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// handleTake answers POST /v1/take: take_decode.go reads the body, take_decide.go
// decides the requests, take_encode.go writes the response.
func (s *Server) handleTake(w http.ResponseWriter, r *http.Request) { s.take(w, r, false) }

// handleSettle answers POST /v1/settle. Its body is that of a take under an ID, and its
// cost is what was used. It needs no permission: only the
// caller that took knows the ID.
func (s *Server) handleSettle(w http.ResponseWriter, r *http.Request) { s.take(w, r, true) }

func (s *Server) take(w http.ResponseWriter, r *http.Request, settle bool) {
	c := s.newCall(r)
	defer c.release()
	response, err := s.decideBody(c, r, settle)
	if err != nil {
		s.writeProblem(w, r, problemOf(err))
		return
	}
	c.encode(w, &response, s.options.Headers)
}

// decideBody decides the requests of a body, or settles them.
func (s *Server) decideBody(c *call, r *http.Request, settle bool) (response takecall.Reply, err error) {
	if !httpserver.IsJSON(r.Header.Get("Content-Type")) {
		return response, errNotJSON
	}
	err = c.decode(r, min(s.engine.MaxDescriptors(), maxRequests))
	if err == nil && settle {
		err = c.prepareSettle()
	}
	if err != nil {
		return response, err
	}
	for i := range c.requests {
		s.engine.MarkReleases(c.requests[i].Domain, c.requests[i].Descriptors)
	}
	refunds := c.refunds()
	if refunds && !c.mayRefund() {
		s.options.Audit.RefuseAll(s.refundEntries(c, r), problemTypes[ProblemForbidden].detail)
		return response, errRefundForbidden
	}
	defer s.observe(r.Context(), time.Now())
	return s.decide(c, r, refunds)
}

// prepareSettle makes the requests of a call settlements.
func (c *call) prepareSettle() error {
	for i := range c.requests {
		c.requests[i].Request.Settle = true
		switch err := c.requests[i].checkSettle(); {
		case err != nil && c.mode == single:
			return err
		case err != nil:
			return inRequest(i, err)
		}
	}
	return nil
}

// A call holds the buffers of one HTTP request. Calls are pooled.
type call struct {
	server *Server
	http   *http.Request

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

func (s *Server) newCall(r *http.Request) *call {
	c := calls.Get().(*call)
	c.server, c.http = s, r
	return c
}

// mayRefund reports whether the caller may refund units, and so is exempt from the
// ceilings of limits in requests.
func (c *call) mayRefund() bool { return c.server.engine.MayRefund(auth.HTTPCaller(c.http)) }

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
	c.server, c.http = nil, nil
	c.body, c.out, c.reader, c.mode = c.body[:0], c.out[:0], jsonReader{}, single
	c.requests, c.storeRequests, c.decisions = c.requests[:0], c.storeRequests[:0], c.decisions[:0]
	c.applied = c.applied[:0]
	calls.Put(c)
}

// refunds reports whether a request of the call does.
func (c *call) refunds() bool {
	return slices.ContainsFunc(c.requests, func(t takeRequest) bool { return t.Refunds() })
}
