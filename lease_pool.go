package penstock

import (
	"sync/atomic"
	"time"
)

// A unitPool holds leased units that are spent without a lock. Adding or removing
// units otherwise needs the lock of its set. A nil pool is empty.
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

// take takes the cost of a request from the pool, if it has enough units that
// have not expired. It returns how many are left.
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

// canTakeBack reports whether the request spent units of this pool, and they have
// not expired. Units of a fallback are of no pool, even if taken at the same time.
func (p *unitPool) canTakeBack(lr *leaseRequest, now int64) bool {
	return p != nil && !lr.local && p.takenAt == lr.takenAt && now < p.expires
}

// units returns the number of units, including expired ones.
func (p *unitPool) units() int64 {
	if p == nil {
		return 0
	}
	return p.left.Load()
}

// usable returns the number of units that have not expired.
func (p *unitPool) usable(now int64) int64 {
	if p == nil || now >= p.expires {
		return 0
	}
	return p.left.Load()
}
