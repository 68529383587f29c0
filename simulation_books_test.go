package penstock_test

import (
	"time"

	"github.com/penstock-io/penstock"
)

// A subject is what a store keeps a state for.
type subject struct {
	key   string
	limit penstock.Limit
}

// A book is what is known of a subject, to hold the nodes' decisions against.
type book struct {
	// What was spent of the store by anybody, in buckets that never deny: their
	// level is the most that any interval until now has spent beyond the rate. The
	// calm one begins anew whenever the store has forgotten something or its clock
	// has jumped, once all that was leased before that is over.
	level, calm, at int64
	disturbed       time.Time

	debited, told int64     // units that the store has charged, and that callers were granted of those
	given         time.Time // when units were last given back, or forgotten
	nodes         [simulatedNodes]leaseBook
}

// A leaseBook is what is known of a node and a subject.
type leaseBook struct {
	refilled time.Time // when the last refill was sent of which anything came
	local    int64     // the level of what the fallback has granted here
	at       time.Time
	born     int
}

func (s *simulation) book(r penstock.Request) *book {
	of := subject{r.Key, r.Limit}
	if s.books[of] == nil {
		s.books[of] = &book{}
	}
	return s.books[of]
}

// moved returns how far the store's clock has moved forward, all in all. It is
// called whenever that may have changed.
func (s *simulation) moved() int64 {
	now := time.Now().Add(s.ahead).Truncate(originTick)
	s.forward += max(int64(now.Sub(s.last)), 0)
	s.last = now
	return s.forward
}

// intervalOf returns how long a unit of a bucket lasts.
func intervalOf(l penstock.Limit) int64 {
	return (int64(l.Period) + l.Count - 1) / l.Count
}

// spend takes note that units of the store were spent, and checks that no interval
// has spent more than it may: B + r·T and what all nodes together may hold, and
// B + r·(T+τ).
func (s *simulation) spend(b *book, r penstock.Request, units int64) {
	if r.Limit.Algorithm != penstock.TokenBucket {
		return
	}
	s.drain(b)
	interval, burst := intervalOf(r.Limit), r.Limit.Normal().Burst
	b.level += units * interval
	held := burst / 10 / simulatedNodes * simulatedNodes
	if most := (burst+held)*interval + int64(originTick); b.level > most {
		s.failf("%+v: %d units beyond the rate, and at most B + N·q = %d may be", r, b.level/interval, burst+held)
	}
	if b.calm += units * interval; time.Since(b.disturbed) <= leaseAge {
		b.calm = 0
	}
	if most := burst*interval + int64(leaseAge+originTick); b.calm > most {
		s.failf("%+v: %d units beyond the rate, and at most B + r·τ = %d may be", r, b.calm/interval, most/interval)
	}
}

// drain lets time pay back what it can.
func (s *simulation) drain(b *book) {
	passed := s.moved() - b.at
	b.level, b.calm = max(b.level-passed, 0), max(b.calm-passed, 0)
	b.at += passed
}

// forgive takes note that spent units were given back to the store, or that it has
// forgotten a whole burst of them.
func (s *simulation) forgive(b *book, r penstock.Request, units int64) {
	b.given, b.disturbed = time.Now(), time.Now()
	if r.Limit.Algorithm == penstock.TokenBucket {
		s.drain(b)
		b.level = max(b.level-units*intervalOf(r.Limit), 0)
	}
}

// check holds a decision against the books.
func (s *simulation) check(n *node, r penstock.Request, d penstock.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.book(r)
	switch {
	case d.Source == penstock.SourceDenyCache:
		s.checkDenial(b, n, r, d)
	case d.Source == penstock.SourceFallback:
		s.checkLocal(b, n, r, d)
	case d.Granted <= 0:
	case d.Source == penstock.SourceLease:
		s.checkLease(b, n, r, d)
	default:
		b.told += d.Granted
	}
	if b.told > b.debited {
		s.failf("%+v: callers were granted %d units of the store, which has charged %d", r, b.told, b.debited)
	}
}

// checkDenial holds a remembered denial against the store: it would deny, too,
// unless units were given back within the last second, or one comes back about
// now: the store's clock may have been a tick behind when it was asked, and what
// it says may be rounded up to the next.
func (s *simulation) checkDenial(b *book, n *node, r penstock.Request, d penstock.Decision) {
	if d.Allowed || d.Granted != 0 || d.RetryAfter <= 0 {
		s.failf("node %d: %+v: remembered as %v, which is no denial", n.index, r, d)
	}
	if time.Since(b.given) <= time.Second+2*linkTimeout {
		return
	}
	look := r
	look.Cost = 0
	now, err := s.origin.Take(ctx, look)
	if err != nil || now.Remaining >= r.Cost && d.RetryAfter > 2*originTick {
		s.failf("node %d: %+v: remembered as %v, but the store says %v, %v", n.index, r, d, now, err)
	}
}

// checkLease checks that what is spent was leased not too long ago.
func (s *simulation) checkLease(b *book, n *node, r penstock.Request, d penstock.Decision) {
	b.told += d.Granted
	s.spend(b, r, d.Granted)
	if age := time.Since(b.nodes[n.index].refilled); age >= leaseAge {
		s.failf("node %d: %+v: spent of a lease that is %v old", n.index, r, age)
	}
}

// checkLocal checks that a node grants no more than its share by itself. It may
// have done so some time ago: a caller may have to wait until a lease that could
// not be refilled has given back what it was granted beyond the need.
func (s *simulation) checkLocal(b *book, n *node, r penstock.Request, d penstock.Decision) {
	if r.Limit.Algorithm != penstock.TokenBucket {
		return
	}
	own := &b.nodes[n.index]
	if own.born != n.born {
		own.local, own.born = 0, n.born
	}
	burst := max(int64(float64(r.Limit.Normal().Burst)*localShare), 1)
	count := max(int64(float64(r.Limit.Count)*localShare), 1)
	interval := (int64(r.Limit.Period) + count - 1) / count
	own.local = max(max(own.local-int64(time.Since(own.at)), 0)+d.Granted*interval, 0)
	own.at = time.Now()
	if own.local > burst*interval+int64(2*linkTimeout) {
		s.failf("node %d: %+v: %d units by itself, and its share is %d", n.index, r, own.local/interval, burst)
	}
}
