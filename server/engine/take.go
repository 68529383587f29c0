package engine

import (
	"context"

	"github.com/penstock-io/penstock"
)

// Take decides a request under the limit that it names, and counts it as ad hoc.
func (e *Engine) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := e.store.Take(ctx, r)
	counters := e.LocalCounters()
	if err != nil {
		counters.Fail()
	} else {
		counters.Count(r.Cost, &d)
	}
	counters.Flush()
	return d, err
}

// TakeEach is [penstock.TakeEach] on the engine's store, and counts the decisions as ad hoc.
func (e *Engine) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	counters := e.LocalCounters()
	defer counters.Flush()
	if err := penstock.TakeEach(ctx, e.store, rs, ds); err != nil {
		counters.Fail()
		return err
	}
	for i := range rs {
		counters.Count(rs[i].Cost, &ds[i])
	}
	return nil
}

// TakeAll is [penstock.TakeAll] on the engine's store, and counts the decisions as ad hoc.
func (e *Engine) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	counters := e.LocalCounters()
	defer counters.Flush()
	if err := penstock.TakeAll(ctx, e.store, rs, ds); err != nil {
		counters.Fail()
		return err
	}
	passed := allAllowed(ds[:len(rs)])
	for i := range rs {
		// If one denies, the others were only peeked at.
		if passed || !ds[i].Allowed {
			counters.Count(rs[i].Cost, &ds[i])
		}
	}
	return nil
}

func allAllowed(ds []penstock.Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return false
		}
	}
	return true
}
