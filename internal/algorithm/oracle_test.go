package algorithm_test

import (
	"math"
	"math/big"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// An oracle decides like an algorithm, slowly and obviously. It knows one thing
// about a key, whether some units would fit at some instant, and works the rest
// out by trying: how much is left is the most that would fit, and when to come
// back is the first tick at which the ask would pass. It has no closed forms,
// and shares no code with the package.
//
// Its clock never steps back.
type oracle struct {
	ledger
	tick int64
}

// A ledger is what an oracle knows about one key. Instants are never before the
// latest at which something was written.
type ledger interface {
	// most is the most that the limit could ever grant at once.
	most() int64

	// fits reports whether n units, with so much delay at most, could be
	// granted at t if nothing happened until then.
	fits(t, n, maxDelay int64) bool

	// unused reports whether the key is as good as new at t.
	unused(t int64) bool

	// delay is how long n units granted at t would have to wait.
	delay(t, n int64) int64

	charge(now, n int64)

	// refund takes back at most n units, the newest first, and returns how
	// many.
	giveBack(now, n int64) int64

	// forgive strikes out what a lowered limit cannot hold.
	forgive(now int64)

	// change puts another limit in the place of the one so far.
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
		o.ledger = &slidingLedger{count: l.count, period: l.period}
	case rollingWindow:
		o.ledger = newRollingLedger(l)
	case slidingLog:
		o.ledger = newLogLedger(l)
	}
	return o
}

// An answer is all that a caller is told.
type answer struct {
	algorithm.Outcome
	algorithm.Balance
}

func (o *oracle) decide(now int64, req algorithm.Request) answer {
	o.forgive(now)
	v := algorithm.Outcome{Allowed: true}
	switch {
	case req.Cost > 0:
		v = o.take(now, req)
	case req.Cost < 0:
		v.Granted = -o.giveBack(now, magnitudeOf(req.Cost))
	default:
		v.Delay = o.lookDelay(now)
	}
	return answer{v, algorithm.Balance{
		Remaining:  o.largest(now, o.most(), 0),
		ResetAfter: o.firstTick(now, o.unused),
	}}
}

func (o *oracle) take(now int64, req algorithm.Request) algorithm.Outcome {
	if granted := o.grant(now, req); granted > 0 {
		v := algorithm.Outcome{Allowed: true, Granted: granted, Delay: o.delay(now, granted)}
		o.charge(now, granted)
		return v
	}
	passes := func(t int64) bool { return o.grant(t, req) > 0 }
	return algorithm.Outcome{RetryAfter: o.firstTick(now, passes)}
}

// lookDelay is what a look tells: on a queue, how long it is.
func (o *oracle) lookDelay(now int64) int64 {
	if _, queue := o.ledger.(*queueLedger); queue {
		return o.delay(now, 1)
	}
	return 0
}

// grant returns how many units an ask would get at t.
func (o *oracle) grant(t int64, req algorithm.Request) int64 {
	switch {
	case o.fits(t, req.Cost, req.MaxDelay):
		return req.Cost
	case req.AtMost:
		return o.largest(t, min(req.Cost, o.most()), req.MaxDelay)
	}
	return 0
}

// largest returns the most units, up to a limit, that would fit at t.
func (o *oracle) largest(t, limit, maxDelay int64) int64 {
	return last(0, limit, func(n int64) bool { return n == 0 || o.fits(t, n, maxDelay) })
}

// firstTick returns how many whole ticks after now something becomes true that
// stays true from then on, in nanoseconds.
func (o *oracle) firstTick(now int64, becomes func(t int64) bool) int64 {
	const eternity = 1 << 62
	if becomes(now) {
		return 0
	}
	if !becomes(now + eternity) {
		return algorithm.Never
	}
	notYet := func(ticks int64) bool { return !becomes(now + ticks*o.tick) }
	far := int64(1)
	for far < eternity/o.tick && notYet(far) {
		far = min(2*far, eternity/o.tick)
	}
	return (last(0, far, notYet) + 1) * o.tick
}

// last returns the last number from low to high for which ok holds, when it
// holds for low and, once it does not, for none above.
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

// A bucketLedger is a bucket that holds tokens, fractions of tokens included.
// It remembers how many are missing; more than fit are missing when some are
// reserved.
type bucketLedger struct {
	rate     algorithm.Rate
	missing  *big.Rat
	at       int64 // when so many were missing
	reserved bool  // whether some were reserved then
}

func (b *bucketLedger) most() int64 { return b.rate.Burst }

// missingAt returns how many tokens are missing once one has dripped in per
// interval until t.
func (b *bucketLedger) missingAt(t int64) *big.Rat {
	dripped := big.NewRat(t-b.at, b.rate.Interval)
	left := new(big.Rat).Sub(b.missing, dripped)
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

// wait returns how many nanoseconds after t n tokens will be there.
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

func (b *bucketLedger) giveBack(now, n int64) int64 {
	missing := b.missingAt(now)
	given := min(n, ceil(missing).Int64())
	missing.Sub(missing, whole(given))
	if missing.Sign() < 0 {
		missing.SetInt64(0)
	}
	b.set(now, missing)
	return given
}

func (b *bucketLedger) set(now int64, missing *big.Rat) {
	b.at, b.missing = now, missing
	b.reserved = missing.Cmp(whole(b.rate.Burst)) > 0
}

// forgive leaves at most a whole bucket missing, and beyond that only what may
// be reserved, if something was.
func (b *bucketLedger) forgive(now int64) {
	most := whole(b.rate.Burst)
	if b.reserved {
		reach := b.reach()
		most.Add(most, reach.Quo(reach, whole(b.rate.Interval)))
	}
	missing := b.missingAt(now)
	if missing.Cmp(most) > 0 {
		missing = most
	}
	b.set(now, missing)
}

// change keeps the time that the missing tokens take to come back, at the old
// rate.
func (b *bucketLedger) change(l limit) {
	b.missing.Mul(b.missing, big.NewRat(b.rate.Interval, l.rate.Interval))
	b.rate = l.rate
}

// A queueLedger is a queue that a token leaves once per interval: what is
// missing from a bucket of tokens is what waits in the queue.
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

// A history is all that was ever admitted and neither given back nor forgiven,
// oldest first.
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

// strikeNewest strikes out at most n units of those that count, newest first,
// and returns how many.
func (h history) strikeNewest(n int64, counts func(at int64) bool) (struck int64) {
	for i := len(h) - 1; i >= 0; i-- {
		if counts(h[i].at) {
			some := min(n-struck, h[i].units)
			h[i].units -= some
			struck += some
		}
	}
	return struck
}

// strikeOldest is strikeNewest from the other end.
func (h history) strikeOldest(n int64, counts func(at int64) bool) {
	for i := range h {
		if counts(h[i].at) {
			some := min(n, h[i].units)
			h[i].units -= some
			n -= some
		}
	}
}

// A windowLedger counts those entries of its history that some rule says still
// count at an instant. The sliding log is one, and so is the rolling window.
type windowLedger struct {
	history
	count  int64
	counts func(t, at int64) bool
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

func (w *windowLedger) most() int64 { return w.count }

func (w *windowLedger) fits(t, n, _ int64) bool { return n <= w.count-w.sum(w.at(t)) }

func (w *windowLedger) unused(t int64) bool { return w.sum(w.at(t)) == 0 }

func (w *windowLedger) delay(_, _ int64) int64 { return 0 }

func (w *windowLedger) charge(now, n int64) { w.history = append(w.history, entry{now, n}) }

func (w *windowLedger) giveBack(now, n int64) int64 { return w.strikeNewest(n, w.at(now)) }

func (w *windowLedger) forgive(now int64) {
	w.strikeOldest(max(w.sum(w.at(now))-w.count, 0), w.at(now))
}

func (w *windowLedger) change(l limit) { w.count = l.count }

// A fixedLedger counts everything in its history until the open window ends.
type fixedLedger struct {
	windowLedger
	windows schedule
	end     int64 // of the open window
}

func newFixedLedger(l limit) *fixedLedger {
	f := &fixedLedger{windows: l.windows}
	f.count = l.count
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

// A slidingLedger numbers windows from the one that the first unit opened, and
// weighs what was admitted in the one before by how much is left of this one.
type slidingLedger struct {
	history
	count  int64
	period int64
	start  int64 // of window 0
}

func (s *slidingLedger) most() int64 { return s.count }

// within returns what counts as admitted in the window that contains t, or so
// many before it.
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

func (s *slidingLedger) used(t int64) int64 {
	return s.sum(s.within(t, 0)) + s.weighed(t, s.sum(s.within(t, 1)))
}

func (s *slidingLedger) fits(t, n, _ int64) bool { return n <= s.count-s.used(t) }

func (s *slidingLedger) unused(t int64) bool { return s.used(t) == 0 }

func (s *slidingLedger) delay(_, _ int64) int64 { return 0 }

func (s *slidingLedger) charge(now, n int64) {
	if s.unused(now) {
		s.history, s.start = nil, now
	}
	s.history = append(s.history, entry{now, n})
}

func (s *slidingLedger) giveBack(now, n int64) int64 {
	current := s.strikeNewest(n, s.within(now, 0))
	return current + s.strikeNewest(n-current, s.within(now, 1))
}

// forgive keeps as much of the current window as fits, and then as much of the
// previous one.
func (s *slidingLedger) forgive(now int64) {
	current, previous := s.sum(s.within(now, 0)), s.sum(s.within(now, 1))
	keep := min(current, s.count)
	s.strikeOldest(current-keep, s.within(now, 0))
	keepPrevious := last(0, previous, func(n int64) bool { return keep+s.weighed(now, n) <= s.count })
	s.strikeOldest(previous-keepPrevious, s.within(now, 1))
}

func (s *slidingLedger) change(l limit) { s.count = l.count }

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
