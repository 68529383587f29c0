package penstock

import (
	"context"
	"math/bits"
	"slices"
	"time"
)

// This file decides requests while the primary store is down.

// modeFor returns the failure mode of a limit, and the limit for the secondary
// store.
func (f *Fallback) modeFor(l Limit) (mode FailureMode, local Limit) {
	share := f.share
	if f.onFailure != nil {
		var own float64
		mode, own = f.onFailure(l)
		share = min(orDefault(own, share), 1)
	}
	if mode != FailLocal || share == 1 {
		return mode, l
	}
	return mode, l.scaled(share)
}

// takeLocal decides a request without the primary store.
func (f *Fallback) takeLocal(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	cl, err := f.compile(r)
	if err != nil {
		return Decision{}, err
	}
	f.probeWith(s, r)
	if r.leased {
		return f.deny(s, cl, r), nil // the units stay charged until the primary refills them
	}
	mode, limit := f.modeFor(r.Limit)
	switch mode {
	case FailOpen:
		return f.allow(ctx, s, cl, r), nil
	case FailClosed:
		return f.deny(s, cl, r), nil
	}
	d, err := f.secondary.Take(ctx, localRequest(cl, r, limit))
	if err == nil {
		f.addDebt(s, r, limit, &d)
		f.markLocal(s, cl, r, &d)
	}
	return d, err
}

// takeUnanswered decides a request that the primary store got and did not answer. A refund without
// an ID may have been made there, of units that the primary granted, so it is not made again.
func (f *Fallback) takeUnanswered(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	if r.Cost < 0 && r.Cost != Reset && r.ID == "" {
		return f.takeLocal(ctx, s, &Request{Key: r.Key, Limit: r.Limit, leased: r.leased})
	}
	return f.takeLocal(ctx, s, r)
}

// localRequest returns a request under the secondary store's part of its limit. It keeps
// the same part of the units free, rounded up.
func localRequest(cl *compiledLimit, r *Request, limit Limit) Request {
	local := *r
	local.Limit = limit
	if capacity := limit.Capacity(); r.KeepFree > 0 && capacity < cl.capacity {
		high, low := bits.Mul64(uint64(min(r.KeepFree, cl.capacity)), uint64(capacity))
		kept, rest := bits.Div64(high, low, uint64(cl.capacity))
		local.KeepFree = int64(kept)
		if rest > 0 {
			local.KeepFree++
		}
	}
	return local
}

// compile validates a request and returns its compiled limit.
func (f *Fallback) compile(r *Request) (*compiledLimit, error) {
	if err := r.validateShape(); err != nil {
		return nil, err
	}
	return f.limits.forRequest(r)
}

// markLocal marks a decision of the secondary store. A cost that only the share
// can never grant may be granted when the primary store is up again.
func (f *Fallback) markLocal(s *fallbackShard, cl *compiledLimit, r *Request, d *Decision) {
	d.Source = SourceFallback
	if d.RetryAfter == Never && !cl.neverGrants(r) {
		d.RetryAfter = f.retryAfter(s)
	}
}

// retryAfter returns when a request that only the primary store could grant is worth
// repeating: not before the next probe, and never so soon that callers who are denied
// during an outage repeat their requests without a pause.
func (f *Fallback) retryAfter(s *fallbackShard) time.Duration {
	return max(s.breaker.RetryIn(f.clock.Now()), f.rules.Wait)
}

// allow allows a request, and charges the secondary store as far as it has units.
func (f *Fallback) allow(ctx context.Context, s *fallbackShard, cl *compiledLimit, r *Request) Decision {
	if cl.neverGrants(r) {
		return f.deny(s, cl, r)
	}
	local := *r
	local.AtMost, local.MaxDelay, local.KeepFree = r.Cost > 0 && !r.Overdraw, 0, 0
	d, err := f.secondary.Take(ctx, local)
	if err == nil {
		f.addDebt(s, r, r.Limit, &d)
	}
	granted := d.Granted
	if r.Cost > 0 && !r.Overdraw {
		granted = min(r.Cost, cl.capacity)
	}
	return Decision{
		Allowed: true, Granted: granted, Limit: cl.capacity,
		Remaining: d.Remaining, ResetAfter: d.ResetAfter, Source: SourceFallback,
	}
}

// deny denies a request until the next probe, at least. Peeks, refunds and charges that
// may overdraw are allowed and have no effect.
func (f *Fallback) deny(s *fallbackShard, cl *compiledLimit, r *Request) Decision {
	d := Decision{Allowed: r.Cost <= 0 || r.Overdraw, Limit: cl.capacity, Source: SourceFallback}
	switch {
	case d.Allowed:
	case cl.neverGrants(r):
		d.RetryAfter = Never
	default:
		d.RetryAfter = f.retryAfter(s)
	}
	return d
}

// takeAllLocal decides requests all or nothing, without the primary store.
func (f *Fallback) takeAllLocal(ctx context.Context, calls []fallbackCall, rs []Request, ds []Decision) error {
	for i := range calls {
		if calls[i].isFirst {
			f.probeWith(calls[i].shard, &rs[i])
		}
	}
	rs = withLongestHold(rs)
	b := localBatch{f: f, calls: calls, rs: rs}
	for i := range rs {
		if err := b.add(&rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	if b.denied {
		b.peekOnly()
	}
	decisions := make([]Decision, len(b.locals))
	if err := TakeAll(ctx, f.secondary, b.locals, decisions); err != nil {
		return err
	}
	b.denied = b.denied || slices.ContainsFunc(decisions, func(d Decision) bool { return !d.Allowed })
	b.write(ctx, decisions, ds)
	return nil
}

// withLongestHold returns the requests with the hold that an ID on all of them has: each
// is charged to the primary by itself later, and must be remembered as long.
func withLongestHold(rs []Request) []Request {
	if len(rs) < 2 || rs[0].ID == "" {
		return rs
	}
	rs = slices.Clone(rs)
	hold := time.Duration(0)
	for i := range rs {
		hold = max(hold, rs[i].Hold, min(rs[i].Limit.Normal().Period, maxIDLifetime))
	}
	for i := range rs {
		rs[i].Hold = hold
	}
	return rs
}

// A localBatch is the state of a TakeAll that is decided without the primary
// store.
type localBatch struct {
	f      *Fallback
	calls  []fallbackCall
	rs     []Request
	limits []*compiledLimit
	modes  []FailureMode
	locals []Request // the requests under FailLocal, for the secondary store
	denied bool      // whether one of the requests is denied
}

func (b *localBatch) add(r *Request) error {
	cl, err := b.f.compile(r)
	if err != nil {
		return err
	}
	mode, limit := b.f.modeFor(r.Limit)
	b.limits, b.modes = append(b.limits, cl), append(b.modes, mode)
	switch {
	case mode == FailLocal:
		b.locals = append(b.locals, localRequest(cl, r, limit))
	case r.Cost > 0 && !r.Overdraw && (mode == FailClosed || cl.neverGrants(r)):
		b.denied = true
	}
	return nil
}

// peekOnly turns the requests for the secondary store into peeks.
func (b *localBatch) peekOnly() {
	for i := range b.locals {
		b.locals[i] = peekOf(b.locals[i])
	}
}

// write writes the decisions, after it is known whether any request is denied.
func (b *localBatch) write(ctx context.Context, decisions, ds []Decision) {
	totals := totalsOf(b.rs)
	for i := range b.rs {
		r, s, cl := &b.rs[i], b.calls[i].shard, b.limits[i]
		peek := peekOf(*r)
		switch {
		case b.modes[i] == FailClosed:
			ds[i] = b.f.deny(s, cl, r)
		case b.modes[i] == FailOpen && cl.neverGrants(r):
			ds[i] = b.f.deny(s, cl, r)
		case b.modes[i] == FailOpen && b.denied:
			ds[i] = b.f.allow(ctx, s, cl, &peek)
		case b.modes[i] == FailOpen:
			ds[i] = b.f.allow(ctx, s, cl, r)
		default:
			ds[i] = decisions[0]
			b.f.addDebt(s, r, b.locals[0].Limit, &ds[i])
			sum := *r
			sum.Cost = totals[stateKeyOf(*r)]
			b.f.markLocal(s, cl, &sum, &ds[i])
			decisions, b.locals = decisions[1:], b.locals[1:]
		}
	}
}
