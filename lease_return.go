package penstock

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A returnQueue holds unspent units until they are refunded to the store.
type returnQueue struct {
	mu       sync.Mutex
	units    []unspentUnits
	flushing bool          // whether a flush is about to start
	flushes  int           // in flight
	idle     chan struct{} // closed when none is in flight any more; nil if no caller waits
}

// unspentUnits are the units of one key that a lease returns.
type unspentUnits struct {
	key     string
	hash    uint64 // of key and limit
	limit   *compiledLimit
	units   int64
	takenAt int64
	local   bool // whether a fallback granted them, and not the store
}

// startFlush reports whether the caller must flush the queue.
func (q *returnQueue) startFlush() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.units) == 0 || q.flushing {
		return false
	}
	q.flushing = true
	return true
}

func (q *returnQueue) add(u unspentUnits) {
	if u.units > 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.units = append(q.units, u)
	}
}

// drop drops the units of a key.
func (q *returnQueue) drop(hash uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.units = slices.DeleteFunc(q.units, func(u unspentUnits) bool { return u.hash == hash })
}

// beginFlush empties the queue for a flush, which endFlush ends.
func (q *returnQueue) beginFlush() []unspentUnits {
	q.mu.Lock()
	defer q.mu.Unlock()
	units := q.units
	q.units, q.flushing = nil, false
	q.flushes++
	return units
}

func (q *returnQueue) endFlush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushes--
	if q.flushes == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// await waits until no flush is in flight.
func (q *returnQueue) await(ctx context.Context) error {
	q.mu.Lock()
	if q.flushes == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("penstock: waiting for refunds of leased units: %w", ctx.Err())
	}
}

// flush refunds the units, each once even if that fails: a second attempt could
// refund them twice.
func (q *returnQueue) flush(ctx context.Context, l *Lease) (first error) {
	defer q.endFlush() // also if the store panics
	var refunds []Request
	for _, u := range q.beginFlush() {
		if units := u.refundable(l.clock.Now()); units > 0 {
			refunds = append(refunds, Request{Key: u.key, Limit: u.limit.limit, Cost: -units, leased: !u.local, compiled: u.limit})
		}
	}
	for len(refunds) > 0 {
		batch := refunds[:min(len(refunds), maxRefundBatch)]
		refunds = refunds[len(batch):]
		if err := TakeEach(ctx, l.next, batch, make([]Decision, len(batch))); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// refundable returns how many units may be refunded. The bucket has earned some
// back since they were taken; refunding those too would count the same time
// twice.
func (u *unspentUnits) refundable(now int64) int64 {
	interval := u.limit.token.Interval
	return u.units - (max(now-u.takenAt, 0)+interval-1)/interval
}
