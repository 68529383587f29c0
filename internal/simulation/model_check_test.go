package simulation

import (
	"time"

	"github.com/penstock-io/penstock"
)

// A stateID identifies one state in a store.
type stateID struct {
	key   string
	limit penstock.Limit
}

// A keyRecord is what the simulation knows about a state, to check decisions against.
type keyRecord struct {
	// The units spent by all nodes, as the levels of buckets that never deny: the
	// most that any interval until now has spent beyond the rate. After the store
	// has lost state or its clock has jumped, undisturbed starts again at 0 once all
	// earlier leases have expired.
	level, undisturbed, levelAt int64
	disturbedAt                 time.Time

	charged, granted int64     // units that the store charged, and that callers got of those
	refundedAt       time.Time // when units were last refunded, or lost
	nodes            [simulatedNodes]nodeRecord
}

// A nodeRecord is what the simulation knows about a state on one node.
type nodeRecord struct {
	refilledAt time.Time // when the last refill that got any units was sent
	localLevel int64     // the level of what the fallback has granted
	localAt    time.Time
	generation int
}

func (s *simulation) record(r penstock.Request) *keyRecord {
	of := stateID{r.Key, r.Limit}
	if s.records[of] == nil {
		s.records[of] = &keyRecord{}
	}
	return s.records[of]
}

// advanceClock returns by how much the store's clock has moved forward in all. It is
// called whenever that may have changed.
func (s *simulation) advanceClock() int64 {
	now := time.Now().Add(s.clockOffset).Truncate(originTick)
	s.clockForward += max(int64(now.Sub(s.clockLast)), 0)
	s.clockLast = now
	return s.clockForward
}

// unitInterval returns how long a bucket takes to earn one unit.
func unitInterval(l penstock.Limit) int64 {
	return (int64(l.Period) + l.Count - 1) / l.Count
}

// localInterval returns how long a node's share of a bucket takes to earn one unit.
func localInterval(l penstock.Limit) int64 {
	l.Count = max(int64(float64(l.Count)*localShare), 1)
	return unitInterval(l)
}

// recordSpent records that units of the store were spent, and checks the bounds of a
// lease: no interval spends more than B + r·T and what all nodes may hold, nor more
// than B + r·(T+τ).
func (s *simulation) recordSpent(b *keyRecord, r penstock.Request, units int64) {
	if r.Limit.Algorithm != penstock.TokenBucket {
		return
	}
	s.drain(b)
	interval, burst := unitInterval(r.Limit), r.Limit.Normal().Burst
	b.level += units * interval
	held := burst / 10 / simulatedNodes * simulatedNodes
	if most := (burst+held)*interval + int64(originTick); b.level > most {
		s.failf("%+v: %d units beyond the rate, and at most B + N·q = %d may be", r, b.level/interval, burst+held)
	}
	if b.undisturbed += units * interval; time.Since(b.disturbedAt) <= leaseAge {
		b.undisturbed = 0
	}
	if most := burst*interval + int64(leaseAge+originTick); b.undisturbed > most {
		s.failf("%+v: %d units beyond the rate, and at most B + r·τ = %d may be", r, b.undisturbed/interval, most/interval)
	}
}

// drain lowers the levels by the time that has passed.
func (s *simulation) drain(b *keyRecord) {
	passed := s.advanceClock() - b.levelAt
	b.level, b.undisturbed = max(b.level-passed, 0), max(b.undisturbed-passed, 0)
	b.levelAt += passed
}

// recordRefund records that units were refunded to the store, or that it lost a whole
// burst of them.
func (s *simulation) recordRefund(b *keyRecord, r penstock.Request, units int64) {
	b.refundedAt, b.disturbedAt = time.Now(), time.Now()
	if r.Limit.Algorithm == penstock.TokenBucket {
		s.drain(b)
		b.level = max(b.level-units*unitInterval(r.Limit), 0)
	}
}

// check checks a decision about a call that began at a time against the records.
func (s *simulation) check(n *node, began time.Time, r penstock.Request, d penstock.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.record(r)
	switch {
	case d.Source == penstock.SourceDenyCache && d.Allowed: // beside a cached denial, and not charged
	case d.Source == penstock.SourceDenyCache:
		s.checkDenial(b, n, r, d)
	case d.Source == penstock.SourceFallback:
		s.checkLocal(b, n, r, d)
	case r.Cost < 0:
		s.refundLocal(b, n, r, d)
	case d.Granted <= 0:
	case d.Source == penstock.SourceLease:
		s.checkLease(b, n, began, r, d)
	default:
		b.granted += d.Granted
	}
	if b.granted > b.charged {
		s.failf("%+v: callers were granted %d units of the store, which has charged %d", r, b.granted, b.charged)
	}
}

// refundLocal lowers the local level after the store decided a refund or a reset. Units
// that are not charged to the store yet are refunded by the node's own fallback, and a
// reset with such debts also resets what the fallback has counted.
func (s *simulation) refundLocal(b *keyRecord, n *node, r penstock.Request, d penstock.Decision) {
	own := &b.nodes[n.index]
	if r.Cost == penstock.Reset {
		own.localLevel = 0
	} else if r.Limit.Algorithm == penstock.TokenBucket {
		own.localLevel = max(own.localLevel+d.Granted*localInterval(r.Limit), 0)
	}
}

// checkDenial checks a cached denial against the store, which would deny too, unless
// units were refunded within the last second or one is earned about now: the store's
// clock may have been a tick behind when it was called, and its times may be rounded
// up to the next tick.
func (s *simulation) checkDenial(b *keyRecord, n *node, r penstock.Request, d penstock.Decision) {
	if d.Allowed || d.Granted != 0 || d.RetryAfter <= 0 {
		s.failf("node %d: %+v: cached as %v, which is no denial", n.index, r, d)
	}
	if time.Since(b.refundedAt) <= time.Second+2*callTimeout {
		return
	}
	peek := r
	peek.Cost = 0
	now, err := s.origin.Take(ctx, peek)
	if err != nil || now.Remaining >= r.Cost && d.RetryAfter > 2*originTick {
		s.failf("node %d: %+v: cached as %v, but the store says %v, %v", n.index, r, d, now, err)
	}
}

// checkLease checks that the units spent had not expired when the call began. A TakeAll
// spends leased units before it calls the store for the others.
func (s *simulation) checkLease(b *keyRecord, n *node, began time.Time, r penstock.Request, d penstock.Decision) {
	b.granted += d.Granted
	s.recordSpent(b, r, d.Granted)
	if age := began.Sub(b.nodes[n.index].refilledAt); age >= leaseAge {
		s.failf("node %d: %+v: spent units of a lease that is %v old", n.index, r, age)
	}
}

// checkLocal checks that a node grants no more than its share by itself. The grant may
// be older than this call: a request may wait until a refill that the fallback decided
// has returned.
func (s *simulation) checkLocal(b *keyRecord, n *node, r penstock.Request, d penstock.Decision) {
	if r.Limit.Algorithm != penstock.TokenBucket {
		return
	}
	own := &b.nodes[n.index]
	if own.generation != n.generation {
		own.localLevel, own.generation = 0, n.generation
	}
	burst := max(int64(float64(r.Limit.Normal().Burst)*localShare), 1)
	interval := localInterval(r.Limit)
	own.localLevel = max(max(own.localLevel-int64(time.Since(own.localAt)), 0)+d.Granted*interval, 0)
	own.localAt = time.Now()
	if r.Cost == penstock.Reset {
		own.localLevel = 0 // a reset that the store missed reports only what it refunded last
	}
	if own.localLevel > burst*interval+int64(2*callTimeout) {
		s.failf("node %d: %+v: %d local units, and the share is %d", n.index, r, own.localLevel/interval, burst)
	}
}
