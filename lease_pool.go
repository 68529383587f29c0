package penstock

import (
	"sync/atomic"
	"time"
)

// A purse holds units that were taken together, for everybody to spend of without
// a lock. Only who has the lock of its set puts any in, or takes out the rest.
type purse struct {
	hash    uint64
	numbers uint64 // of the limit
	left    atomic.Int64
	counted int64 // how many were left when it was last counted what is asked for
	taken   int64 // when the oldest unit was, …
	expires int64 // … and until when it may be spent

	remaining int64 // in the store, after they were taken
	resetAt   int64
}

// spend meets a need if there is enough.
func (p *purse) spend(n *need, d *Decision) bool {
	left, ok := p.take(n)
	if !ok {
		return false
	}
	n.taken = p.taken
	*d = Decision{
		Allowed: true, Granted: n.cost, Limit: n.meter.most,
		Remaining:  min(left+p.remaining, n.meter.most),
		ResetAfter: time.Duration(max(p.resetAt-n.now, 0)),
		Source:     SourceLease,
	}
	return true
}

// take takes what is needed out, if it is there, and returns what is left.
func (p *purse) take(n *need) (left int64, ok bool) {
	for p != nil && n.now < p.expires {
		left = p.left.Load()
		if left < n.cost {
			break
		}
		if p.left.CompareAndSwap(left, left-n.cost) {
			return left - n.cost, true
		}
	}
	return 0, false
}

// met reports whether a need was met by these units, and they may still be spent.
func (p *purse) met(n *need, now int64) bool {
	return p != nil && p.taken == n.taken && now < p.expires
}

// rest returns how many units there are, whether they may still be spent or not.
func (p *purse) rest() int64 {
	if p == nil {
		return 0
	}
	return p.left.Load()
}
