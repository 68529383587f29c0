package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// auth answers /v1/auth.
func (d *Server) auth(w http.ResponseWriter, r *http.Request) {
	w.Header()["Cache-Control"] = noStore
	v, err := readVisit(r)
	if err != nil {
		writeVisitProblem(w, err)
		return
	}
	if d.loosens([]question{v.question}) && !d.judge.MayRefund(auth.HTTPCaller(r)) {
		httpserver.WriteProblem(w, mayNotUndo)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	result, err := d.admit(r, c, v)
	if err != nil {
		writeVisitProblem(w, err)
		return
	}
	c.collect(&result, result.decision.Allowed)
	d.form.SetHeaders(w.Header(), c.answers)
	if !result.decision.Allowed {
		p := httplimit.QuotaExceeded(c.answers)
		p.Status = v.deny
		httplimit.WriteProblem(w, p)
	}
}

var noStore = []string{"no-store"}

// admit decides a visit, and holds it until its turn has come.
func (d *Server) admit(r *http.Request, c *call, v *visit) (result, error) {
	ctx := r.Context()
	began := d.begin()
	decided, err := d.decideVisit(ctx, c, v)
	d.finish(began)
	delay := decided.decision.Delay
	if err != nil || !decided.decision.Allowed || delay == 0 {
		return decided, err
	}
	if delay > d.maxHold {
		return d.turnAway(ctx, c, v, decided)
	}
	// While a body is unread, nobody notices that the caller has gone.
	_, _ = io.CopyN(io.Discard, r.Body, maxBody)
	defer httpserver.SuspendTimeout(r)()
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return decided, nil
	case <-ctx.Done():
		return result{}, d.giveBack(ctx, c, v, decided)
	}
}

func (d *Server) decideVisit(ctx context.Context, c *call, v *visit) (result, error) {
	if v.said.has(byRules) {
		return c.decideByRules(ctx, d.judge, &v.question)
	}
	r, err := v.request(d.limits)
	if err != nil {
		return result{}, err
	}
	r.MaxDelay = min(r.MaxDelay, d.maxHold)
	if r.Limit.Algorithm == penstock.LeakyBucket && r.MaxDelay == 0 {
		r.MaxDelay = d.maxHold
	}
	decision, err := d.judge.Take(ctx, r)
	return result{decision: decision, limited: true, limit: r.Limit}, err
}

// turnAway denies a visit that was granted for a time too far ahead.
func (d *Server) turnAway(ctx context.Context, c *call, v *visit, granted result) (result, error) {
	if err := d.giveBack(ctx, c, v, granted); err != nil {
		return result{}, err
	}
	wait := granted.decision.Delay - d.maxHold
	return deny(granted, wait), nil
}

// deny returns a result without what it granted.
func deny(r result, retryAfter time.Duration) result {
	for i := range r.parts {
		r.parts[i] = deny(r.parts[i], retryAfter)
	}
	if r.decision.Delay > 0 {
		r.decision.Allowed, r.decision.RetryAfter = false, retryAfter
	}
	r.decision.Granted, r.decision.Delay = 0, 0
	return r
}

// giveBack gives back what a visit was granted, whether or not anyone is still
// there to hear of it.
func (d *Server) giveBack(ctx context.Context, c *call, v *visit, granted result) error {
	ctx = context.WithoutCancel(ctx)
	if !v.said.has(byRules) {
		r, err := v.request(d.limits)
		if err != nil {
			return err
		}
		r.Cost, r.MaxDelay = -granted.decision.Granted, 0
		_, err = d.judge.Take(ctx, r)
		return err
	}
	back := make([]engine.Descriptor, len(v.descriptors))
	for i, descriptor := range v.descriptors {
		descriptor.Cost = -granted.parts[i].decision.Granted
		back[i] = descriptor
	}
	var verdict engine.Result
	return d.judge.Decide(ctx, v.domain, back, &verdict)
}
