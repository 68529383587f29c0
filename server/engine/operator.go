package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/hitlimit"
)

// TakeRule takes, peeks at, refunds or resets units of a rule's key, for an operator. A take
// that does not fit is not charged, in any mode, and no statistics of requests include it.
func (e *Engine) TakeRule(ctx context.Context, r *rules.Rule, key string, cost int64) (penstock.Decision, error) {
	request, state, err := e.requestOf(ctx, r, key, cost)
	if err != nil {
		return penstock.Decision{}, err
	}
	addsHits := hitlimit.Is(&request.Limit)
	if addsHits { // only a peek tells whether hits are left, so a take is one
		request.Cost = min(cost, 0)
	}
	dec, err := e.calls.Take(ctx, request)
	if err != nil || !addsHits {
		return dec, err
	}
	bound := hitlimit.Bound{Most: state.maxHits, KeepFree: request.KeepFree}
	bound.Compare(&request, &dec, e.options.OnFailure)
	dec.Allowed = cost <= 0 || dec.Remaining >= cost
	if dec.RetryAfter = 0; !dec.Allowed {
		dec.RetryAfter = max(dec.ResetAfter, time.Nanosecond)
	}
	return dec, nil
}

// requestOf returns a request for units of a rule's key under the limit that the key has, and the state of
// that limit: it is nil if the rules were reloaded meanwhile.
func (e *Engine) requestOf(ctx context.Context, r *rules.Rule, key string, cost int64) (penstock.Request, *ruleState, error) {
	t := e.table.Load()
	if t.stateOf(r) == nil {
		return penstock.Request{Key: key, Limit: r.Limit, Cost: cost}, nil, nil
	}
	state, err := t.stateOfKey(ctx, r, key, cost)
	if err != nil {
		return penstock.Request{}, nil, err
	}
	request := state.template
	request.Key, request.Cost = key, cost
	return request, state, nil
}

// SettleRule makes what was taken under an ID from a rule's key equal to the cost, for an operator.
func (e *Engine) SettleRule(ctx context.Context, r *rules.Rule, key, id string, cost int64) (penstock.Decision, error) {
	request, _, err := e.requestOf(ctx, r, key, cost)
	if err == nil && !r.Settle {
		err = fmt.Errorf("rule %s: %w: it needs settle: true", r.Name, ErrNoSettle)
	}
	if err != nil {
		return penstock.Decision{}, err
	}
	request.ID, request.Settle = id, true
	return e.calls.Take(ctx, request)
}

// Charged reports which keys of rules have units charged to them, by one call of the store.
func (e *Engine) Charged(ctx context.Context, of []*rules.Rule, keys []string) ([]bool, error) {
	t := e.table.Load()
	rs := make([]penstock.Request, len(of))
	for i, r := range of {
		rs[i] = penstock.Request{Key: keys[i], Limit: r.Limit}
		if s := t.stateOf(r); s != nil {
			rs[i].Limit = s.template.Limit
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
