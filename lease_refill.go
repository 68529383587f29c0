package penstock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
)

// This file takes units for a lease from the store, and returns those that were not spent.

// startRefill prepares a refill up to the wanted units. Only one refill may be in
// flight, or else more units than wanted could be held.
func (e *leaseEntry) startRefill(l *Lease, lr *leaseRequest, want int64) {
	lr.want = want - e.pool.usable(lr.now)
	lr.refillID = l.lastRefill.Add(1)
	e.refillID, e.waitUntil = lr.refillID, lr.now+int64(inflight.MaxWait)
}

// refill takes units from the store, spends the request's cost and holds the
// rest. If decided is false, it got too few. If the caller's context ends, the
// refill continues for the other callers; otherwise callers with short deadlines
// could waste units of a shared limit.
func (l *Lease) refill(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	if ctx.Done() == nil {
		return l.takeUnits(ctx, lr, d)
	}
	c := &refillCall{lr: *lr, done: make(chan struct{})}
	go c.run(context.WithoutCancel(ctx), l)
	select {
	case <-c.done:
		*lr, *d = c.lr, c.decision
		return c.decided, c.err
	case <-ctx.Done():
		return false, fmt.Errorf("penstock: waiting for a lease: %w", ctx.Err())
	}
}

// A refillCall is a refill that runs in its own goroutine.
type refillCall struct {
	lr       leaseRequest
	decision Decision
	decided  bool
	err      error
	done     chan struct{}
}

func (c *refillCall) run(ctx context.Context, l *Lease) {
	defer close(c.done)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(l.maxAge)) // later units would have expired
	defer cancel()
	c.lr.key = strings.Clone(c.lr.key) // the caller may reuse its memory after it returned
	c.decided, c.err = l.takeUnits(ctx, &c.lr, &c.decision)
}

// takeUnits makes a refill. It ends also if the store panics, or else the key would
// wait for it for good.
func (l *Lease) takeUnits(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	r := Request{Key: lr.key, Limit: lr.limit.limit, Cost: lr.want, AtMost: true, compiled: lr.limit}
	err = ErrUnavailable // of a panic
	defer func() {
		decided = l.setOf(lr).finishRefill(l, lr, d, err)
		l.inflight.Done(lr.hash)
		l.flushSoon()
	}()
	*d, err = l.next.Take(ctx, r)
	return false, err
}

// finishRefill adds the refilled units, and decides the request by them if there
// are enough. Units that were granted by a fallback or arrive after Close are
// returned. Units that arrive after their key was reset are dropped, because the
// reset may have erased the debt for them.
func (s *leaseEntrySet) finishRefill(l *Lease, lr *leaseRequest, d *Decision, err error) (decided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := l.clock.Now(), s.get(lr)
	if e != nil && e.refillID != lr.refillID {
		return false
	}
	if e != nil {
		e.refillID = 0
	}
	switch {
	case err != nil:
		return false
	case e == nil:
		return l.decideDirectly(lr, d)
	case l.closed.Load() || d.Source != SourceStore:
		e.bypassUntil = now + int64(bypassTime)
		return l.decideDirectly(lr, d)
	}
	oldest := e.addUnits(l, lr, d, now)
	l.scheduleSweep() // also for units that are too few for the request
	if d.Granted == 0 && lr.cost == 1 {
		return true // the store denies one unit, which is what the request needs
	}
	if now >= e.pool.expires || !e.spend(lr, d, false) {
		return false
	}
	lr.takenAt = oldest
	s.hot.Store(e.pool)
	return true
}

// decideDirectly decides a request from the decision about its refill, and queues
// the other units for a refund.
func (l *Lease) decideDirectly(lr *leaseRequest, d *Decision) (decided bool) {
	rest := d.Granted
	if decided = d.Allowed && d.Granted >= lr.cost; decided {
		lr.takenAt, lr.local = lr.now, d.Source != SourceStore
		rest -= lr.cost
		d.Granted, d.Remaining = lr.cost, d.Remaining+rest
	}
	if !d.Allowed && lr.cost == 1 {
		return true
	}
	l.returns.add(lr.unspent(rest, lr.now, d.Source != SourceStore))
	return decided
}

// addUnits puts the granted units into a new pool, together with those left in
// the old one, and returns when the oldest unit was taken. The pool is as old as
// that. It counts as new if the request is about to spend all old units.
func (e *leaseEntry) addUnits(l *Lease, lr *leaseRequest, d *Decision, now int64) (oldest int64) {
	if e.pool != nil && e.pool.expires <= now {
		e.returnUnits(l)
	}
	old := e.drainPool()
	if old == 0 && d.Granted > 0 {
		e.key = strings.Clone(lr.key) // it may be part of a large string
	}
	e.resetAt, e.windowEnd = lr.now+int64(d.ResetAfter), l.windowEnd(lr, d)
	p := &unitPool{
		hash: lr.hash, normalHash: lr.limit.normalHash, counted: old + heldOf(lr, d),
		takenAt: lr.now, expires: cmp.Or(e.windowEnd, lr.now+l.maxAge), remaining: d.Remaining, resetAt: e.resetAt,
	}
	oldest = p.takenAt
	if old > 0 {
		oldest = e.pool.takenAt
	}
	if old > lr.cost || old > 0 && lr.cost > p.counted {
		p.takenAt, p.expires = e.pool.takenAt, e.pool.expires
	}
	p.left.Store(p.counted)
	e.pool = p
	e.scarce = d.Granted < lr.want || d.Remaining < 2*lr.want
	if d.Granted < lr.want && e.isVeryBusy(lr.now) {
		deny := max(int64(d.RetryAfter), e.demand.timeFor(lr.now, busyDemand))
		e.denyUntil = lr.now + min(deny, int64(maxDeny))
		e.retryAt = lr.now + int64(d.RetryAfter)
	}
	return oldest
}

// leaseMargin is two ticks of a store that counts in milliseconds.
const leaseMargin = 2 * time.Millisecond

// windowEnd returns when units that were just granted must be spent, because their window ends, or 0 if they have none. The
// store has decided after lr.now, so the window ends ResetAfter or more after it. The margins are for the ticks
// of the store's clock, to which it rounds up, and for a clock of this machine that is slower.
func (l *Lease) windowEnd(lr *leaseRequest, d *Decision) int64 {
	left := int64(d.ResetAfter)
	switch lr.limit.limit.leaseKind() {
	case leaseAges:
		return 0
	case leaseEndsBefore:
		left -= lr.limit.period
	}
	return max(lr.now+max(left-left/1000-int64(leaseMargin), 0), 1)
}

// heldOf returns how many of the granted units may be held. The unit that opens a sliding window is given up: its bound
// rests on that unit being spent at once, and not just before the window ends.
func heldOf(lr *leaseRequest, d *Decision) int64 {
	if opens := d.Granted > 0 && d.Remaining+d.Granted == d.Limit; opens && lr.limit.limit.leaseKind() == leaseEndsBefore {
		return d.Granted - 1
	}
	return d.Granted
}

// putBack puts back the units that a request spent. If they have expired, or a
// fallback granted them, it queues them for a refund. If the key was reset since, it
// drops them.
func (s *leaseEntrySet) putBack(l *Lease, lr *leaseRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, e := l.clock.Now(), s.get(lr)
	if e != nil && lr.takenAt <= e.droppedAt {
		return
	}
	if e != nil && e.pool.canTakeBack(lr, now) && !l.closed.Load() {
		e.pool.left.Add(lr.cost)
		e.pool.counted += lr.cost
		return
	}
	l.returns.add(lr.unspent(lr.cost, lr.takenAt, lr.local))
	l.scheduleSweep()
}

// canTakeBack reports whether the request spent units of this pool, and they have
// not expired. Units of a fallback are of no pool, even if taken at the same time.
func (p *unitPool) canTakeBack(lr *leaseRequest, now int64) bool {
	return p != nil && !lr.local && p.takenAt == lr.takenAt && now < p.expires
}

// reset drops the units of a key that is being reset, those that are queued for a
// refund included, because the reset erases the debt for them. A refill in flight
// will be dropped too, and until then requests go to the store.
func (s *leaseEntrySet) reset(l *Lease, lr *leaseRequest, until int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.getOrAdd(l, lr); e != nil {
		e.drainPool()
		e.init(lr)
		e.bypassUntil, e.droppedAt = until, l.clock.Now()
	}
	l.returns.drop(lr.hash)
}

// drainPool removes all units from the pool, and returns how many.
func (e *leaseEntry) drainPool() (units int64) {
	if e.pool != nil {
		units = e.pool.left.Swap(0)
		e.demand.units += e.pool.counted - units
		e.pool.counted = 0
	}
	return units
}

// returnUnits queues all units for a refund.
func (e *leaseEntry) returnUnits(l *Lease) {
	if units := e.drainPool(); units > 0 {
		l.returns.add(unspentUnits{key: e.key, hash: e.hash, limit: e.limit, units: units, takenAt: e.pool.takenAt})
		l.scheduleSweep()
	}
}

// release queues expired units, or all units, for a refund. It reports whether
// any are still held.
func (s *leaseEntrySet) release(l *Lease, now int64, all bool) (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.entries {
		e := &s.entries[i]
		if e.pool.units() > 0 && (all || now >= e.pool.expires) {
			e.returnUnits(l)
		}
		held = held || e.windowEnd == 0 && e.pool.units() > 0
	}
	return held
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

// unspent returns units that a request does not need, or no longer.
func (lr *leaseRequest) unspent(units, takenAt int64, local bool) unspentUnits {
	return unspentUnits{
		key: strings.Clone(lr.key), hash: lr.hash, limit: lr.limit, units: units, takenAt: takenAt, local: local,
	}
}

// refundable returns how many units may be refunded. The bucket has earned some
// back since they were taken; refunding those too would count the same time
// twice. Of a window only what a fallback granted is, which is in this process.
func (u *unspentUnits) refundable(now int64) int64 {
	switch {
	case u.limit.limit.leaseKind() == leaseAges:
	case u.local:
		return u.units
	default:
		return 0
	}
	interval := u.limit.token.Interval
	return u.units - (max(now-u.takenAt, 0)+interval-1)/interval
}

// A returnQueue holds unspent units until they are refunded to the store.
type returnQueue struct {
	mu       sync.Mutex
	units    []unspentUnits
	flushing bool          // whether a flush is about to start
	flushes  int           // in flight
	idle     chan struct{} // closed when none is in flight any more; nil if no caller waits
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
func (q *returnQueue) flush(ctx context.Context, l *Lease) error {
	defer q.endFlush() // also if the store panics
	var leased, local []Request
	for _, u := range q.beginFlush() {
		r := Request{Key: u.key, Limit: u.limit.limit, Cost: -u.refundable(l.clock.Now()), compiled: u.limit}
		switch {
		case r.Cost >= 0:
		case u.local:
			local = append(local, r)
		default:
			leased = append(leased, r)
		}
	}
	err := refundEach(withRefundKind(ctx, leasedUnits), l.next, leased)
	if other := refundEach(ctx, l.next, local); err == nil {
		err = other
	}
	return err
}

// refundEach makes the refunds, and returns the first error.
func refundEach(ctx context.Context, s Store, refunds []Request) (first error) {
	for batch := range slices.Chunk(refunds, maxRefundBatch) {
		if err := TakeEach(ctx, s, batch, make([]Decision, len(batch))); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Close refunds the units held, and waits for refunds in flight, so that the store
// can be closed next. Later requests pass through to the store. It returns the
// first error. Units that could not be refunded come back by time.
func (l *Lease) Close(ctx context.Context) error {
	l.closed.Store(true)
	sets := l.sets.All()
	for i := range sets {
		sets[i].release(l, l.clock.Now(), true)
	}
	err := l.returns.flush(ctx, l)
	if waiting := l.returns.await(ctx); err == nil {
		err = waiting
	}
	return err
}

// scheduleSweep schedules a sweep for about the time when held units expire.
func (l *Lease) scheduleSweep() {
	if !l.closed.Load() && !l.sweepScheduled.Swap(true) {
		time.AfterFunc(time.Duration(l.maxAge)/2, l.sweep)
	}
}

// sweep refunds the units that have expired.
func (l *Lease) sweep() {
	l.sweepScheduled.Store(false)
	held := false
	sets := l.sets.All()
	for i := range sets {
		held = sets[i].release(l, l.clock.Now(), false) || held
	}
	if held {
		l.scheduleSweep()
	}
	l.flush()
}

// flush refunds the queued units. On an error they come back by time.
func (l *Lease) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(l.maxAge))
	defer cancel()
	_ = l.returns.flush(ctx, l)
}

// flushSoon refunds the queued units without delaying the caller.
func (l *Lease) flushSoon() {
	if l.returns.startFlush() {
		go l.flush()
	}
}
