package penstock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// This file spends leased units: a request takes them from the pool of its key, or starts a refill,
// waits for one, or goes to the store.

// A leaseEntry is the state of one key: the units held, the demand for them, and
// how requests are decided until the next call to the store. The zero entry is
// free.
type leaseEntry struct {
	hash   uint64 // of key and limit
	key    string // set while units are held
	limit  *compiledLimit
	pool   *unitPool // nil if units were never held
	demand demand

	// From the last decision of the store.
	resetAt   int64 // when the key is full again
	windowEnd int64 // when units of the last refill expire with their window; 0 of a bucket
	scarce    bool  // whether too few units were left to lease any

	refillID    int64 // of the refill in flight, or 0
	waitUntil   int64 // until when requests wait for that refill
	denyUntil   int64 // until when requests are denied locally, after a refill got too little
	retryAt     int64 // when the store will have units again; valid until denyUntil
	bypassUntil int64 // until when requests go to the store
	droppedAt   int64 // when a reset dropped all units, or 0
}

// A leaseEntrySet holds the entries of one set, under one lock.
type leaseEntrySet struct {
	hot     atomic.Pointer[unitPool] // the pool that was spent from last
	mu      sync.Mutex
	entries [setassoc.Ways]leaseEntry
}

const (
	minDemand  = 8                      // units requested before a key is leased
	busyDemand = 100                    // units requested within maxDeny that make a key very busy
	maxDeny    = 250 * time.Millisecond // the longest that a very busy key is denied locally
	bypassTime = 100 * time.Millisecond // for which a key is not leased after a fallback decided
)

// A leaseStep is the next step for a request.
type leaseStep int

const (
	leaseDecided   leaseStep = iota // nothing: it is decided
	leaseCallStore                  // let the store decide it
	leaseRefill                     // refill the key's units
	leaseWait                       // wait for the refill in flight
)

func (l *Lease) setOf(lr *leaseRequest) *leaseEntrySet { return l.sets.Of(lr.hash) }

// spendOrRefill decides a request by leased units. If there are too few, it
// refills them or waits for a refill in flight. If decided is false, the store
// must decide the request.
func (l *Lease) spendOrRefill(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	lr.now = l.clock.Now()
	if l.setOf(lr).spendHot(lr, d) {
		return true, nil
	}
	for began, isNew := lr.now, true; ; lr.now, isNew = l.clock.Now(), false {
		wait := min(int64(inflight.MaxWait), int64(maxRefillWait)-(lr.now-began))
		step, refilled := l.setOf(lr).decide(l, lr, d, isNew, wait > 0)
		switch step {
		case leaseDecided:
			return true, nil
		case leaseRefill:
			return l.refill(ctx, lr, d)
		case leaseCallStore:
			return false, nil
		}
		if err = inflight.Await(ctx, refilled, time.Duration(wait)); err != nil {
			return false, err
		}
	}
}

// spendHot decides a request by the pool that was spent from last, without a
// lock.
func (s *leaseEntrySet) spendHot(lr *leaseRequest, d *Decision) bool {
	p := s.hot.Load()
	return p != nil && p.hash == lr.hash && p.normalHash == lr.limit.normalHash && p.spend(lr, d)
}

// decide decides a request by the units held, or returns the next step; for
// leaseWait with a channel to wait on. isNew is false if the demand already
// includes the request.
func (s *leaseEntrySet) decide(
	l *Lease, lr *leaseRequest, d *Decision, isNew, mayWait bool,
) (step leaseStep, refilled <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed.Load() {
		return leaseCallStore, nil
	}
	e := s.getOrAdd(l, lr)
	if e == nil {
		return leaseCallStore, nil
	}
	e.countDemand(lr.now, l.maxAge)
	if e.spend(lr, d, isNew) {
		s.hot.Store(e.pool)
		return leaseDecided, nil
	}
	if isNew {
		e.demand.units += min(lr.cost, lr.maxHeld)
	}
	want := e.wanted(lr, l.maxAge)
	switch step = e.nextStep(lr, want, mayWait); step {
	case leaseDecided:
		e.deny(lr, d)
	case leaseRefill:
		e.startRefill(l, lr, want)
	case leaseWait:
		refilled = l.inflight.Wait(lr.hash)
	}
	return step, refilled
}

// nextStep returns the next step of a request for which too few units are held.
// leaseDecided means that it is denied.
func (e *leaseEntry) nextStep(lr *leaseRequest, want int64, mayWait bool) leaseStep {
	switch {
	case lr.mayDelay || !mayWait || lr.cost > want || lr.now < e.bypassUntil:
		return leaseCallStore
	case lr.now < e.denyUntil:
		return leaseDecided
	case e.scarce && !e.isVeryBusy(lr.now):
		return leaseCallStore
	case e.refillID == 0:
		return leaseRefill
	case lr.now < e.waitUntil:
		return leaseWait
	}
	return leaseCallStore
}

// spend decides a request if enough units are held. isNew is false if the demand
// already includes the request.
func (e *leaseEntry) spend(lr *leaseRequest, d *Decision, isNew bool) bool {
	ok := e.pool.spend(lr, d)
	if ok && !isNew {
		e.pool.counted -= lr.cost
	}
	return ok
}

// deny denies a request without calling the store.
func (e *leaseEntry) deny(lr *leaseRequest, d *Decision) {
	*d = Decision{
		Limit: lr.limit.capacity, Remaining: e.pool.usable(lr.now),
		RetryAfter: time.Duration(max(e.denyUntil, e.retryAt) - lr.now),
		ResetAfter: time.Duration(max(e.resetAt-lr.now, 0)),
		Source:     SourceLease,
	}
}

// getOrAdd returns the entry of a key. It starts a new one if the key has none or
// its limit has changed. It returns nil if all entries of the set hold units or
// wait for a refill.
func (s *leaseEntrySet) getOrAdd(l *Lease, lr *leaseRequest) *leaseEntry {
	var unused *leaseEntry
	for i := range s.entries {
		e := &s.entries[i]
		if e.isOf(lr) {
			return e
		}
		if e.hash == lr.hash {
			e.returnUnits(l)
			e.init(lr)
			return e
		}
		if e.isUnused(lr.now, l.maxAge) && (unused == nil || e.demand.since < unused.demand.since) {
			unused = e
		}
	}
	if unused != nil {
		unused.init(lr)
	}
	return unused
}

// isUnused reports whether another key may have the entry: it holds nothing, or units of a window that has ended or whose
// key is idle.
func (e *leaseEntry) isUnused(now, maxAge int64) bool {
	idle := e.windowEnd > 0 && (now >= e.windowEnd || now-e.demand.since > maxIdleAges*maxAge)
	return e.refillID == 0 && (e.pool.units() == 0 || idle)
}

// get returns the entry of a key and limit, or nil.
func (s *leaseEntrySet) get(lr *leaseRequest) *leaseEntry {
	for i := range s.entries {
		if s.entries[i].isOf(lr) {
			return &s.entries[i]
		}
	}
	return nil
}

func (e *leaseEntry) isOf(lr *leaseRequest) bool {
	return e.hash == lr.hash && e.limit.normalHash == lr.limit.normalHash
}

func (e *leaseEntry) init(lr *leaseRequest) {
	*e = leaseEntry{hash: lr.hash, limit: lr.limit, demand: demand{since: lr.now}}
}

// countDemand adds the units that were spent since the last count.
func (e *leaseEntry) countDemand(now, maxAge int64) {
	e.demand.age(now, maxAge)
	if e.pool != nil {
		left := e.pool.units()
		e.demand.units += e.pool.counted - left
		e.pool.counted = left
	}
}

// wanted returns how many units to hold: enough for seven tenths of their
// lifetime, but at most maxHeld. It is 0 for a key with little demand.
func (e *leaseEntry) wanted(lr *leaseRequest, maxAge int64) int64 {
	want := min(e.demand.within(lr.now, lr.lifetime(e.windowEnd, maxAge)*7/10), lr.maxHeld)
	if e.demand.units < minDemand || want < 2 {
		return 0
	}
	return want
}

// lifetime returns for how long units of a refill can be spent: at most until the window ends, if that is known.
func (lr *leaseRequest) lifetime(windowEnd, maxAge int64) int64 {
	switch {
	case lr.limit.limit.leaseKind() == leaseAges:
		return maxAge
	case windowEnd > lr.now:
		return min(maxAge, windowEnd-lr.now)
	}
	return min(maxAge, lr.limit.period)
}

// isVeryBusy reports whether demand is so high that local denials save many
// calls.
func (e *leaseEntry) isVeryBusy(now int64) bool {
	return e.demand.within(now, int64(maxDeny)) >= busyDemand
}

// observe updates an entry with the store's decision about a request. It adds the
// units held to what a peek reports, and to what an AtMost request is granted.
func (s *leaseEntrySet) observe(lr *leaseRequest, d *Decision, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.get(lr)
	if e == nil {
		return
	}
	if d.Source == SourceStore {
		e.resetAt = lr.now + int64(d.ResetAfter)
		e.scarce = d.Remaining < 2*lr.maxHeld
	}
	held := e.pool.usable(now)
	if lr.cost == 0 {
		d.Remaining = min(d.Remaining+held, d.Limit)
	}
	rest := *lr
	rest.now = now // the window of the units may have ended during the call
	if rest.cost = min(lr.cost-d.Granted, held); !lr.atMost || !lr.spendable || rest.cost <= 0 {
		return
	}
	if _, ok := e.pool.take(&rest); ok {
		e.pool.counted -= rest.cost
		d.Allowed, d.Granted, d.RetryAfter = true, d.Granted+rest.cost, 0
	}
}

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

// A demand estimates the rate at which units of a key are requested.
type demand struct {
	units int64 // requested since then
	since int64
}

// minDemandSpan keeps the first few requests of a key from looking like a flood.
const minDemandSpan = 50 * time.Millisecond

// maxIdleAges is after how many ages demand is forgotten.
const maxIdleAges = 8

// age halves the demand if it spans more than maxAge, and drops it if it is much
// older.
func (m *demand) age(now, maxAge int64) {
	switch age := now - m.since; {
	case age > maxIdleAges*maxAge || age < 0:
		m.units, m.since = 0, now
	case age > maxAge:
		m.units, m.since = m.units/2, m.since+age/2
	}
}

// elapsed returns the time that the demand spans.
func (m *demand) elapsed(now int64) int64 { return max(now-m.since, int64(minDemandSpan)) }

// within returns how many units will be requested within span, at the estimated
// rate.
func (m *demand) within(now, span int64) int64 {
	return int64(float64(m.units) * float64(span) / float64(m.elapsed(now)))
}

// timeFor returns how long it takes until that many units are requested, at the
// estimated rate.
func (m *demand) timeFor(now, units int64) int64 {
	return int64(float64(units) * float64(m.elapsed(now)) / float64(max(m.units, 1)))
}
