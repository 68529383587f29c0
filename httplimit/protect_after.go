package httplimit

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// A Response is what a [Charge.After] computes the cost from.
type Response struct {
	// Request is the request as the middleware received it.
	Request *http.Request

	// Status is the response's status: 500 if the handler panicked.
	Status int

	// Header is the response's header.
	Header http.Header

	// Aborted means that the client disconnected before the response was
	// complete, or sent a body that could not be read to its end.
	Aborted bool

	// Taken is what the request was charged before it was served.
	Taken int64

	// Cost is what the handler passed to [SetCost], or Taken.
	Cost int64
}

// SetCost reports the cost of a request from its handler, for [ReportedCost] or
// another [Charge.After]. The last call counts, and a negative cost counts as 0.
// It returns false without such middleware around the handler.
func SetCost(ctx context.Context, cost int64) bool {
	s, ok := ctx.Value(settlementKey{}).(*settlement)
	for ; s != nil; s = s.outer {
		s.cost.Store(max(cost, 0))
		s.reported.Store(true)
	}
	return ok
}

// ReportedCost, as a [Charge.After], charges what the handler passed to
// [SetCost]: take an estimate first, and settle the difference afterwards.
func ReportedCost(r Response) int64 { return r.Cost }

// CostHeader returns a [Charge.After] that charges the number in a response
// header field, or what was taken if it is no whole number. A number too large to
// represent takes all that is left.
func CostHeader(name string) func(Response) int64 {
	return func(r Response) int64 {
		if cost, ok := wholeNumber(r.Header.Get(name)); ok {
			return cost
		}
		return r.Taken
	}
}

// OnlyFailures, as a [Charge.After], refunds responses with a status below 400.
func OnlyFailures(r Response) int64 {
	if r.Status < 400 {
		return 0
	}
	return r.Taken
}

// ResetOnSuccess, as a [Charge.After], resets the key after a response with a
// status below 400. It suits login forms: wrong passwords count until a right
// one.
func ResetOnSuccess(r Response) int64 {
	if r.Status < 400 {
		return penstock.Reset
	}
	return r.Taken
}

// FreeServerErrors, as a [Charge.After], refunds responses with a status of 500
// or above, unless the client aborted the request: a proxy answers 502 then, and
// disconnecting, or corrupting the end of an upload, would be free. Make sure
// that clients cannot cause server errors in other ways.
func FreeServerErrors(r Response) int64 {
	if r.Status >= 500 && !r.Aborted {
		return 0
	}
	return r.Taken
}

// A settlement is a request that is settled after it was served.
type settlement struct {
	passage
	outer    *settlement // of outer middleware
	cost     atomic.Int64
	reported atomic.Bool
}

type settlementKey struct{}

// serve serves a request that goes on and settles its cost.
func (p *protected) serve(w http.ResponseWriter, r *http.Request, decided *passage) {
	if decided.List == nil || !decided.List.Settles {
		p.next.ServeHTTP(w, r)
		return
	}
	s := &settlement{passage: *decided}
	s.outer, _ = r.Context().Value(settlementKey{}).(*settlement)
	inner := r.WithContext(context.WithValue(r.Context(), settlementKey{}, s))
	recorder, body := &statusRecorder{ResponseWriter: w}, recordBody(inner)
	finished := false
	defer func() {
		status := http.StatusInternalServerError
		if finished {
			status = recorder.result()
		}
		aborted := body.failed.Load() || errors.Is(r.Context().Err(), context.Canceled)
		p.settle(s, 0, Response{Request: r, Status: status, Header: w.Header(), Aborted: aborted})
	}()
	p.next.ServeHTTP(recorder.withMethodsOf(w), inner)
	finished = true
}

// settle charges the true costs from part i on. If a [Charge.After] panics, the parts behind it are
// settled nevertheless.
func (p *protection) settle(s *settlement, i int, resp Response) {
	if p.Rules != nil {
		p.guard.SettleByRules(resp.Request, &s.passage, s.costOf(p.After, resp, s.Taken()))
		return
	}
	if i == len(s.Parts()) {
		return
	}
	defer p.settle(s, i+1, resp)
	item, part := &s.List.Items[i], &s.Parts()[i]
	if item.Extra.after == nil {
		return
	}
	ctx, cost := resp.Request.Context(), s.costOf(item.Extra.after, resp, part.Decision.Granted)
	p.guard.Report(ctx, resp.Request, charge.Settle(ctx, item.Limiter, part, time.Since(s.Since), cost))
}

// costOf returns what a request cost that was charged so much.
func (s *settlement) costOf(after func(Response) int64, resp Response, taken int64) int64 {
	resp.Taken, resp.Cost = taken, taken
	if s.reported.Load() {
		resp.Cost = s.cost.Load()
	}
	return after(resp)
}
