package penstock

import (
	"context"
	"slices"
)

// A leaseBatch is the state of one TakeEach or TakeAll of a [Lease].
type leaseBatch struct {
	l            *Lease
	rs           []Request
	ds           []Decision
	lrs          []leaseRequest
	allOrNothing bool

	rest    []Request // requests that the store decides
	indexes []int     // of those among all
}

// newBatch prepares the requests. It is not ok if none of them can be leased, or
// if one is malformed; then the store is called with all of them, and returns the
// error.
func (l *Lease) newBatch(rs []Request, ds []Decision) (b *leaseBatch, ok bool) {
	if l.next == nil || len(ds) < len(rs) || !l.leasesAny(rs) {
		return nil, false
	}
	lrs := make([]leaseRequest, len(rs))
	for i := range rs {
		if rs[i].validate() != nil {
			return nil, false
		}
		lrs[i], _ = l.newRequest(&rs[i])
	}
	return &leaseBatch{l: l, rs: rs, ds: ds, lrs: lrs}, true
}

// leasesAny reports whether any of the requests can be leased.
func (l *Lease) leasesAny(rs []Request) bool {
	for i := range rs {
		if _, ok := l.newRequest(&rs[i]); ok {
			return true
		}
	}
	return false
}

// spend decides a request by leased units, or leaves it to the store. After a
// refund, all later requests of the same key go to the store too. In a TakeAll
// only the store denies, because only it knows the state of the other keys.
func (b *leaseBatch) spend(ctx context.Context, i int) error {
	lr := &b.lrs[i]
	if lr.spendable && !b.followsRefund(i) {
		decided, err := b.l.spendOrRefill(ctx, lr, &b.ds[i])
		if err != nil {
			return err
		}
		if decided && (b.ds[i].Allowed || !b.allOrNothing) {
			return nil
		}
	}
	lr.takenAt, lr.local, b.ds[i] = 0, false, Decision{} // a refill is no decision about the request
	b.rest, b.indexes = append(b.rest, b.rs[i]), append(b.indexes, i)
	return nil
}

func (b *leaseBatch) followsRefund(i int) bool {
	return slices.ContainsFunc(b.lrs[:i], func(lr leaseRequest) bool { return lr.cost < 0 && lr.hash == b.lrs[i].hash })
}

// takeRest lets the store decide the remaining requests, and reports whether it
// allowed all of them.
func (b *leaseBatch) takeRest(ctx context.Context, take takeFunc) (allowed bool, err error) {
	if len(b.rest) == 0 {
		return true, nil
	}
	for _, i := range b.indexes {
		if b.lrs[i].limit != nil {
			b.l.beforeStore(&b.lrs[i])
		}
	}
	decisions := make([]Decision, len(b.rest))
	err = take(ctx, b.l.next, b.rest, decisions)
	allowed = err == nil
	for j, i := range b.indexes {
		allowed = allowed && decisions[j].Allowed
		if lr := &b.lrs[i]; lr.limit != nil {
			b.l.afterStore(lr, &decisions[j], err)
		}
		b.ds[i] = decisions[j]
	}
	return allowed, reindex(err, b.indexes)
}

// revert puts back the leased units that were spent, and turns those decisions into
// peeks.
func (b *leaseBatch) revert() {
	for i := range b.lrs {
		if lr := &b.lrs[i]; lr.takenAt > 0 {
			b.l.setOf(lr).putBack(b.l, lr)
			b.ds[i].Granted = 0
			b.ds[i].Remaining = min(b.ds[i].Remaining+lr.cost, b.ds[i].Limit)
			lr.takenAt, lr.local = 0, false
		}
	}
	b.l.flushSoon()
}
