package penstock

import (
	"sync/atomic"
	"time"
)

// A unitPool holds leased units, to be spent without a lock. Adding units or taking
// out the rest needs the lock of its set. A nil pool is empty.
type unitPool struct {
	hash       uint64
	normalHash uint64 // of the limit
	left       atomic.Int64
	counted    int64 // units that were left when demand was last counted
	takenAt    int64 // when the oldest unit was taken from the store
	expires    int64 // when the oldest unit expires

	remaining int64 // in the store, after the units were taken
	resetAt   int64
}

// spend decides a request if the pool has enough units.
func (p *unitPool) spend(lr *leaseRequest, d *Decision) bool {
	left, ok := p.take(lr)
	if !ok {
		return false
	}
	lr.takenAt = p.takenAt
	*d = Decision{
		Allowed: true, Granted: lr.cost, Limit: lr.limit.capacity,
		Remaining:  min(left+p.remaining, lr.limit.capacity),
		ResetAfter: time.Duration(max(p.resetAt-lr.now, 0)),
		Source:     SourceLease,
	}
	return true
}

// take takes the cost of a request out of the pool, if that has enough units that
// have not expired, and returns how many are left.
func (p *unitPool) take(lr *leaseRequest) (left int64, ok bool) {
	for p != nil && lr.now < p.expires {
		left = p.left.Load()
		if left < lr.cost {
			break
		}
		if p.left.CompareAndSwap(left, left-lr.cost) {
			return left - lr.cost, true
		}
	}
	return 0, false
}

// canTakeBack reports whether a request spent units of this pool that have not
// expired.
func (p *unitPool) canTakeBack(lr *leaseRequest, now int64) bool {
	return p != nil && p.takenAt == lr.takenAt && now < p.expires
}

// units returns how many units the pool has, expired or not.
func (p *unitPool) units() int64 {
	if p == nil {
		return 0
	}
	return p.left.Load()
}

// usable returns how many units may be spent now.
func (p *unitPool) usable(now int64) int64 {
	if p == nil || now >= p.expires {
		return 0
	}
	return p.left.Load()
}
