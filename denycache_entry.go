package penstock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// A denial is a cache entry: a denial by the store, and its numbers. The zero
// denial is a free entry.
//
// An entry that has ended stays until its place is needed. It marks the key as
// recently denied, so that only one caller at a time calls the store about it.
type denial struct {
	hash       uint64 // of key and limit
	normalHash uint64 // of the limit that denied
	sent       int64  // when the store was called
	until      int64  // when the entry ends
	retryAt    int64  // when the cost fits; Never if it cannot
	resetAt    int64  // when the key is full again
	cost       int64  // that was denied
	remaining  int64  // units, at least

	leaderUntil int64 // until when callers wait for the leader, which calls the store
	passes      int64 // units that callers may request without waiting, because the store has them
	rounded     bool  // whether retryAt may be rounded up to a millisecond
}

// A denialSet holds the denials of one set, under one lock.
type denialSet struct {
	mu      sync.Mutex
	entries [setassoc.Ways]denial
}

// A setHint is the part of a set that is read without its lock. Hints are stored
// apart from the sets, so a lookup in a set without denials costs one small read.
type setHint struct {
	used       atomic.Bool  // whether the set has ever held a denial
	refundedAt atomic.Int64 // when units of a key may have been refunded last
}

// find looks for a denial that answers a request. If there is none and another
// caller is calling the store about the key, it returns a channel to wait on.
// Otherwise the request goes to the store. If calls is nil, it never returns a
// channel.
func (s *denialSet) find(l *lookup, d *Decision, calls *inflight.Calls) (denied bool, done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(l.hash)
	switch {
	case e == nil:
		return false, nil
	case e.normalHash != l.limit.normalHash || l.sent < e.sent:
		e.clear() // the limit has changed, or the clock was set back
		return false, nil
	case !l.cacheable || l.cost < e.cost:
		return false, nil
	case l.began < e.until:
		return e.answer(l, d), nil
	case calls == nil:
		return false, nil
	case e.passes >= l.cost:
		e.passes -= l.cost
		return false, nil
	case l.sent < e.leaderUntil:
		return false, calls.Wait(l.hash)
	}
	e.leaderUntil, l.leader = l.sent+int64(inflight.MaxWait), true
	return false, nil
}

func (s *denialSet) entry(hash uint64) *denial {
	for i := range s.entries {
		if s.entries[i].hash == hash {
			return &s.entries[i]
		}
	}
	return nil
}

func (e *denial) clear() { *e = denial{} }

// answer writes the decision that the store would make now, or would have made
// when the lookup began. It is not ok if only the store knows when a larger cost
// fits.
func (e *denial) answer(l *lookup, d *Decision) (ok bool) {
	retryAt, ok := e.retryAt, true
	if l.cost > e.cost {
		retryAt, ok = e.retryFor(l)
	}
	if !ok {
		return false
	}
	*d = Decision{
		Limit:      l.limit.capacity,
		Remaining:  e.remainingAt(l.limit, l.sent),
		RetryAfter: time.Duration(retryAt - l.sent),
		ResetAfter: time.Duration(max(e.resetAt-l.sent, 0)),
		Source:     SourceDenyCache,
	}
	switch {
	case retryAt == int64(Never):
		d.RetryAfter = Never
	case retryAt <= l.sent:
		d.RetryAfter = time.Millisecond // it fits now, but did not when the lookup began
	}
	return true
}

// retryFor returns when a cost above the denied one fits. A bucket earns the
// difference unit by unit, and a fixed window is empty at its end. It is not ok
// for other algorithms, where only the store knows.
func (e *denial) retryFor(l *lookup) (at int64, ok bool) {
	rate := l.limit.rate()
	switch {
	case l.cost > l.limit.capacity:
		return int64(Never), true
	case l.limit.limit.resetsAtOnce():
		return e.retryAt, true
	case rate == nil || e.rounded:
		return 0, false
	}
	return e.retryAt + (l.cost-e.cost)*rate.Interval, true
}

// remainingAt returns a lower bound of the remaining units, which is below the
// denied cost.
func (e *denial) remainingAt(cl *compiledLimit, now int64) int64 {
	if rate := cl.rate(); rate != nil && e.cost > 1 {
		earned := rate.Balance(max(e.resetAt-now, 0)).Remaining
		return min(max(earned, e.remaining), e.cost-1)
	}
	return e.remaining
}

// record updates the set with the store's decision, and caches a denial. A denial
// by a call that was in flight during a refund is not cached, because the store
// may have denied before the refund.
func (s *denialSet) record(hint *setHint, l *lookup, d *Decision, err error, denied *denial, clock *monotime.Clock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.mayRefund(err) {
		hint.refundedAt.Store(clock.Now()) // read under the lock, so that it never goes back
	}
	e := s.entry(l.hash)
	if e != nil && l.leader {
		e.leaderUntil = 0
	}
	switch {
	case denied != nil && l.sent > hint.refundedAt.Load() && !e.covers(l, d):
		hint.used.Store(true)
		s.put(e, denied)
	case e != nil && err != nil && l.cost > 0:
		// A failed take makes no other request fit. The next caller calls the store.
	case e != nil && err == nil && d.Granted > 0 && d.Remaining < maxPasses:
		e.until, e.passes = 0, d.Remaining
	case e != nil && (err != nil || denied == nil && e.contradicts(l, d)):
		e.clear()
	}
}

// mayRefund reports whether the request may have refunded units. Takes never
// invalidate a denial.
func (l *lookup) mayRefund(err error) bool { return l.cost < 0 || l.cost == 0 && err != nil }

// maxPasses is how many waiting callers may go to the store after it granted a
// request and has fewer units than this left. If all of them went, nearly all
// would be denied, again and again if a call takes longer than a unit.
const maxPasses = 64

// covers reports whether the entry, of a smaller cost, still holds and its key
// has not changed since. Such an entry answers more requests than a denial of the
// larger cost.
func (e *denial) covers(l *lookup, d *Decision) bool {
	const tolerance = int64(5 * time.Millisecond)
	return e != nil && e.cost < l.cost && l.sent < e.until && e.remaining == d.Remaining &&
		max(e.resetAt-l.sent-int64(d.ResetAfter), l.sent+int64(d.ResetAfter)-e.resetAt) <= tolerance
}

// contradicts reports whether a decision shows that the entry is out of date.
func (e *denial) contradicts(l *lookup, d *Decision) bool {
	return l.cost < 0 || d.Granted != 0 || d.Remaining != e.remainingAt(l.limit, l.sent)
}

// from sets the entry from a decision; its field until is then still a duration.
// It is not ok if the decision does not show that the next request would be
// denied. Decisions of a lease or a fallback are not cached: they cost no call,
// and change quickly.
func (e *denial) from(l *lookup, d *Decision) (ok bool) {
	switch {
	case d.Source != SourceStore || l.cost <= 0 || d.Allowed && (d.Granted == 0 || d.Remaining > 0):
		return false
	case !d.Allowed && d.RetryAfter <= 0:
		return false
	}
	*e = denial{
		hash: l.hash, normalHash: l.limit.normalHash, sent: l.sent,
		cost: l.cost, remaining: d.Remaining, resetAt: l.sent + int64(d.ResetAfter),
	}
	if d.Allowed {
		return e.fromLastUnit(l.limit, d)
	}
	e.until, e.retryAt = int64(d.RetryAfter), int64(Never)
	if d.RetryAfter != Never {
		e.retryAt = l.sent + int64(d.RetryAfter)
	}
	e.rounded = isWholeMillis(int64(d.RetryAfter)) && !isWholeMillis(l.limit.interval())
	return true
}

// fromLastUnit computes when the next unit is available, after a request took the
// last one. The store may have rounded ResetAfter up to a millisecond.
func (e *denial) fromLastUnit(cl *compiledLimit, d *Decision) (ok bool) {
	wait, early := int64(d.ResetAfter), int64(0)
	if rate := cl.rate(); rate != nil {
		wait -= rate.Capacity() - rate.Interval
		if isWholeMillis(int64(d.ResetAfter)) && !isWholeMillis(rate.Interval) {
			early, e.rounded = int64(time.Millisecond), true
			wait = algorithm.RoundUp(wait, early)
		}
	} else if !cl.limit.resetsAtOnce() {
		return false
	}
	e.cost, e.until, e.retryAt = 1, wait-early, e.sent+wait
	return e.until > 0
}

// isWholeMillis reports whether a time is in whole milliseconds, as all times of
// a Redis store are.
func isWholeMillis(d int64) bool { return d%int64(time.Millisecond) == 0 }

// put replaces the entry of the same key with a denial. If there is none, it
// replaces the entry that ends first; free entries end at 0.
func (s *denialSet) put(same, e *denial) {
	if same == nil {
		same = &s.entries[0]
		for i := range s.entries {
			if s.entries[i].until < same.until {
				same = &s.entries[i]
			}
		}
	}
	*same = *e
}
