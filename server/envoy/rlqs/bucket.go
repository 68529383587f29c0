package rlqs

import (
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/ahead"
)

const (
	// tick is how often buckets are checked for members that need units.
	tick = 250 * time.Millisecond

	// maxPace is how often a bucket of which too little is left is divided, unless its
	// limit refills faster.
	maxPace = time.Second

	// maxBackoff is how long a limit without units is not asked again, at most: a
	// refund may bring some back before their time.
	maxBackoff = 10 * time.Second

	// scarceFor is how long members are served later than otherwise, after there was too
	// little for all.
	scarceFor = 10 * time.Second

	// maxHorizon is how far ahead a lease of a slow limit reaches.
	maxHorizon = 10 * time.Minute

	// minLeaseAge is how old a lease is before it is replaced by a smaller one.
	minLeaseAge = time.Minute

	// idleFor is how long a bucket without requests is tracked.
	idleFor = 10 * time.Minute

	// firstShare is the part of a limit that a proxy of unknown demand wants.
	firstShare = 20
)

// A bucket is a limited key that proxies share, under the ID that they call it by.
type bucket struct {
	key     string // in the service's table
	domain  string
	entries []rules.Entry
	members []*member

	target     ahead.Target
	scale      scale
	found      bool      // whether there is a target
	touched    bool      // a report has arrived since the last step
	notBefore  time.Time // when the store is asked again
	scarceTill time.Time
	shadowed   uint64 // requests to charge under a rule in shadow mode

	excusedTill time.Time // until when denials are no offences
}

// excuse is how long denials may be the consequence of a take that the store did not decide:
// as long as leases last, and proxies take to report.
const excuse = time.Minute

// A scale is what a limit means for leases.
type scale struct {
	capacity int64
	fill     time.Duration // from empty to full
	pace     time.Duration // between two divisions of too little
}

func newScale(capacity int64, fill time.Duration) scale {
	return scale{
		capacity: min(capacity, math.MaxUint32), // the tokens of a message have 32 bits
		fill:     fill,
		pace:     min(max(fill/2, tick), maxPace),
	}
}

// horizon returns how far ahead a lease should reach: three reports, since units that are
// left when it is replaced are lost, or for a slow limit the time in which a tenth of it
// refills, if that is longer.
func (s scale) horizon(interval time.Duration) time.Duration {
	return max(3*(interval+s.pace), min(s.fill/10, maxHorizon))
}

// A member is a proxy in a bucket.
type member struct {
	stream *stream
	bucket *bucket
	demand demand

	lease   lease         // of no units while a blanket rule applies
	blanket actionKind    // allowAll, denyAll, or none
	told    time.Time     // when the blanket rule was sent
	ttl     time.Duration // of the blanket rule
	served  time.Time     // when it was last granted units
	pending bool          // an action has not been sent yet
}

// want returns how many units the member should hold.
func (m *member) want() int64 {
	s := m.bucket.scale
	if !m.demand.known {
		return max(s.capacity/firstShare, 1)
	}
	return max(min(m.demand.within(s.horizon(m.demand.interval)), s.capacity), 1)
}

// low returns how many units the member should hold at least. What it holds when it gets a new
// lease is lost, and what it does not hold when its requests become more is denied. The first
// is worse while there is too little for all.
func (m *member) low(scarce bool) int64 {
	s := m.bucket.scale
	switch {
	case !m.demand.known:
		return 1
	case scarce:
		return m.demand.within(s.pace / 2)
	}
	return m.demand.within(m.demand.interval/4 + 2*tick)
}

// hungry reports whether the member needs a new lease.
func (m *member) hungry(now time.Time, scarce bool) bool {
	if m.pending || m.demand.silent(now) {
		return false
	}
	held := m.lease.held(now, &m.demand)
	want := m.want()
	if held < min(m.low(scarce), want) {
		return true
	}
	if !m.demand.reported.After(m.lease.sent) {
		return false
	}
	return !m.lease.extendable(now) || m.oversized(now, want)
}

// oversized reports whether the member has held much more than it wants for long.
func (m *member) oversized(now time.Time, want int64) bool {
	age := max(minLeaseAge, 2*m.bucket.scale.horizon(m.demand.interval))
	return now.Sub(m.lease.granted) > age && want < m.lease.units/4
}

// renewable reports whether an assignment that was sent then should be sent again: the proxy
// has reported since, and some of the time to live is over, or of what it is by now.
func (m *member) renewable(now, sent time.Time, ttl time.Duration) bool {
	return !m.pending && m.demand.reported.After(sent) && now.Sub(sent) >= min(ttl, m.demand.timeToLive())/6
}

// idle reports whether the bucket should be abandoned.
func (m *member) idle(now time.Time) bool {
	return now.Sub(m.demand.busy) > idleFor && !m.pending
}

func (b *bucket) scarce(now time.Time) bool { return now.Before(b.scarceTill) }

// due reports whether the bucket needs a step.
func (b *bucket) due(now time.Time) bool {
	limited := b.found && !b.target.AllowAll && !b.target.DenyAll && !now.Before(b.notBefore)
	return b.touched || slices.ContainsFunc(b.members, func(m *member) bool {
		return m.idle(now) || limited && m.hungry(now, b.scarce(now))
	})
}

// applyBlanket sends a blanket rule to the members that do not have it, and again to those
// that have reported.
func (b *bucket) applyBlanket(now time.Time, kind actionKind) {
	for _, m := range b.members {
		m.assignBlanket(now, kind)
	}
}

func (m *member) assignBlanket(now time.Time, kind actionKind) {
	if m.pending || m.blanket == kind && !m.renewable(now, m.told, m.ttl) {
		return
	}
	m.lease, m.blanket, m.told, m.ttl = lease{}, kind, now, m.demand.timeToLive()
	m.stream.enqueue(action{member: m, kind: kind, ttl: m.ttl})
}

// A claim is how many units a member wants.
type claim struct {
	member *member
	want   int64
}

// claims returns what the members that need units want, those first that were served longest
// ago, and how many units that is.
func (b *bucket) claims(now time.Time) (all []claim, total int64) {
	for _, m := range b.members {
		if m.hungry(now, b.scarce(now)) {
			c := claim{m, m.want()}
			all, total = append(all, c), total+c.want
		}
	}
	slices.SortStableFunc(all, func(a, b claim) int { return a.member.served.Compare(b.member.served) })
	return all, min(total, max(b.scale.capacity, 1))
}

// noteShortage notes whether the store granted less than it was asked for.
func (b *bucket) noteShortage(now time.Time, asked int64, d *penstock.Decision) {
	if d.Granted < asked {
		b.scarceTill = now.Add(scarceFor)
		b.notBefore = now.Add(max(b.scale.pace, min(d.RetryAfter, maxBackoff)))
	}
}

// windowEnd returns when the window ends that units were taken from. It is zero if no window ends for all of them.
func (b *bucket) windowEnd(asked time.Time, d *penstock.Decision) time.Time {
	if !b.target.Limit.ResetsAtOnce() {
		return time.Time{}
	}
	return asked.Add(d.ResetAfter)
}

// distribute divides units, which are void from some time on.
func (b *bucket) distribute(now time.Time, number func() int32, claims []claim, units int64, ends time.Time) {
	claims = slices.DeleteFunc(claims, func(c claim) bool { return c.member.stream.closed || c.member.pending })
	claims, shares := share(now, claims, units)
	for i, c := range claims {
		c.member.assign(now, lease{units: shares[i], number: number(), granted: now, ends: ends})
	}
}

// share divides units among claims, and returns those that are worth a lease: a member keeps
// what it holds if its share is not more, because a new lease replaces it.
func share(now time.Time, claims []claim, units int64) ([]claim, []int64) {
	for {
		wants := make([]int64, len(claims))
		for i := range claims {
			wants[i] = claims[i].want
		}
		shares := divide(units, wants)
		var better []claim
		for i, c := range claims {
			if shares[i] > c.member.lease.held(now, &c.member.demand) {
				better = append(better, c)
			}
		}
		if len(better) == len(claims) {
			return claims, shares
		}
		claims = better
	}
}

// assign sends a new lease.
func (m *member) assign(now time.Time, l lease) {
	l.extend(now, m.demand.timeToLive())
	m.lease, m.blanket, m.served = l, none, now
	m.stream.enqueue(action{member: m, kind: grant, units: l.units, number: l.number, ttl: l.expires.Sub(now)})
}

// extendLeases extends the leases of members that have reported.
func (b *bucket) extendLeases(now time.Time) {
	for _, m := range b.members {
		l := &m.lease
		if l.extendable(now) && m.renewable(now, l.sent, l.expires.Sub(l.sent)) {
			safe := l.safeUntil()
			l.extend(now, m.demand.timeToLive())
			m.stream.enqueue(action{member: m, kind: grant, units: l.units, number: l.number, ttl: l.expires.Sub(now), until: safe})
		}
	}
}

// denyOthers denies all requests of members without a lease: without an assignment, a proxy
// does what its own configuration says.
func (b *bucket) denyOthers(now time.Time) {
	for _, m := range b.members {
		if m.lease.void(now) && !m.demand.silent(now) {
			m.assignBlanket(now, denyAll)
		}
	}
}
