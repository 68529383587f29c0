package penstock

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/setassoc"
)

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
	resetAt int64 // when the key is full again
	scarce  bool  // whether too few units were left to lease any

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

// startRefill prepares a refill up to the wanted units. Only one refill may be in
// flight, or else more units than wanted could be held.
func (e *leaseEntry) startRefill(l *Lease, lr *leaseRequest, want int64) {
	lr.want = want - e.pool.usable(lr.now)
	lr.refillID = l.lastRefill.Add(1)
	e.refillID, e.waitUntil = lr.refillID, lr.now+int64(inflight.MaxWait)
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
		if e.pool.units() == 0 && e.refillID == 0 && (unused == nil || e.demand.since < unused.demand.since) {
			unused = e
		}
	}
	if unused != nil {
		unused.init(lr)
	}
	return unused
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
	want := min(e.demand.within(lr.now, maxAge*7/10), lr.maxHeld)
	if e.demand.units < minDemand || want < 2 {
		return 0
	}
	return want
}

// isVeryBusy reports whether demand is so high that local denials save many
// calls.
func (e *leaseEntry) isVeryBusy(now int64) bool {
	return e.demand.within(now, int64(maxDeny)) >= busyDemand
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
	l.returns.add(unspentUnits{
		key: strings.Clone(lr.key), hash: lr.hash, limit: lr.limit, units: rest, takenAt: lr.now, local: d.Source != SourceStore,
	})
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
	e.resetAt = lr.now + int64(d.ResetAfter)
	p := &unitPool{
		hash: lr.hash, normalHash: lr.limit.normalHash, counted: old + d.Granted,
		takenAt: lr.now, expires: lr.now + l.maxAge, remaining: d.Remaining, resetAt: e.resetAt,
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
	l.returns.add(unspentUnits{
		key: strings.Clone(lr.key), hash: lr.hash, limit: lr.limit, units: lr.cost, takenAt: lr.takenAt, local: lr.local,
	})
	l.scheduleSweep()
}

// observe updates an entry with the store's decision about a request. It adds the
// units held to what a peek reports, and to what an AtMost request is granted.
func (s *leaseEntrySet) observe(lr *leaseRequest, d *Decision) {
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
	held := e.pool.usable(lr.now)
	if lr.cost == 0 {
		d.Remaining = min(d.Remaining+held, d.Limit)
	}
	rest := *lr
	if rest.cost = min(lr.cost-d.Granted, held); !lr.atMost || !lr.spendable || rest.cost <= 0 {
		return
	}
	if _, ok := e.pool.take(&rest); ok {
		e.pool.counted -= rest.cost
		d.Allowed, d.Granted, d.RetryAfter = true, d.Granted+rest.cost, 0
	}
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
		held = held || e.pool.units() > 0
	}
	return held
}
