package penstock

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"
)

// This file is about how requests are decided while the first store is away.

// policy returns what becomes of requests under a limit, and the limit that the
// second store goes by.
func (f *Fallback) policy(l Limit) (mode FailureMode, local Limit) {
	share := f.share
	if f.onFailure != nil {
		var own float64
		mode, own = f.onFailure(l)
		share = min(orDefault(own, share), 1)
	}
	if mode != FailLocal || share == 1 {
		return mode, l
	}
	return mode, l.portion(share)
}

// portion returns a part of a valid limit, but at least one unit of one that has
// any.
func (l Limit) portion(share float64) Limit {
	n := l.Normal()
	if n.Name == "" { // parts of different limits may be equal, and are still different
		n.Name = "part of " + strconv.FormatInt(n.Count, 36) + " " + strconv.FormatInt(n.Burst, 36) + " " + strconv.FormatInt(int64(n.Period), 36)
	}
	if n.Algorithm.isBucket() && n.Count > 0 {
		n.Period = stretched(n.Period, float64(n.Count)*share)
	}
	n.Count, n.Burst = portionOf(n.Count, share), portionOf(n.Burst, share)
	if n.Validate() != nil { // so high a rate that it cannot be divided evenly
		n.Count, n.Burst = min(n.Count, 1), min(n.Burst, 1)
	}
	return n
}

// stretched returns the time in which one unit of a bucket comes back, where that is
// less than one in a period. Else many processes would grant one unit each.
func stretched(period time.Duration, units float64) time.Duration {
	if units >= 1 {
		return period
	}
	return time.Duration(min(math.Round(float64(period)/units), float64(maxPeriod)))
}

// portionOf rounds down; but a third of three is one, whatever floats say.
func portionOf(units int64, share float64) int64 {
	part := int64(math.Floor(float64(units)*share + 1e-9))
	return min(max(part, 1), units)
}

// takeAway decides a request without the first store.
func (f *Fallback) takeAway(ctx context.Context, p *part, r *Request) (Decision, error) {
	cl, err := f.checked(r)
	if err != nil {
		return Decision{}, err
	}
	f.probeBy(p, r)
	mode, local := f.policy(r.Limit)
	switch mode {
	case FailOpen:
		return f.allow(ctx, p, cl, r), nil
	case FailClosed:
		return f.deny(p, cl, r), nil
	}
	asked := *r
	asked.Limit = local
	d, err := f.second.Take(ctx, asked)
	if err == nil {
		p.ledger.add(r, local, d.Granted)
		f.finish(p, cl, r, &d)
	}
	return d, err
}

// checked returns the meter of a request that is not malformed.
func (f *Fallback) checked(r *Request) (*compiledLimit, error) {
	if err := r.validateShape(); err != nil {
		return nil, err
	}
	return f.meters.forRequest(r)
}

// finish says who decided. What the share can never grant may be granted when the
// first store is back.
func (f *Fallback) finish(p *part, cl *compiledLimit, r *Request, d *Decision) {
	d.Source = SourceFallback
	if d.RetryAfter == Never && !cl.never(r) {
		d.RetryAfter = p.breaker.RetryIn(f.clock.Now())
	}
}

// allow allows a request. The second store keeps account of it, as far as it can.
func (f *Fallback) allow(ctx context.Context, p *part, cl *compiledLimit, r *Request) Decision {
	if cl.never(r) {
		return f.deny(p, cl, r)
	}
	noted := *r
	noted.AtMost, noted.MaxDelay = r.Cost > 0, 0
	d, err := f.second.Take(ctx, noted)
	if err == nil {
		p.ledger.add(r, r.Limit, d.Granted)
	}
	granted := d.Granted
	if r.Cost > 0 {
		granted = min(r.Cost, cl.capacity)
	}
	return Decision{
		Allowed: true, Granted: granted, Limit: cl.capacity,
		Remaining: d.Remaining, ResetAfter: d.ResetAfter, Source: SourceFallback,
	}
}

// deny denies a request until the first store is tried again. A look, or what
// gives back, asks for nothing.
func (f *Fallback) deny(p *part, cl *compiledLimit, r *Request) Decision {
	d := Decision{Allowed: r.Cost <= 0, Limit: cl.capacity, Source: SourceFallback}
	switch {
	case r.Cost <= 0:
	case cl.never(r):
		d.RetryAfter = Never
	default:
		d.RetryAfter = p.breaker.RetryIn(f.clock.Now())
	}
	return d
}

// takeAllAway decides requests as one, without the first store.
func (f *Fallback) takeAllAway(ctx context.Context, calls []fallbackCall, rs []Request, ds []Decision) error {
	for i := range calls {
		if calls[i].first {
			f.probeBy(calls[i].part, &rs[i])
		}
	}
	a := awayBatch{f: f, calls: calls, rs: rs}
	for i := range rs {
		if err := a.add(&rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	if a.refused {
		a.onlyLook()
	}
	answers := make([]Decision, len(a.locals))
	if err := TakeAll(ctx, f.second, a.locals, answers); err != nil {
		return err
	}
	a.refused = a.refused || slices.ContainsFunc(answers, func(d Decision) bool { return !d.Allowed })
	a.write(ctx, answers, ds)
	return nil
}

// An awayBatch is a TakeAll that is decided without the first store.
type awayBatch struct {
	f       *Fallback
	calls   []fallbackCall
	rs      []Request
	meters  []*compiledLimit
	modes   []FailureMode
	locals  []Request // those under FailLocal, for the second store
	refused bool
}

func (a *awayBatch) add(r *Request) error {
	cl, err := a.f.checked(r)
	if err != nil {
		return err
	}
	mode, local := a.f.policy(r.Limit)
	a.meters, a.modes = append(a.meters, cl), append(a.modes, mode)
	switch {
	case mode == FailLocal:
		asked := *r
		asked.Limit = local
		a.locals = append(a.locals, asked)
	case r.Cost > 0 && (mode == FailClosed || cl.never(r)):
		a.refused = true
	}
	return nil
}

// onlyLook makes the requests for the second store ask for nothing.
func (a *awayBatch) onlyLook() {
	for i := range a.locals {
		a.locals[i].Cost, a.locals[i].MaxDelay = 0, 0
	}
}

// write writes the decisions, once it is known whether all are granted.
func (a *awayBatch) write(ctx context.Context, answers, ds []Decision) {
	totals := totalsOf(a.rs)
	for i := range a.rs {
		r, p, cl := &a.rs[i], a.calls[i].part, a.meters[i]
		look := *r
		look.Cost, look.MaxDelay = 0, 0
		switch {
		case a.modes[i] == FailClosed:
			ds[i] = a.f.deny(p, cl, r)
		case a.modes[i] == FailOpen && cl.never(r):
			ds[i] = a.f.deny(p, cl, r)
		case a.modes[i] == FailOpen && a.refused:
			ds[i] = a.f.allow(ctx, p, cl, &look)
		case a.modes[i] == FailOpen:
			ds[i] = a.f.allow(ctx, p, cl, r)
		default:
			ds[i] = answers[0]
			p.ledger.add(r, a.locals[0].Limit, ds[i].Granted)
			whole := *r
			whole.Cost = totals[stateKeyOf(*r)]
			a.f.finish(p, cl, &whole, &ds[i])
			answers, a.locals = answers[1:], a.locals[1:]
		}
	}
}
