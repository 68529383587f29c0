package engine

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// Take decides a request under a request limit. If there is no room for what it leaves
// behind, it returns a [*requestlimits.Refusal], unless the caller may refund; it calls mayRefund
// only if that matters.
func (e *Engine) Take(ctx context.Context, r penstock.Request, mayRefund func() bool) (penstock.Decision, error) {
	counters := e.LocalCounters()
	defer counters.Flush()
	a, err := e.requestLimits.Admit(&r, false, mayRefund)
	if err != nil {
		counters.Fail()
		return penstock.Decision{}, err
	}
	d, err := e.takeOne(ctx, r, &a)
	if err != nil {
		counters.Fail()
		return d, err
	}
	counters.Count(&r.Limit, r.Key, r.Cost, &d)
	return d, nil
}

// errPanicked stands for the result of a store that panicked, which an HTTP server survives. The
// admissions of its requests are settled nevertheless, or their room would be lost for good.
var errPanicked = errors.New("the store panicked")

// takeOne has the store decide an admitted request.
func (e *Engine) takeOne(ctx context.Context, r penstock.Request, a *requestlimits.Admission) (d penstock.Decision, err error) {
	err = errPanicked
	defer func() { a.Settle(&d, err) }()
	return e.take(ctx, r)
}

// TakeEach is [penstock.TakeEach] on the engine's store, under request limits. If there is
// no room for one of them, none is decided; see Take.
func (e *Engine) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	counters := e.LocalCounters()
	defer counters.Flush()
	if err := e.takeAdmitted(ctx, penstock.TakeEach, false, rs, ds, mayRefund); err != nil {
		counters.Fail()
		return err
	}
	for i := range rs {
		counters.Count(&rs[i].Limit, rs[i].Key, rs[i].Cost, &ds[i])
	}
	return nil
}

// TakeAll is [penstock.TakeAll] on the engine's store, under request limits. If there is no
// room for one of them, none is decided; see Take.
func (e *Engine) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) error {
	counters := e.LocalCounters()
	defer counters.Flush()
	if err := e.takeAdmitted(ctx, penstock.TakeAll, len(rs) > 1, rs, ds, mayRefund); err != nil {
		counters.Fail()
		return err
	}
	passed := allAllowed(ds[:len(rs)])
	for i := range rs {
		// If one denies, the others were only peeked at.
		if passed || !ds[i].Allowed {
			counters.Count(&rs[i].Limit, rs[i].Key, rs[i].Cost, &ds[i])
		}
	}
	return nil
}

type takeMany func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error

// takeAdmitted admits all requests or none, and has the store decide them.
func (e *Engine) takeAdmitted(ctx context.Context, take takeMany, inTakeAll bool, rs []penstock.Request, ds []penstock.Decision, mayRefund func() bool) (err error) {
	defer func() { e.overLimit.forgetReturned(rs) }()
	if inTakeAll {
		defer func() { e.overLimit.forgetRolledBack(rs, ds[:len(rs)], err) }()
	}
	admitted, err := e.requestLimits.AdmitAll(rs, inTakeAll, mayRefund)
	if err != nil {
		return err
	}
	defer func() { requestlimits.SettleAll(admitted, ds, err) }()
	err = errPanicked
	return take(ctx, e.store, rs, ds)
}

func allAllowed(ds []penstock.Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return false
		}
	}
	return true
}
