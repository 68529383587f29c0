package penstock

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// This file settles what was taken under an ID. The store that granted the ID knows it:
// the primary, or the secondary while the primary was down. A settlement that the primary
// does not get is kept in the ledger.

// settle decides a settlement.
func (f *Fallback) settle(ctx context.Context, r *Request) (d Decision, err error) {
	s := f.shardFor(r.Key)
	if s.ledger.isPending(r) {
		return f.settleWithoutPrimary(ctx, r)
	}
	call, ok := f.admit(s)
	if !ok {
		return f.settleWithoutPrimary(ctx, r)
	}
	d, err = f.callPrimary(ctx, *r)
	switch {
	case !isMalformed(err) && errors.Is(err, ErrUnknownID):
		f.succeeded(s, call.ticket)
		ds := [1]Decision{}
		if local := f.settleLocal(ctx, []Request{*r}, ds[:]); !errors.Is(local, ErrUnknownID) {
			return ds[0], withoutIndex(local)
		}
	case f.report(ctx, &call, r, err):
		return f.settleWithoutPrimary(ctx, r)
	}
	return d, err
}

// settleWithoutPrimary is settleAllWithoutPrimary for one request.
func (f *Fallback) settleWithoutPrimary(ctx context.Context, r *Request) (Decision, error) {
	ds := [1]Decision{}
	err := f.settleAllWithoutPrimary(ctx, []Request{*r}, ds[:])
	return ds[0], withoutIndex(err)
}

// withoutIndex returns the error of a single request.
func withoutIndex(err error) error {
	var about *RequestError
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// settleAll decides settlements as one.
func (f *Fallback) settleAll(ctx context.Context, rs []Request, ds []Decision) error {
	b := f.newBatch(rs)
	if b.allAdmitted && !f.anyPending(rs) {
		answered, err := b.call(ctx, TakeAll, rs, ds, nil)
		if errors.Is(err, ErrUnknownID) {
			if local := f.settleLocal(ctx, rs, ds); !errors.Is(local, ErrUnknownID) {
				return local
			}
		}
		if answered || err != nil {
			return err
		}
	}
	return f.settleAllWithoutPrimary(ctx, rs, ds)
}

// settleAllWithoutPrimary settles without the primary store, as one. What the secondary store has
// granted is settled there. The rest the primary may have granted: the ledger settles it
// when that is up again. While the ledger has an earlier settlement of an ID, a later one must
// not overtake it, so it goes the same way.
func (f *Fallback) settleAllWithoutPrimary(ctx context.Context, rs []Request, ds []Decision) error {
	for i := range rs {
		f.probeWith(f.shardFor(rs[i].Key), &rs[i])
		defer f.chargeAsync(f.shardFor(rs[i].Key))
	}
	err := f.settleLocal(ctx, rs, ds)
	if !errors.Is(err, ErrUnknownID) {
		return err
	}
	known := make([]bool, len(rs))
	locals := f.localSettlements(rs)
	for i := range locals {
		if ds[i], known[i], err = f.settleIfKnown(ctx, locals[i]); err != nil {
			return requestError(i, err)
		}
	}
	for i := range rs {
		f.deferSettlement(&rs[i], locals[i].Limit, &ds[i], known[i])
	}
	return nil
}

// settleLocal settles what the secondary store granted, as one. The ledger charges it to
// the primary.
func (f *Fallback) settleLocal(ctx context.Context, rs []Request, ds []Decision) error {
	if !f.hasRoom(rs) {
		return errLedgerFull
	}
	locals := f.localSettlements(rs)
	if err := TakeAll(ctx, f.secondary, locals, ds); err != nil {
		return err
	}
	for i := range rs {
		f.deferSettlement(&rs[i], locals[i].Limit, &ds[i], true)
	}
	return nil
}

// anyPending reports whether the ledgers have something to tell about an ID of the requests.
func (f *Fallback) anyPending(rs []Request) bool {
	return slices.ContainsFunc(rs, func(r Request) bool { return f.shardFor(r.Key).ledger.isPending(&r) })
}

// errLedgerFull is returned if the ledger has no room for a settlement, which would be lost.
var errLedgerFull = fmt.Errorf("penstock: fallback: settle: %w: too many settlements wait for the primary store", ErrUnavailable)

// hasRoom reports whether the ledgers have room for all settlements.
func (f *Fallback) hasRoom(rs []Request) bool {
	for i := range rs {
		if !f.shardFor(rs[i].Key).ledger.hasRoom(&rs[i], i+1) {
			return false
		}
	}
	return true
}

// localSettlements returns the settlements under the limits of the secondary store.
func (f *Fallback) localSettlements(rs []Request) []Request {
	locals := slices.Clone(rs)
	for i := range locals {
		_, locals[i].Limit = f.modeFor(rs[i].Limit)
	}
	return locals
}

// settleIfKnown settles what the secondary store granted, or peeks if it knows nothing.
func (f *Fallback) settleIfKnown(ctx context.Context, local Request) (d Decision, known bool, err error) {
	d, err = f.secondary.Take(ctx, local)
	if !errors.Is(err, ErrUnknownID) {
		return d, true, err
	}
	d, err = f.secondary.Take(ctx, Request{Key: local.Key, Limit: local.Limit})
	return d, false, err
}

// deferSettlement records a settlement for the primary store, by the decision of the
// secondary: its settlement or, if it does not know the ID, a peek.
func (f *Fallback) deferSettlement(r *Request, local Limit, d *Decision, known bool) {
	units, until := int64(0), int64(0)
	if known {
		units, until = d.Granted, f.debtUntil(r, d)
	} else {
		d.settled(r.Cost)
	}
	d.Source = SourceFallback
	f.shardFor(r.Key).ledger.settle(r, local, units, until)
}
