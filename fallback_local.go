package penstock

import (
	"context"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
)

// This file decides requests without the primary store: while that is down, after a call that it
// did not answer, and refunds of units that the secondary granted.

// modeFor returns the failure mode of a limit, and the limit for the secondary
// store.
func (f *Fallback) modeFor(l Limit) (mode FailureMode, local Limit) {
	share := f.share
	if f.onFailure != nil {
		var own float64
		mode, own = f.onFailure(l)
		share = min(defaults.Or(own, share), 1)
	}
	if mode != FailLocal || share == 1 {
		return mode, l
	}
	return mode, l.scaled(share)
}

// takeLocal decides a request without the primary store.
func (f *Fallback) takeLocal(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	cl, err := f.limits.forRequest(r)
	if err != nil {
		return Decision{}, err
	}
	f.probeWith(s, r)
	if r.Cost <= 0 && refunds(ctx, leasedUnits) {
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
		f.markLocal(s, cl, r, 0, &d)
	}
	return d, err
}

// takeUnanswered decides a request that the primary store got and did not answer. A refund without
// an ID may have been made there, of units that the primary granted, so it is not made again.
func (f *Fallback) takeUnanswered(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	if r.isRefund() && r.ID == "" {
		return f.takeLocal(ctx, s, &Request{Key: r.Key, Limit: r.Limit})
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

// markLocal marks a decision of the secondary store. A cost that only the share
// can never grant may be granted when the primary store is up again. The request has
// the cost of all requests for its key, of which prior units are queued before it.
func (f *Fallback) markLocal(s *fallbackShard, cl *compiledLimit, r *Request, prior int64, d *Decision) {
	d.Source = SourceFallback
	if d.RetryAfter == Never && !cl.neverGrantsBehind(r, prior) {
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
	local.AtMost, local.MaxDelay, local.KeepFree = r.canBeDenied(), 0, 0
	d, err := f.secondary.Take(ctx, local)
	if err == nil {
		f.addDebt(s, r, r.Limit, &d)
	}
	granted := d.Granted
	if r.canBeDenied() {
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
	d := Decision{Allowed: !r.canBeDenied(), Limit: cl.capacity, Source: SourceFallback}
	switch {
	case d.Allowed:
	case cl.neverGrants(r):
		d.RetryAfter = Never
	default:
		d.RetryAfter = f.retryAfter(s)
	}
	return d
}

// releaseLocal releases permits that the secondary store granted while the primary was
// down, and that the primary, which decides now, does not know.
func (f *Fallback) releaseLocal(ctx context.Context, r *Request, d *Decision) {
	if !r.Limit.hasPermits() || !r.isRefund() || d.Granted != 0 {
		return
	}
	local := *r
	_, local.Limit = f.modeFor(r.Limit)
	if own, err := f.secondary.Take(ctx, local); err == nil {
		d.Granted = own.Granted
	}
}

// refundsDebt reports whether one of the requests refunds what the ledger may have: units that
// are not charged to the primary store yet, or an ID that it has still to tell it of.
func (f *Fallback) refundsDebt(ctx context.Context, rs []Request) bool {
	for i := range rs {
		r, l := &rs[i], &f.shardFor(rs[i].Key).ledger
		switch {
		case r.Cost >= 0 || refunds(ctx, leasedUnits):
		case r.ID != "" && l.isPending(r), r.ID == "" && l.hasDebts():
			return true
		}
	}
	return false
}

// refund decides a refund while the ledger has debts: units that the secondary store granted are
// refunded there, and not charged to the primary. The rest goes to the primary.
func (f *Fallback) refund(ctx context.Context, r Request, ds []Decision) (err error) {
	s, local := f.shardFor(r.Key), Decision{}
	switch {
	case s.breaker.IsOpen():
	case r.ID != "":
		ds[0], err = f.postponeRefund(ctx, s, &r)
		return err
	default:
		local = f.refundDebt(ctx, s, &r)
	}
	if r.Cost == 0 {
		ds[0] = local
		return nil
	}
	err = f.take(ctx, []Request{r}, ds, false)
	ds[0].Granted += local.Granted
	return err
}

// postponeRefund refunds nothing, because the ledger has still to tell the primary store of
// the ID, which would charge it again. The caller can repeat the refund until the source is the
// store.
func (f *Fallback) postponeRefund(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	f.chargeAsync(s)
	d, err := f.takeLocal(ctx, s, &Request{Key: r.Key, Limit: r.Limit})
	d.Allowed = err == nil
	return d, err
}

// refundDebt refunds units that the secondary store granted and that are not yet
// charged to the primary, and subtracts them from the request. The rest is for
// the primary. It returns the secondary's decision, or the zero Decision if there
// was nothing to refund.
func (f *Fallback) refundDebt(ctx context.Context, s *fallbackShard, r *Request) (d Decision) {
	units := s.ledger.refund(r)
	if units == 0 && r.Cost != Reset {
		return d
	}
	local := Request{Key: r.Key, Limit: r.Limit, Cost: -units}
	_, local.Limit = f.modeFor(r.Limit)
	if r.Cost == Reset {
		local.Cost = Reset // this also cancels the debts under IDs
	} else {
		r.Cost += units
	}
	d, _ = f.secondary.Take(ctx, local) // on an error the secondary counts too much
	d.Allowed, d.Granted, d.Source = true, -units, SourceFallback
	return d
}

// takeAllLocal decides requests all or nothing, without the primary store.
func (f *Fallback) takeAllLocal(ctx context.Context, c *primaryCall, rs []Request, ds []Decision) error {
	b := localBatch{f: f, rs: withLongestHold(rs)}
	for i := range b.rs {
		if c.shards[i].isFirst {
			f.probeWith(c.shards[i].shard, &b.rs[i])
		}
		if err := b.add(&b.rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	if b.denied {
		for i := range b.locals {
			b.locals[i] = peekOf(b.locals[i])
		}
	}
	decisions := make([]Decision, len(b.locals))
	if err := TakeAll(ctx, f.secondary, b.locals, decisions); err != nil {
		return err
	}
	b.denied = b.denied || !allAllowed(decisions)
	b.write(ctx, c.shards, decisions, ds)
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
	rs     []Request
	limits []*compiledLimit
	modes  []FailureMode
	locals []Request // the requests under FailLocal, for the secondary store
	denied bool      // whether one of the requests is denied
}

func (b *localBatch) add(r *Request) error {
	cl, err := b.f.limits.forRequest(r)
	if err != nil {
		return err
	}
	mode, limit := b.f.modeFor(r.Limit)
	b.limits, b.modes = append(b.limits, cl), append(b.modes, mode)
	switch {
	case mode == FailLocal:
		b.locals = append(b.locals, localRequest(cl, r, limit))
	case r.canBeDenied() && (mode == FailClosed || cl.neverGrants(r)):
		b.denied = true
	}
	return nil
}

// write writes the decisions, after it is known whether any request is denied.
func (b *localBatch) write(ctx context.Context, shards []shardCall, decisions, ds []Decision) {
	totals, prior := totalsOf(b.rs), map[stateKey]int64{}
	for i := range b.rs {
		r, s, cl := &b.rs[i], shards[i].shard, b.limits[i]
		peek := peekOf(*r)
		switch {
		case b.modes[i] == FailClosed, b.modes[i] == FailOpen && cl.neverGrants(r):
			ds[i] = b.f.deny(s, cl, r)
		case b.modes[i] == FailOpen && b.denied:
			ds[i] = b.f.allow(ctx, s, cl, &peek)
		case b.modes[i] == FailOpen:
			ds[i] = b.f.allow(ctx, s, cl, r)
		default:
			ds[i] = decisions[0]
			b.f.addDebt(s, r, b.locals[0].Limit, &ds[i])
			sum, k := *r, stateKeyOf(*r)
			sum.Cost = totals[k]
			b.f.markLocal(s, cl, &sum, prior[k], &ds[i])
			prior[k] += min(r.Cost, sum.Cost-prior[k])
			decisions, b.locals = decisions[1:], b.locals[1:]
		}
	}
}

// scaled returns a fraction of a valid limit: at least one unit, unless the limit
// has none.
func (l Limit) scaled(share float64) Limit {
	n := l.Normal()
	if n.Name == "" { // fractions of different limits may be equal, but must not share state
		n.Name = "part of " + strconv.FormatInt(n.Count, 36) + " " + strconv.FormatInt(n.Burst, 36) + " " + strconv.FormatInt(int64(n.Period), 36)
	}
	if n.isBucket() && n.Count > 0 {
		n.Period = scaledPeriod(n.Period, float64(n.Count)*share)
	}
	n.Count, n.Burst = scaledUnits(n.Count, share), scaledUnits(n.Burst, share)
	if n.Debt > 0 {
		n.Debt = scaledUnits(n.Debt, share)
	}
	if n.Validate() != nil { // the rate is too high to be divided evenly
		n.Count, n.Burst, n.Debt = min(n.Count, 1), min(n.Burst, 1), min(n.Debt, 1)
	}
	return n
}

// scaledPeriod returns the time in which a bucket earns one unit, if that is
// longer than the period. Otherwise N processes would each earn one unit per
// period.
func scaledPeriod(period time.Duration, units float64) time.Duration {
	if units >= 1 {
		return period
	}
	return time.Duration(min(math.Round(float64(period)/units), float64(maxPeriod)))
}

// scaledUnits multiplies and rounds down, tolerating floating-point error: a
// third of three is one.
func scaledUnits(units int64, share float64) int64 {
	scaled := int64(math.Floor(float64(units)*share + 1e-9))
	return min(max(scaled, 1), units)
}
