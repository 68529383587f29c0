package httpapi

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/charge"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// handleAuthRequest answers /v1/auth, the authorization subrequest of nginx, Caddy
// and Traefik: 200 if the client's request may pass, else the status of a denial.
func (s *Server) handleAuthRequest(w http.ResponseWriter, r *http.Request) {
	w.Header()["Cache-Control"] = noStore
	a, err := decodeAuthRequest(r, s.addresses, s.listOf)
	if err != nil {
		s.writeAuthProblem(w, r, err)
		return
	}
	c := s.newCall(r)
	defer c.release()
	response, err := s.decideAndHold(r, c, a)
	if err != nil {
		s.writeAuthProblem(w, r, err)
		return
	}
	c.collectApplied(&response, response.Decision.Allowed)
	s.options.Headers.SetHeaders(w.Header(), c.applied)
	if !response.Decision.Allowed {
		p := c.denial(&response)
		p.Status = a.denyStatus
		httplimit.WriteProblem(w, p)
	}
}

var noStore = []string{"no-store"}

// decideAndHold decides a request. One that is allowed with a delay is held for
// that long, and refunded if the client disconnects before.
func (s *Server) decideAndHold(r *http.Request, c *call, a *authRequest) (takecall.Reply, error) {
	ctx := r.Context()
	response, err := s.decideAuthRequest(r, c, a)
	delay := response.Decision.Delay
	if err != nil || !response.Decision.Allowed || delay == 0 {
		return response, err
	}
	// net/http notices a disconnect only after the body has been read.
	_, _ = io.CopyN(io.Discard, r.Body, httpserver.MaxBody)
	defer httpserver.SuspendTimeout(r)()
	began := time.Now()
	timer := time.NewTimer(min(delay, s.options.MaxHold)) // a fallback that allows all may delay for longer
	defer timer.Stop()
	select {
	case <-timer.C:
		return response, nil
	case <-ctx.Done(): // no decision: the request was neither admitted nor denied
		return takecall.Reply{}, cmp.Or(s.refund(ctx, a, response, time.Since(began)), ctx.Err())
	}
}

func (s *Server) decideAuthRequest(r *http.Request, c *call, a *authRequest) (takecall.Reply, error) {
	defer s.observe(r.Context(), time.Now())
	if a.ByRules() {
		wished := a.Request.MaxDelay
		a.Request.MaxDelay = min(cmp.Or(wished, s.options.MaxHold), s.options.MaxHold)
		a.Hurried = a.Request.MaxDelay < s.options.MaxHold
		return c.decideByRules(r.Context(), &a.takeRequest)
	}
	sr, err := a.storeRequest(s.engine, c.mayRefund)
	if err != nil {
		return takecall.Reply{}, err
	}
	if sr.Limit.HasPermits() {
		return takecall.Reply{}, &fieldError{path: []string{"limit"}, problem: engine.ErrNoRelease.Error()}
	}
	sr.MaxDelay = min(sr.MaxDelay, s.options.MaxHold)
	if sr.Limit.HasQueue() && sr.MaxDelay == 0 {
		sr.MaxDelay = s.options.MaxHold
	}
	return c.decideUnderLimit(r.Context(), sr)
}

// refund returns what a request was granted age ago, even if its client has disconnected: but not what has refilled
// under a limit beside the queue, because others may have taken that.
func (s *Server) refund(ctx context.Context, a *authRequest, granted takecall.Reply, age time.Duration) error {
	ctx = context.WithoutCancel(ctx)
	if !a.ByRules() {
		mayRefund := func() bool { return true } // what it was granted itself
		r, err := a.storeRequest(s.engine, mayRefund)
		if err != nil {
			return err
		}
		r.Cost, r.MaxDelay = -granted.Decision.Granted, 0
		_, err = s.engine.Take(ctx, r, mayRefund)
		return err
	}
	refunds := make([]engine.Descriptor, len(a.Descriptors))
	for i, d := range a.Descriptors {
		d.Cost = -charge.StillCharged(granted.Parts[i].Limit, &granted.Parts[i].Decision, age)
		refunds[i] = d
	}
	var result engine.Result
	return s.engine.Decide(ctx, a.Domain, refunds, &result)
}

// writeAuthProblem writes the problem of an error, which names a parameter of the
// URL instead of a field of the body.
func (s *Server) writeAuthProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	p.Pointer, p.Parameter = "", strings.TrimPrefix(p.Pointer, "#/")
	if p.Parameter == "descriptors" { // in a URL they are entries beside the domain
		p.Parameter = "domain"
	}
	s.writeProblem(w, r, p)
}
