package requestlimits

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rulestats"
)

// Takes decides requests under limits that they bring. If there is no room for what they leave
// behind, the error is a [*Refusal], unless the caller may refund; mayRefund is called only if
// that matters.
type Takes struct {
	policy  *Policy
	store   penstock.Store
	stats   rulestats.Local
	onTaken func(context.Context, penstock.Request, penstock.Decision)
}

// NewTakes returns what decides requests by a store, and counts them. OnTaken is called after each, unless it is nil.
func NewTakes(p *Policy, s penstock.Store, stats rulestats.Local, onTaken func(context.Context, penstock.Request, penstock.Decision)) Takes {
	if onTaken == nil {
		onTaken = func(context.Context, penstock.Request, penstock.Decision) {}
	}
	return Takes{p, s, stats, onTaken}
}

// LocalStats returns counters for requests with limits, for one goroutine.
func (t *Takes) LocalStats() rulestats.Local { return t.stats }

// ErrPanicked stands for the result of a store that panicked, which an HTTP server survives. The
// admissions of its requests are finished nevertheless, or their room would be lost for good.
var ErrPanicked = errors.New("the store panicked")

// Take decides a request.
func (t *Takes) Take(ctx context.Context, r penstock.Request, mayRefund func() bool) (penstock.Decision, error) {
	stats := t.LocalStats()
	defer stats.Flush()
	d, err := t.takeAdmitted(ctx, r, mayRefund)
	if err != nil {
		stats.Fail()
		return d, err
	}
	stats.Count(&r.Limit, r.Key, r.Cost, &d)
	t.onTaken(ctx, r, d)
	return d, nil
}

func (t *Takes) takeAdmitted(ctx context.Context, r penstock.Request, mayRefund func() bool) (d penstock.Decision, err error) {
	a, err := t.policy.Admit(&r, false, mayRefund)
	if err != nil {
		return d, err
	}
	err = ErrPanicked
	defer func() { a.Finish(&d, err) }()
	return t.store.Take(ctx, r)
}

// TakeEach is [penstock.TakeEach]. If there is no room for one of the requests, none is decided.
func (t *Takes) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	return t.takeMany(ctx, penstock.TakeEach, false, rs, ds, mayRefund)
}

// TakeAll is [penstock.TakeAll]. If there is no room for one of the requests, none is decided.
func (t *Takes) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	return t.takeMany(ctx, penstock.TakeAll, len(rs) > 1, rs, ds, mayRefund)
}

type takeMany func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error

func (t *Takes) takeMany(ctx context.Context, take takeMany, inTakeAll bool, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	stats := t.LocalStats()
	defer stats.Flush()
	if err := t.takeManyAdmitted(ctx, take, inTakeAll, rs, ds, mayRefund); err != nil {
		stats.Fail()
		return err
	}
	denied := inTakeAll && slices.ContainsFunc(ds[:len(rs)], func(d penstock.Decision) bool { return !d.Allowed })
	for i := range rs {
		if !denied || !ds[i].Allowed { // if one denies, the others were only peeked at
			stats.Count(&rs[i].Limit, rs[i].Key, rs[i].Cost, &ds[i])
		}
		t.onTaken(ctx, rs[i], ds[i])
	}
	return nil
}

// takeManyAdmitted admits all requests or none, and has the store decide them.
func (t *Takes) takeManyAdmitted(ctx context.Context, take takeMany, inTakeAll bool, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	admitted, err := t.policy.AdmitAll(rs, inTakeAll, mayRefund)
	if err != nil {
		return err
	}
	err = ErrPanicked
	defer func() { FinishAll(admitted, ds, err) }()
	err = take(ctx, t.store, rs, ds)
	return err
}
