package engine

import (
	"context"
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// Envoy's service adds the hits of every request to a counter, and compares the sum with a
// limit afterwards. Two things follow that a store does not do by itself: hits beyond the
// limit stay recorded, and requests with different limits share one counter.
//
// A counting limit has the identity of a window's own limit, and a count that no window
// reaches. So the store adds whatever it is asked to add, and its decision tells the sum.
// The engine compares it.

// maxCounted is the count of counting limits. Redis counts windows to fourteen digits.
const maxCounted = 1 << 46

// countingLimit returns the counting limit of a fixed window.
func countingLimit(l penstock.Limit) penstock.Limit {
	l.Count, l.Debt = maxCounted, 0
	return l
}

// canCount reports whether a limit has a counting limit.
func canCount(l *penstock.Limit) bool { return l.Algorithm == penstock.FixedWindow }

// isCounting reports whether a limit is a counting limit.
func isCounting(l *penstock.Limit) bool { return l.Count == maxCounted && canCount(l) }

// A countedState is the counting limit of a rule.
type countedState struct {
	request penstock.Request // without a key
}

// storedLimit returns the limit under which the store decides the requests of a rule. Under
// compat that is the counting limit. Otherwise it is the rule's own, but what requests with
// their own limit and reports recorded beyond the count of a window is kept, however much it is.
func storedLimit(r *rules.Rule, compat bool) penstock.Limit {
	l := r.Limit
	switch {
	case !canCount(&l):
	case compat:
		return countingLimit(l)
	case l.Debt == 0 && (r.ChargeAlways || countsOwnLimits(r)):
		l.Debt = maxCounted
	}
	return l
}

// countsOwnLimits reports whether the hits of descriptors with their own limit, if that is of the
// same unit, are counted under a rule: it has windows of Envoy's.
func countsOwnLimits(r *rules.Rule) bool {
	l := &r.Limit
	return r.Unit != rules.UnknownUnit && canCount(l) && l.Align == penstock.AlignClock && l.Offset == 0
}

// countsPeeks reports whether the descriptor is peeked at under its counting limit.
func (d *limitedDescriptor) countsPeeks() bool {
	return d.counter != nil && (d.underRule || d.denyInDebt || d.rule.ChargeAlways)
}

// isCounting reports whether the store decides the descriptor under a counting limit.
func (d *limitedDescriptor) isCounting() bool {
	return isCounting(&d.template.Limit)
}

// interpret turns a decision of the store into one about the descriptor.
func (ev *evaluation) interpret(d *limitedDescriptor, n int) {
	r, dec := &ev.requests[n], &ev.decisions[n]
	if isCounting(&r.Limit) {
		ev.compareCount(d, r, dec)
	}
	switch {
	case d.rule.ChargeAlways && r.Cost == 0:
		dec.Allowed = dec.Allowed && dec.Remaining > 0
	case d.rule.ChargeAlways && r.Overdraw: // after the peek
		before := &ev.result.Statuses[d.index].Decision
		dec.Allowed, dec.Limit, dec.Remaining = !d.denied, before.Limit, max(before.Remaining-dec.Granted, 0)
	case d.underRule && r.Cost == 0: // after the charge, if there was one
		dec.Granted = ev.granted(d)
	case d.denyInDebt && r.Cost == 0:
		dec.Allowed = dec.Allowed && !owes(&r.Limit, dec)
	}
	if !dec.Allowed && dec.RetryAfter == 0 {
		dec.RetryAfter = untilUnit(&d.rule.Limit, dec)
	}
}

// compareCount compares a sum of hits with the limit of the descriptor.
func (ev *evaluation) compareCount(d *limitedDescriptor, r *penstock.Request, dec *penstock.Decision) {
	if dec.Limit == 0 {
		return // not decided, because of an error
	}
	count, mode := ev.countFor(d, dec)
	used := dec.Limit - dec.Remaining
	d.before = used - dec.Granted
	dec.Limit, dec.Remaining = count, max(count-used, 0)
	if r.Cost < 0 {
		return
	}
	fits := dec.Allowed && used <= count-d.kept(count)
	if dec.Source == penstock.SourceFallback {
		fits = mode == penstock.FailOpen || fits && mode == penstock.FailLocal
	}
	if dec.Allowed = fits; !fits {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
		if r.Cost > d.count-d.kept(d.count) {
			dec.RetryAfter = penstock.Never
		}
	}
}

// kept returns how many units of a count the descriptor keeps free: those of its rule or, of a
// share of the rule's count, the same share of them, rounded up.
func (d *limitedDescriptor) kept(count int64) int64 {
	if count == d.count || d.rule.KeepFree == 0 {
		return d.rule.KeepFree
	}
	return int64(math.Ceil(float64(d.rule.KeepFree) * float64(count) / float64(d.count)))
}

// countFor returns what a sum is compared with: the limit of the descriptor or, if a
// fallback decided by a share of the counting limit, the same share of it.
func (ev *evaluation) countFor(d *limitedDescriptor, dec *penstock.Decision) (count int64, mode penstock.FailureMode) {
	if dec.Source != penstock.SourceFallback {
		return d.count, penstock.FailLocal
	}
	if ev.engine.onFailure != nil {
		mode, _ = ev.engine.onFailure(d.template.Limit)
	}
	share := float64(dec.Limit) / maxCounted
	scaled := int64(math.Floor(float64(d.count)*share + 1e-3))
	return min(max(scaled, 1), d.count), mode
}

// owes reports whether a peek shows that a bucket is overdrawn. An empty bucket refills in
// the time of its whole burst.
func owes(l *penstock.Limit, dec *penstock.Decision) bool {
	n := l.Normal()
	if !n.IsBucket() || n.Count == 0 {
		return false
	}
	refill := float64(n.Period) / float64(n.Count) * float64(n.Burst)
	return dec.Remaining == 0 && float64(dec.ResetAfter) > refill*(1+maxRateError)+float64(time.Millisecond)
}

// maxRateError is by how much the rate of a bucket may differ from that of its limit.
const maxRateError = 0.001

// untilUnit returns when one unit is left again, at the latest.
func untilUnit(l *penstock.Limit, dec *penstock.Decision) time.Duration {
	n := l.Normal()
	after := dec.ResetAfter
	if n.IsBucket() && n.Count > 0 {
		after -= time.Duration(float64(n.Period) / float64(n.Count) * float64(n.Burst-1))
	}
	return max(after, time.Nanosecond)
}

// TakeRule takes, peeks at, refunds or resets units of a rule's key, for an operator. A take
// that does not fit is not charged, in any mode, and no counter of requests includes it.
func (e *Engine) TakeRule(ctx context.Context, r *rules.Rule, key string, cost int64) (penstock.Decision, error) {
	t := e.table.Load()
	if t == nil || r.Index >= len(t.states) || t.set.Rules()[r.Index] != r {
		return e.take(ctx, penstock.Request{Key: key, Limit: r.Limit, Cost: cost}) // reloaded meanwhile
	}
	r, state, err := e.ruleOfKey(ctx, t, r, key, cost)
	if err != nil {
		return penstock.Decision{}, err
	}
	request := state.template
	request.Key, request.Cost = key, cost
	if !isCounting(&request.Limit) {
		return e.take(ctx, request)
	}
	return e.takeCounted(ctx, state, r, request)
}

// take has the store decide one request.
func (e *Engine) take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := e.store.Take(ctx, r)
	e.ForgetReturned(&r)
	return d, err
}

// takeCounted is TakeRule under a counting limit. Only a peek tells whether units are left, so
// a take is one.
func (e *Engine) takeCounted(ctx context.Context, state *ruleState, r *rules.Rule, request penstock.Request) (penstock.Decision, error) {
	cost := request.Cost
	request.Cost = min(cost, 0)
	dec, err := e.take(ctx, request)
	if err != nil {
		return dec, err
	}
	ev := evaluation{engine: e}
	d := limitedDescriptor{rule: r, template: &request, count: state.count}
	ev.compareCount(&d, &request, &dec)
	dec.Allowed = cost <= 0 || dec.Remaining >= cost
	if dec.RetryAfter = 0; !dec.Allowed {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
	}
	return dec, nil
}
