package algorithm_test

import (
	"math"
	"math/big"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// An oracle is a slow and simple model of an algorithm. It knows one thing about a key,
// whether some units would fit at some instant, and finds the rest by search: Remaining
// is the most that would fit, and RetryAfter ends at the first tick at which the request
// would be allowed. It has no closed forms, and shares no code with the package.
//
// Its clock never steps back.
type oracle struct {
	ledger
	tick int64
}

// A ledger is the oracle's state of one key. Times never go back.
type ledger interface {
	// max is the most that the limit could ever grant at once.
	max() int64

	// fits reports whether n units, with so much delay at most, could be
	// granted at t without other requests until then.
	fits(t, n, maxDelay int64) bool

	// unused reports whether the key is full at t.
	unused(t int64) bool

	// delay is how long n units granted at t would have to wait.
	delay(t, n int64) int64

	charge(now, n int64)

	// room is how many units a request that overdraws could be charged at t.
	room(t int64) int64

	// refund refunds at most n units, the newest first, and returns how many.
	refund(now, n int64) int64

	// truncate drops what the limit cannot owe.
	truncate(now int64)

	// change replaces the limit.
	change(l limit)
}

func newOracle(l limit) *oracle {
	o := &oracle{tick: l.tick}
	switch l.kind {
	case tokenBucket:
		o.ledger = &bucketLedger{rate: l.rate, missing: new(big.Rat)}
	case leakyBucket:
		o.ledger = &queueLedger{bucketLedger{rate: l.rate, missing: new(big.Rat)}}
	case fixedWindow, alignedWindow:
		o.ledger = newFixedLedger(l)
	case slidingWindow:
		o.ledger = &slidingLedger{count: l.count, overdraft: l.overdraft, period: l.period}
	case rollingWindow:
		o.ledger = newRollingLedger(l)
	case slidingLog:
		o.ledger = newLogLedger(l)
	}
	return o
}

// A result is the whole result of a decision.
type result struct {
	algorithm.Outcome
	algorithm.Balance
}

func (o *oracle) decide(now int64, req algorithm.Request) result {
	o.truncate(now)
	v := algorithm.Outcome{Allowed: true}
	switch {
	case req.Cost > 0:
		v = o.take(now, req)
	case req.Cost < 0:
		v.Granted = -o.refund(now, magnitudeOf(req.Cost))
	default:
		v.Delay = o.peekDelay(now)
	}
	return result{v, algorithm.Balance{
		Remaining:  o.largest(now, o.max(), 0),
		ResetAfter: o.firstTick(now, o.unused),
	}}
}

func (o *oracle) take(now int64, req algorithm.Request) algorithm.Outcome {
	if req.Overdraw {
		granted := min(req.Cost, o.room(now))
		if granted > 0 {
			o.charge(now, granted)
		}
		return algorithm.Outcome{Allowed: true, Granted: granted}
	}
	if granted := o.grant(now, req); granted > 0 {
		v := algorithm.Outcome{Allowed: true, Granted: granted, Delay: o.delay(now, granted)}
		o.charge(now, granted)
		return v
	}
	passes := func(t int64) bool { return o.grant(t, req) > 0 }
	return algorithm.Outcome{RetryAfter: o.firstTick(now, passes)}
}

// peekDelay is the Delay of a peek: of a queue, the time until it is empty.
func (o *oracle) peekDelay(now int64) int64 {
	if _, queue := o.ledger.(*queueLedger); queue {
		return o.delay(now, 1)
	}
	return 0
}

// grant returns how many units a request would be granted at t.
func (o *oracle) grant(t int64, req algorithm.Request) int64 {
	switch {
	case o.admits(t, req.Cost, req):
		return req.Cost
	case req.AtMost:
		return last(0, min(req.Cost, o.max()), func(n int64) bool { return n == 0 || o.admits(t, n, req) })
	}
	return 0
}

// admits reports whether a request could be granted n units at t. If it keeps some free,
// they must be there too, and only a queue may delay it.
func (o *oracle) admits(t, n int64, req algorithm.Request) bool {
	_, queue := o.ledger.(*queueLedger)
	switch {
	case req.KeepFree == 0:
		return o.fits(t, n, req.MaxDelay)
	case n > o.max() || req.KeepFree > o.max()-n || !o.fits(t, n+req.KeepFree, 0):
		return false
	}
	return !queue || o.fits(t, n, req.MaxDelay)
}

// largest returns the most units, up to a limit, that would fit at t.
func (o *oracle) largest(t, limit, maxDelay int64) int64 {
	return last(0, limit, func(n int64) bool { return n == 0 || o.fits(t, n, maxDelay) })
}

// firstTick returns how many whole ticks after now a condition becomes true, in
// nanoseconds. It must stay true from then on.
func (o *oracle) firstTick(now int64, becomes func(t int64) bool) int64 {
	const farFuture = 1 << 62
	if becomes(now) {
		return 0
	}
	if !becomes(now + farFuture) {
		return algorithm.Never
	}
	notYet := func(ticks int64) bool { return !becomes(now + ticks*o.tick) }
	far := int64(1)
	for far < farFuture/o.tick && notYet(far) {
		far = min(2*far, farFuture/o.tick)
	}
	return (last(0, far, notYet) + 1) * o.tick
}

// last returns the last number from low to high for which ok holds. It must hold for low,
// and for no number above one for which it does not.
func last(low, high int64, ok func(int64) bool) int64 {
	for low < high {
		middle := high - (high-low)/2
		if ok(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// magnitudeOf returns -n, or the largest number where that does not exist.
func magnitudeOf(n int64) int64 {
	if n == math.MinInt64 {
		return math.MaxInt64
	}
	return -n
}

// A bucketLedger is a bucket of tokens, with fractions. It stores how many are missing;
// with reservations, more than the burst are missing.
type bucketLedger struct {
	rate    algorithm.Rate
	missing *big.Rat
	at      int64 // when so many were missing
}

func (b *bucketLedger) max() int64 { return b.rate.Burst }

// missingAt returns how many tokens are missing at t, after one has refilled per
// interval.
func (b *bucketLedger) missingAt(t int64) *big.Rat {
	dripped := big.NewRat(t-b.at, b.rate.Interval)
	left := new(big.Rat).Sub(b.missing, dripped)
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

// wait returns how many nanoseconds after t the bucket has n tokens.
func (b *bucketLedger) wait(t, n int64) *big.Rat {
	short := b.missingAt(t)
	short.Add(short, whole(n))
	short.Sub(short, whole(b.rate.Burst))
	return short.Mul(short, whole(b.rate.Interval))
}

// reach is how far ahead tokens may be reserved: a minute, or the time in which
// an empty bucket fills.
func (b *bucketLedger) reach() *big.Rat {
	const minute = 60_000_000_000
	fill := new(big.Rat).Mul(whole(b.rate.Burst), whole(b.rate.Interval))
	if fill.Cmp(whole(minute)) < 0 {
		return whole(minute)
	}
	return fill
}

func (b *bucketLedger) fits(t, n, maxDelay int64) bool {
	wait := b.wait(t, n)
	if maxDelay == 0 {
		return wait.Sign() <= 0
	}
	return n <= b.rate.Burst && wait.Cmp(b.reach()) <= 0 &&
		wholeTicks(wait, b.rate.Tick).Cmp(big.NewInt(maxDelay)) <= 0
}

func (b *bucketLedger) unused(t int64) bool { return b.missingAt(t).Sign() == 0 }

func (b *bucketLedger) delay(t, n int64) int64 {
	return max(wholeTicks(b.wait(t, n), b.rate.Tick).Int64(), 0)
}

func (b *bucketLedger) charge(now, n int64) {
	b.set(now, new(big.Rat).Add(b.missingAt(now), whole(n)))
}

// room is how many whole tokens may go missing beyond those that are.
func (b *bucketLedger) room(t int64) int64 {
	return last(0, b.rate.Burst+b.rate.Overdraft, func(n int64) bool {
		level := new(big.Rat).Add(b.missingAt(t), whole(n))
		return n == 0 || level.Cmp(whole(b.rate.Burst+b.rate.Overdraft)) <= 0
	})
}

func (b *bucketLedger) refund(now, n int64) int64 {
	missing := b.missingAt(now)
	given := min(n, ceil(missing).Int64())
	if given == 0 {
		return 0
	}
	missing.Sub(missing, whole(given))
	if missing.Sign() < 0 {
		missing.SetInt64(0)
	}
	b.set(now, missing)
	return given
}

func (b *bucketLedger) set(now int64, missing *big.Rat) {
	b.at, b.missing = now, missing
}

// truncate leaves at most a whole bucket missing, and beyond that what may be reserved
// or overdrawn. A bucket that holds nothing keeps what is missing for up to 2^52 ns.
func (b *bucketLedger) truncate(now int64) {
	beyond := b.reach()
	if b.rate.Burst == 0 {
		beyond = whole(1 << 52)
	}
	beyond.Quo(beyond, whole(b.rate.Interval))
	if overdraft := whole(b.rate.Overdraft); beyond.Cmp(overdraft) < 0 {
		beyond = overdraft
	}
	most := beyond.Add(beyond, whole(b.rate.Burst))
	missing := b.missingAt(now)
	if missing.Cmp(most) > 0 {
		missing = most
	}
	b.set(now, missing)
}

// change keeps the time in which the missing tokens refill at the old rate.
func (b *bucketLedger) change(l limit) {
	b.missing.Mul(b.missing, big.NewRat(b.rate.Interval, l.rate.Interval))
	b.rate = l.rate
}

// A queueLedger is a queue that one unit leaves per interval: what is missing from a
// bucket of tokens waits in the queue.
type queueLedger struct{ bucketLedger }

func (q *queueLedger) fits(t, n, maxDelay int64) bool {
	level := new(big.Rat).Add(q.missingAt(t), whole(n))
	return level.Cmp(whole(q.rate.Burst)) <= 0 && (maxDelay == 0 || q.delay(t, n) <= maxDelay)
}

// delay is how long it takes for what waits at t to leave.
func (q *queueLedger) delay(t, _ int64) int64 {
	ahead := q.missingAt(t)
	return wholeTicks(ahead.Mul(ahead, whole(q.rate.Interval)), q.rate.Tick).Int64()
}

// An entry of a history is so many units, admitted at one instant.
type entry struct {
	at    int64
	units int64
}

// A history is all that was admitted, and neither refunded nor dropped, oldest first.
type history []entry

// sum adds up the entries that count.
func (h history) sum(counts func(at int64) bool) (units int64) {
	for _, e := range h {
		if counts(e.at) {
			units += e.units
		}
	}
	return units
}

// removeNewest removes at most n units of those that count, newest first, and returns
// how many.
func (h history) removeNewest(n int64, counts func(at int64) bool) (removed int64) {
	for i := len(h) - 1; i >= 0; i-- {
		if counts(h[i].at) {
			some := min(n-removed, h[i].units)
			h[i].units -= some
			removed += some
		}
	}
	return removed
}

// removeOldest removes units from the oldest end.
func (h history) removeOldest(n int64, counts func(at int64) bool) {
	for i := range h {
		if counts(h[i].at) {
			some := min(n, h[i].units)
			h[i].units -= some
			n -= some
		}
	}
}

// A windowLedger counts the entries of its history for which counts holds. The sliding
// log is one, and so is the rolling window.
type windowLedger struct {
	history
	count     int64
	overdraft int64
	counts    func(t, at int64) bool
}

func newLogLedger(l limit) *windowLedger {
	return &windowLedger{count: l.count, counts: func(t, at int64) bool { return t-at < l.period }}
}

// newRollingLedger counts the bucket of the clock that an instant is in, and as
// many before it as there are in a period.
func newRollingLedger(l limit) *windowLedger {
	length := bucketLength(l)
	return &windowLedger{count: l.count, counts: func(t, at int64) bool {
		return t/length-at/length <= l.buckets
	}}
}

// bucketLength returns the shortest whole number of ticks of which the limit's
// buckets cover its period.
func bucketLength(l limit) int64 {
	tooShort := last(0, l.period/l.tick+1, func(ticks int64) bool {
		covered := new(big.Int).Mul(big.NewInt(ticks*l.tick), big.NewInt(l.buckets))
		return covered.Cmp(big.NewInt(l.period)) < 0
	})
	return (tooShort + 1) * l.tick
}

func (w *windowLedger) at(t int64) func(at int64) bool {
	return func(at int64) bool { return w.counts(t, at) }
}

func (w *windowLedger) max() int64 { return w.count }

func (w *windowLedger) fits(t, n, _ int64) bool { return n <= w.count-w.sum(w.at(t)) }

func (w *windowLedger) unused(t int64) bool { return w.sum(w.at(t)) == 0 }

func (w *windowLedger) delay(_, _ int64) int64 { return 0 }

func (w *windowLedger) charge(now, n int64) {
	w.history = append(w.history, entry{now, n})
}

func (w *windowLedger) room(t int64) int64 { return max(w.count-w.sum(w.at(t))+w.overdraft, 0) }

func (w *windowLedger) refund(now, n int64) int64 {
	return w.removeNewest(n, w.at(now))
}

func (w *windowLedger) truncate(int64) {}

func (w *windowLedger) change(l limit) { w.count, w.overdraft = l.count, l.overdraft }

// A fixedLedger counts everything in its history until the open window ends.
type fixedLedger struct {
	windowLedger
	windows schedule
	end     int64 // of the open window
}

func newFixedLedger(l limit) *fixedLedger {
	f := &fixedLedger{windows: l.windows}
	f.count, f.overdraft = l.count, l.overdraft
	f.counts = func(t, _ int64) bool { return t < f.end }
	return f
}

// charge opens a window, unless one is open and something of it is used.
func (f *fixedLedger) charge(now, n int64) {
	if f.unused(now) {
		f.history, f.end = nil, f.windows.endAfter(now)
	}
	f.windowLedger.charge(now, n)
}

// A slidingLedger numbers windows from the one that the first unit opened, and weights
// the previous window by how much is left of the current one.
type slidingLedger struct {
	history
	count       int64
	overdraft   int64
	overdrawn   bool
	overdrawnAt int64 // the number of the window that is overdrawn
	period      int64
	start       int64 // of window 0
}

func (s *slidingLedger) max() int64 { return s.count }

// within returns a filter for the entries of the window that contains t, or so many
// before it.
func (s *slidingLedger) within(t, before int64) func(at int64) bool {
	window := (t-s.start)/s.period - before
	return func(at int64) bool { return (at-s.start)/s.period == window }
}

// weighed returns for how many units so many of the previous window count.
func (s *slidingLedger) weighed(t, previous int64) int64 {
	rest := s.period - (t-s.start)%s.period
	share := big.NewRat(rest, s.period)
	return ceil(share.Mul(share, whole(previous))).Int64()
}

func (s *slidingLedger) window(t int64) int64 { return (t - s.start) / s.period }

// previous returns the units of the window before that of t. The debt of an overdrawn
// window has ended with it.
func (s *slidingLedger) previous(t int64) int64 {
	units := s.sum(s.within(t, 1))
	if s.overdrawn && s.overdrawnAt == s.window(t)-1 {
		units = min(units, s.count)
	}
	return units
}

func (s *slidingLedger) used(t int64) int64 {
	return s.sum(s.within(t, 0)) + s.weighed(t, s.previous(t))
}

func (s *slidingLedger) room(t int64) int64 { return max(s.count+s.overdraft-s.used(t), 0) }

// write makes the end of a debt final: raising the limit does not bring it back.
func (s *slidingLedger) write(now int64) {
	if s.overdrawn && s.overdrawnAt != s.window(now) {
		s.removeOldest(s.sum(s.within(now, 1))-s.previous(now), s.within(now, 1))
		s.overdrawn = false
	}
}

func (s *slidingLedger) mark(now int64) {
	s.overdrawn = s.sum(s.within(now, 0)) > 0 && s.used(now) > s.count
	s.overdrawnAt = s.window(now)
}

func (s *slidingLedger) fits(t, n, _ int64) bool { return n <= s.count-s.used(t) }

func (s *slidingLedger) unused(t int64) bool { return s.used(t) == 0 }

func (s *slidingLedger) delay(_, _ int64) int64 { return 0 }

func (s *slidingLedger) charge(now, n int64) {
	s.write(now)
	if s.unused(now) {
		s.history, s.start = nil, now
	}
	s.history = append(s.history, entry{now, n})
	s.mark(now)
}

func (s *slidingLedger) refund(now, n int64) int64 {
	if s.sum(s.within(now, 0))+s.sum(s.within(now, 1)) == 0 {
		return 0
	}
	s.write(now)
	current := s.removeNewest(n, s.within(now, 0))
	previous := s.removeNewest(n-current, s.within(now, 1))
	if s.overdrawn {
		s.mark(now)
	}
	return current + previous
}

// truncate erases a window that is not used any more, as any call does, and with it a
// debt that has ended.
func (s *slidingLedger) truncate(now int64) {
	if s.unused(now) {
		s.history, s.overdrawn = nil, false
	}
}

func (s *slidingLedger) change(l limit) { s.count, s.overdraft = l.count, l.overdraft }

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ceil returns the smallest whole number that is not below x.
func ceil(x *big.Rat) *big.Int {
	minus := new(big.Int).Neg(x.Num())
	return minus.Neg(minus.Div(minus, x.Denom())) // Div rounds down
}

// wholeTicks returns the smallest whole number of ticks that is not below d, in
// nanoseconds.
func wholeTicks(d *big.Rat, tick int64) *big.Int {
	ticks := ceil(new(big.Rat).Quo(d, whole(tick)))
	return ticks.Mul(ticks, big.NewInt(tick))
}
