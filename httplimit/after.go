package httplimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// A Response is what a [Charge.After] can tell the cost of a request by.
type Response struct {
	// Request is the request as the middleware got it.
	Request *http.Request

	// Status is that of the response: 500 if the handler panicked.
	Status int

	// Header is that of the response.
	Header http.Header

	// Aborted says that the client left before the response was complete, or
	// sent a body that could not be read to its end.
	Aborted bool

	// Taken is what the request was charged before it was served.
	Taken int64

	// Cost is what the handler told [SetCost], or Taken if it told nothing.
	Cost int64
}

// SetCost tells the middleware around a handler what the request cost, for
// [ReportedCost] or another [Charge.After] to charge. The last call counts, and less than
// 0 counts as 0. It returns false if no such middleware is there.
func SetCost(ctx context.Context, cost int64) bool {
	s, ok := ctx.Value(settlementKey{}).(*settlement)
	for ; s != nil; s = s.outer {
		s.cost.Store(max(cost, 0))
		s.said.Store(true)
	}
	return ok
}

// ReportedCost, as a [Charge.After], charges what the handler told [SetCost]: take an
// estimate first, and the rest, or what is left of it, afterwards.
func ReportedCost(r Response) int64 { return r.Cost }

// CostHeader returns a [Charge.After] that charges what a header field of the
// response says: a whole number, or else what was taken. A number that is too large
// to be counted with takes all that is left.
func CostHeader(name string) func(Response) int64 {
	return func(r Response) int64 {
		if cost, ok := wholeNumber(r.Header.Get(name)); ok {
			return cost
		}
		return r.Taken
	}
}

// OnlyFailures, as a [Charge.After], gives back what was taken for a response
// whose status is below 400.
func OnlyFailures(r Response) int64 {
	if r.Status < 400 {
		return 0
	}
	return r.Taken
}

// ResetOnSuccess, as a [Charge.After], makes the key as good as new after a
// response whose status is below 400. It is the one for login forms: wrong
// passwords count until there was a right one.
func ResetOnSuccess(r Response) int64 {
	if r.Status < 400 {
		return penstock.Reset
	}
	return r.Taken
}

// FreeServerErrors, as a [Charge.After], gives back what was taken for a response
// whose status is 500 or above, unless the client aborted the request: a proxy fails
// then, and to hang up, or to garble the end of an upload, would make everything
// before it free. Be sure that clients cannot bring errors about in other ways.
func FreeServerErrors(r Response) int64 {
	if r.Status >= 500 && !r.Aborted {
		return 0
	}
	return r.Taken
}

// A settlement is what is known of a request that is to be settled once it was
// served.
type settlement struct {
	parts []charge.Part
	since time.Time   // no later than they were taken
	outer *settlement // of middleware further out
	cost  atomic.Int64
	said  atomic.Bool
}

type settlementKey struct{}

// serve serves an allowed request, and settles what it cost.
func (p *protected) serve(w http.ResponseWriter, r *http.Request, parts []charge.Part, since time.Time) {
	if !p.settles || len(parts) == 0 {
		p.next.ServeHTTP(w, r)
		return
	}
	s := &settlement{parts: slices.Clone(parts), since: since}
	s.outer, _ = r.Context().Value(settlementKey{}).(*settlement)
	inner := r.WithContext(context.WithValue(r.Context(), settlementKey{}, s))
	watch, body := &watcher{ResponseWriter: w}, watchBody(inner)
	finished := false
	defer func() {
		status := http.StatusInternalServerError
		if finished {
			status = watch.result()
		}
		aborted := body.failed.Load() || errors.Is(r.Context().Err(), context.Canceled)
		p.settle(s, Response{Request: r, Status: status, Header: w.Header(), Aborted: aborted})
	}()
	p.next.ServeHTTP(watch.asCapableAs(w), inner)
	finished = true
}

// settle charges what the request cost.
func (p *protection) settle(s *settlement, resp Response) {
	for i := range s.parts {
		c := &p.charges[i]
		if c.After == nil {
			continue
		}
		resp.Taken = s.parts[i].Decision.Granted
		resp.Cost = resp.Taken
		if s.said.Load() {
			resp.Cost = s.cost.Load()
		}
		cost := c.After(resp)
		p.report(resp.Request, charge.Settle(resp.Request.Context(), c.Limiter, &s.parts[i], time.Since(s.since), cost))
	}
}
