package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// Take decides a request under a request limit. If there is no room for what it leaves
// behind, it returns a [*requestlimits.Refusal], unless the caller may refund; it calls mayRefund
// only if that matters.
func (e *Engine) Take(ctx context.Context, r penstock.Request, mayRefund func() bool) (penstock.Decision, error) {
	stats := e.LocalStats()
	defer stats.Flush()
	a, err := e.requestLimits.Admit(&r, false, mayRefund)
	if err != nil {
		stats.Fail()
		return penstock.Decision{}, err
	}
	d, err := takeOne(ctx, e.calls, r, &a)
	if err != nil {
		stats.Fail()
		return d, err
	}
	stats.Count(&r.Limit, r.Key, r.Cost, &d)
	if e.options.OnTaken != nil {
		e.options.OnTaken(ctx, r, d)
	}
	return d, nil
}

// takeOne has the store decide an admitted request.
func takeOne(ctx context.Context, s penstock.Store, r penstock.Request, a *requestlimits.Admission) (d penstock.Decision, err error) {
	err = errPanicked
	defer func() { a.Finish(&d, err) }()
	return s.Take(ctx, r)
}

// TakeEach is [penstock.TakeEach] on the engine's store, under request limits. If there is
// no room for one of them, none is decided; see Take.
func (e *Engine) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	return e.takeMany(ctx, penstock.TakeEach, false, rs, ds, mayRefund)
}

// TakeAll is [penstock.TakeAll] on the engine's store, under request limits. If there is no
// room for one of them, none is decided; see Take.
func (e *Engine) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	return e.takeMany(ctx, penstock.TakeAll, len(rs) > 1, rs, ds, mayRefund)
}

type takeMany func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error

func (e *Engine) takeMany(ctx context.Context, take takeMany, inTakeAll bool, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	stats := e.LocalStats()
	defer stats.Flush()
	if err := e.takeAdmitted(ctx, take, inTakeAll, rs, ds, mayRefund); err != nil {
		stats.Fail()
		return err
	}
	denied := inTakeAll && !allAllowed(ds[:len(rs)])
	for i := range rs {
		if !denied || !ds[i].Allowed { // if one denies, the others were only peeked at
			stats.Count(&rs[i].Limit, rs[i].Key, rs[i].Cost, &ds[i])
		}
		if e.options.OnTaken != nil {
			e.options.OnTaken(ctx, rs[i], ds[i])
		}
	}
	return nil
}

// takeAdmitted admits all requests or none, and has the store decide them.
func (e *Engine) takeAdmitted(ctx context.Context, take takeMany, inTakeAll bool, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	admitted, err := e.requestLimits.AdmitAll(rs, inTakeAll, mayRefund)
	if err != nil {
		return err
	}
	err = errPanicked
	defer func() { requestlimits.FinishAll(admitted, ds, err) }()
	err = take(ctx, e.calls, rs, ds)
	return err
}

// TakeRule takes, peeks at, refunds or resets units of a rule's key, for an operator. A take
// that does not fit is not charged, in any mode, and no statistics of requests include it.
func (e *Engine) TakeRule(ctx context.Context, r *rules.Rule, key string, cost int64) (penstock.Decision, error) {
	t := e.table.Load()
	if t == nil || r.Index >= len(t.states) || t.set.Rules()[r.Index] != r {
		return e.calls.Take(ctx, penstock.Request{Key: key, Limit: r.Limit, Cost: cost}) // reloaded meanwhile
	}
	r, state, err := t.ruleOfKey(ctx, r, key, cost)
	if err != nil {
		return penstock.Decision{}, err
	}
	request := state.template
	request.Key, request.Cost = key, cost
	addsHits := isHitsLimit(&request.Limit)
	if addsHits { // only a peek tells whether hits are left, so a take is one
		request.Cost = min(cost, 0)
	}
	dec, err := e.calls.Take(ctx, request)
	if err != nil || !addsHits {
		return dec, err
	}
	d := limitedDescriptor{rule: r, template: &request, maxHits: state.maxHits, keepFree: r.KeepFree}
	d.compareHits(&request, &dec, e.options.OnFailure)
	dec.Allowed = cost <= 0 || dec.Remaining >= cost
	if dec.RetryAfter = 0; !dec.Allowed {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
	}
	return dec, nil
}

// SettleRule makes what was taken under an ID from a rule's key equal to the cost, for an operator.
func (e *Engine) SettleRule(ctx context.Context, r *rules.Rule, key, id string, cost int64) (penstock.Decision, error) {
	t := e.table.Load()
	request := penstock.Request{Limit: r.Limit}
	if t != nil && r.Index < len(t.states) && t.set.Rules()[r.Index] == r { // it was not reloaded meanwhile
		_, state, err := t.ruleOfKey(ctx, r, key, cost)
		if err != nil {
			return penstock.Decision{}, err
		}
		request = state.template
	}
	if !r.Settle {
		return penstock.Decision{}, fmt.Errorf("rule %s: %w: it needs settle: true", r.Name, ErrNoSettle)
	}
	request.Key, request.Cost, request.ID, request.Settle = key, cost, id, true
	return e.calls.Take(ctx, request)
}

// Charged reports which keys of rules have units charged to them, by one call of the store.
func (e *Engine) Charged(ctx context.Context, of []*rules.Rule, keys []string) ([]bool, error) {
	t := e.table.Load()
	rs := make([]penstock.Request, len(of))
	for i, r := range of {
		rs[i] = penstock.Request{Key: keys[i], Limit: r.Limit}
		if t != nil && r.Index < len(t.states) && t.set.Rules()[r.Index] == r { // it was not reloaded meanwhile
			rs[i].Limit = t.states[r.Index].template.Limit
		}
	}
	ds := make([]penstock.Decision, len(rs))
	err := penstock.TakeEach(ctx, e.calls, rs, ds)
	charged := make([]bool, len(rs))
	for i := range ds {
		charged[i] = ds[i].ResetAfter > 0
	}
	return charged, err
}

func allAllowed(ds []penstock.Decision) bool {
	return !slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
}
