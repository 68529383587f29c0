package penstock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// A denial is what is remembered of a key that was denied. The zero denial is of
// nobody.
//
// Once its time is up it stays where it is, for as long as nobody needs the room:
// it says that the key was denied not long ago, so that one caller at a time
// should ask about it.
type denial struct {
	hash      uint64 // whom it is about
	numbers   uint64 // of the limit that denied
	noted     int64  // when the store was asked
	until     int64  // when it ceases to answer
	retryAt   int64  // when the cost passes; Never, if it cannot
	resetAt   int64  // when the key is as good as new
	cost      int64  // that was denied
	remaining int64  // of units, at least
	asked     int64  // until when somebody asking again is waited for
	passes    int64  // units for which nobody need wait, because there are some again
	whole     bool   // whether retryAt may have been rounded to a millisecond
}

// A denialSet holds the denials whose hashes end alike, under one lock.
type denialSet struct {
	mu   sync.Mutex
	ways [setassoc.Ways]denial
}

// A denialSign is what there is to know of a set without opening it. Signs lie
// together, so that a key nobody was ever denied beside costs next to nothing.
type denialSign struct {
	used  atomic.Bool   // whether there was ever a denial in the set
	epoch atomic.Uint32 // changes whenever units of a key may have been given back
}

// enter looks for an answer to a question. If there is none, and somebody else is
// asking the same, the caller gets a channel to wait on, if it is to wait at all;
// otherwise the question passes.
func (s *denialSet) enter(q *question, d *Decision, f *inflight.Calls, patient bool) (denied bool, landed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.find(q.hash)
	switch {
	case n == nil:
		return false, nil
	case n.numbers != q.meter.numbers || q.sent < n.noted:
		n.forget() // another limit now, or the clock was set back
		return false, nil
	case !q.known || q.cost < n.cost:
		return false, nil
	case q.began < n.until:
		return n.answer(q, d), nil
	case !patient:
		return false, nil
	case n.passes >= q.cost:
		n.passes -= q.cost
		return false, nil
	case q.sent < n.asked:
		return false, f.Wait(q.hash)
	}
	n.asked, q.asker = q.sent+int64(inflight.MaxWait), true
	return false, nil
}

func (s *denialSet) find(hash uint64) *denial {
	for i := range s.ways {
		if s.ways[i].hash == hash {
			return &s.ways[i]
		}
	}
	return nil
}

// forget leaves a place to whoever wants it.
func (n *denial) forget() { *n = denial{} }

// answer writes the decision that the store would make now, or would have made when
// the question was asked. It is not ok if the denial of a smaller cost does not tell.
func (n *denial) answer(q *question, d *Decision) (ok bool) {
	retryAt, ok := n.retryAt, true
	if q.cost > n.cost {
		retryAt, ok = n.retryFor(q)
	}
	if !ok {
		return false
	}
	*d = Decision{
		Limit:      q.meter.most,
		Remaining:  n.remains(q.meter, q.sent),
		RetryAfter: time.Duration(retryAt - q.sent),
		ResetAfter: time.Duration(max(n.resetAt-q.sent, 0)),
		Source:     SourceDenyCache,
	}
	switch {
	case retryAt == int64(Never):
		d.RetryAfter = Never
	case retryAt <= q.sent:
		d.RetryAfter = time.Millisecond // it would pass now, but did not then
	}
	return true
}

// retryFor returns when a larger cost than the denied one passes. A bucket earns
// the difference one unit after the other, and a fixed window is empty at its
// end; only the store knows what becomes of the others meanwhile.
func (n *denial) retryFor(q *question) (at int64, ok bool) {
	rate := q.meter.rate()
	switch {
	case q.cost > q.meter.most:
		return int64(Never), true
	case q.meter.limit.Algorithm == FixedWindow:
		return n.retryAt, true
	case rate == nil || n.whole:
		return 0, false
	}
	return n.retryAt + (q.cost-n.cost)*rate.Interval, true
}

// remains returns how many units there are, at least; fewer than were denied.
func (n *denial) remains(cl *compiledLimit, now int64) int64 {
	if rate := cl.rate(); rate != nil && n.cost > 1 {
		earned := rate.Standing(max(n.resetAt-now, 0)).Remaining
		return min(max(earned, n.remaining), n.cost-1)
	}
	return n.remaining
}

// learn takes note of what a store has said, and of the denial to remember of it, if
// it is one. What was under way when units were given back may be a denial from
// before.
func (s *denialSet) learn(sign *denialSign, q *question, d *Decision, err error, next *denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.find(q.hash)
	if n != nil && q.asker {
		n.asked = 0
	}
	current := q.epoch == sign.epoch.Load()
	if q.givesBack(err) {
		sign.epoch.Add(1)
	}
	switch {
	case next != nil && current && !n.tellsMore(q, d):
		sign.used.Store(true)
		s.put(n, next)
	case n != nil && err != nil && q.cost > 0:
		// What may have been taken makes nothing pass. The next one asks.
	case n != nil && err == nil && d.Granted > 0 && d.Remaining < aFew:
		n.until, n.passes = 0, d.Remaining
	case n != nil && (err != nil || next == nil && n.contradicts(q, d)):
		n.forget()
	}
}

// givesBack reports whether a question may have given units back. What is taken makes
// no denial wrong.
func (q *question) givesBack(err error) bool { return q.cost < 0 || q.cost == 0 && err != nil }

// aFew is how many units there are again of a key that may be spent in a moment. So
// many callers are let through, and no more: if all who wait were, then nearly all
// of them in vain, and again and again where a trip takes longer than a unit.
const aFew = 64

// tellsMore reports whether a denial of a smaller cost is good, and nothing has
// happened to the key since.
func (n *denial) tellsMore(q *question, d *Decision) bool {
	const jitter = int64(5 * time.Millisecond)
	return n != nil && n.cost < q.cost && q.sent < n.until && n.remaining == d.Remaining &&
		max(n.resetAt-q.sent-int64(d.ResetAfter), q.sent+int64(d.ResetAfter)-n.resetAt) <= jitter
}

// contradicts reports whether a denial no longer describes its key.
func (n *denial) contradicts(q *question, d *Decision) bool {
	return d.Granted != 0 || d.Remaining != n.remains(q.meter, q.sent)
}

// denied writes what there is to remember of a decision; in its field until, for
// how long. Only what a store has decided is worth it: others, who answer for
// one, answer without a trip and may have changed their minds in a moment.
func (q *question) denied(d *Decision, n *denial) bool {
	switch {
	case d.Source != SourceStore || q.cost <= 0 || d.Allowed && (d.Granted == 0 || d.Remaining > 0):
		return false
	case !d.Allowed && d.RetryAfter <= 0:
		return false
	}
	*n = denial{
		hash: q.hash, numbers: q.meter.numbers, noted: q.sent,
		cost: q.cost, remaining: d.Remaining, resetAt: q.sent + int64(d.ResetAfter),
	}
	if d.Allowed {
		return n.afterTheLast(q.meter, d)
	}
	n.until, n.retryAt = int64(d.RetryAfter), int64(Never)
	if d.RetryAfter != Never {
		n.retryAt = q.sent + int64(d.RetryAfter)
	}
	n.whole = isWhole(int64(d.RetryAfter)) && !isWhole(intervalOf(q.meter))
	return true
}

// afterTheLast works out when there will be one unit again, now that there is
// none. The store may have rounded the time that it tells up to a millisecond.
func (n *denial) afterTheLast(cl *compiledLimit, d *Decision) (ok bool) {
	wait, early := int64(d.ResetAfter), int64(0)
	if rate := cl.rate(); rate != nil {
		wait -= rate.Capacity() - rate.Interval
		if isWhole(int64(d.ResetAfter)) && !isWhole(rate.Interval) {
			early, n.whole = int64(time.Millisecond), true
			wait = algorithm.RoundUp(wait, early)
		}
	} else if cl.limit.Algorithm != FixedWindow {
		return false
	}
	n.cost, n.until, n.retryAt = 1, wait-early, n.noted+wait
	return n.until > 0
}

// isWhole reports whether a time is in whole milliseconds, as those of a store
// on Redis are.
func isWhole(d int64) bool { return d%int64(time.Millisecond) == 0 }

// intervalOf returns how long a unit of a bucket lasts.
func intervalOf(cl *compiledLimit) int64 {
	if rate := cl.rate(); rate != nil {
		return rate.Interval
	}
	return 0
}

// put writes a denial over the one of the same key, into an empty place, or over
// the one that ends first.
func (s *denialSet) put(same, n *denial) {
	if same == nil {
		same = &s.ways[0]
		for i := range s.ways {
			if s.ways[i].until < same.until {
				same = &s.ways[i]
			}
		}
	}
	*same = *n
}
