package penstock

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// This file settles what was taken under an ID. The store that granted the ID knows it:
// the primary, or the secondary while the primary was down. A settlement that the primary
// does not get is kept in the ledger.

// settle decides a settlement.
func (f *Fallback) settle(ctx context.Context, r *Request) (Decision, error) {
	s := f.shardFor(r.Key)
	sent := f.clock.Now()
	t, ok := s.breaker.Admit(sent)
	if !ok {
		return f.settleDown(ctx, s, r)
	}
	d, err := f.callPrimary(ctx, *r)
	switch {
	case err == nil:
		f.succeeded(s, t)
	case isMalformed(err):
	case errors.Is(err, ErrUnknownID):
		f.succeeded(s, t)
		if local, localErr := f.settleLocal(ctx, s, r); localErr == nil {
			return local, nil
		}
	case !f.isStoreFault(ctx, sent):
		f.verifyAsync(s, r)
	default:
		f.failed(s, t, err)
		if ctx.Err() == nil {
			return f.settleDown(ctx, s, r)
		}
	}
	return d, err
}

// settleLocal settles what the secondary store granted. The ledger charges it to the
// primary.
func (f *Fallback) settleLocal(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	cl, err := f.compile(r)
	if err != nil {
		return Decision{}, err
	}
	local := *r
	_, local.Limit = f.modeFor(r.Limit)
	d, err := f.secondary.Take(ctx, local)
	if err == nil {
		s.ledger.settle(r, local.Limit, d.Granted, f.debtUntil(r, &d))
		f.markLocal(s, cl, r, &d)
	}
	return d, err
}

// settleDown settles without the primary store. If the secondary does not know the ID,
// the primary may have granted it: the ledger settles it when the primary is up again.
func (f *Fallback) settleDown(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	f.probeWith(s, r)
	d, err := f.settleLocal(ctx, s, r)
	if !errors.Is(err, ErrUnknownID) {
		return d, err
	}
	peek := Request{Key: r.Key, Limit: r.Limit}
	_, peek.Limit = f.modeFor(r.Limit)
	if d, err = f.secondary.Take(ctx, peek); err != nil {
		return Decision{}, err
	}
	s.ledger.settle(r, peek.Limit, 0, 0)
	d.settled(r.Cost)
	d.Source = SourceFallback
	return d, nil
}

// settleAll decides settlements as one.
func (f *Fallback) settleAll(ctx context.Context, rs []Request, ds []Decision) error {
	b := f.newBatch(rs)
	if b.allAdmitted {
		answered, err := b.call(ctx, TakeAll, rs, ds, nil)
		if errors.Is(err, ErrUnknownID) && f.settleAllLocal(ctx, rs, ds) == nil {
			return nil
		}
		if answered || err != nil {
			return err
		}
	}
	for i := range rs {
		var err error
		if ds[i], err = f.settleDown(ctx, b.calls[i].shard, &rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	return nil
}

// settleAllLocal settles what the secondary store granted, as one.
func (f *Fallback) settleAllLocal(ctx context.Context, rs []Request, ds []Decision) error {
	locals := slices.Clone(rs)
	for i := range locals {
		_, locals[i].Limit = f.modeFor(rs[i].Limit)
	}
	if err := TakeAll(ctx, f.secondary, locals, ds); err != nil {
		return err
	}
	for i := range rs {
		f.shardFor(rs[i].Key).ledger.settle(&rs[i], locals[i].Limit, ds[i].Granted, f.debtUntil(&rs[i], &ds[i]))
		ds[i].Source = SourceFallback
	}
	return nil
}

// settle records that what was granted under an ID is settled. The units are those that
// the secondary store has charged, in a window that ends at until.
func (l *ledger) settle(r *Request, local Limit, units, until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := debtKeyOf(r)
	d, known := l.debts[k]
	if !known && len(l.debts)+len(l.retries) >= l.maxDebts {
		return
	}
	if !known {
		d.key, d.id = strings.Clone(r.Key), strings.Clone(r.ID)
		k.key, k.id = d.key, d.id
	}
	d.limit, d.local, d.units, d.overdraw, d.until = r.Limit, local, units, r.Limit.Algorithm.hasDebt(), until
	d.isSettled, d.amount = true, r.Cost
	l.put(k, d)
}

// chargeSettled charges a settled debt. If the primary store has granted the ID, it is
// settled there. Otherwise what the secondary has granted is charged, under the same ID.
func (f *Fallback) chargeSettled(d *debt) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	_, err := f.primary.Take(ctx, Request{Key: d.key, Limit: d.limit, Cost: d.amount, ID: d.id, Settle: true})
	if !errors.Is(err, ErrUnknownID) {
		return err
	}
	r, ok := f.settlement(d)
	if !ok {
		return nil
	}
	_, err = f.primary.Take(ctx, r)
	return err
}

// chargeAllSettled charges settled debts one by one, and returns those that it could not
// charge, with the error.
func (f *Fallback) chargeAllSettled(ds []debt) (rest []debt, err error) {
	for i := range ds {
		err = f.chargeSettled(&ds[i])
		if err != nil && !isMalformed(err) && !isKeyError(err) {
			return ds[i:], err
		}
	}
	return nil, nil
}
