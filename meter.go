package penstock

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A meter is a limit made ready for counting: checked, and its arithmetic
// worked out for a store's tick.
type meter struct {
	limit     Limit   // as it was given
	secret    *secret // of the store it is for; nil for the process's own
	identity  uint64  // whose state it counts
	numbers   uint64  // tells limits of one identity apart
	kind      kind    // of table that a Memory keeps the state in
	tick      int64
	most      int64 // that could be granted at once
	grantLife int64 // how long a grant under an ID is remembered

	// One of these is in use, by limit.Algorithm.
	token   algorithm.TokenBucket
	leaky   algorithm.LeakyBucket
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow
	rolling algorithm.RollingWindow
	log     algorithm.SlidingLog

	period   int64 // of windows, in whole ticks
	offset   int64 // of windows aligned to the clock
	calendar *calendar
	current  atomic.Pointer[span] // the calendar's window around now
}

// seed makes the hashes of keys differ from process to process, so that nobody
// outside can choose keys that collide.
var seed = maphash.MakeSeed()

// maxGrantLife is the longest that a grant under an ID is remembered.
const maxGrantLife = 24 * time.Hour

// newMeter checks a limit and works it out for a clock of the given tick, and for
// a store whose hashes have a secret of their own, or none.
func newMeter(l Limit, tick int64, own *secret) (*meter, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	mt := &meter{
		limit:     l,
		secret:    own,
		identity:  maphash.Comparable(seed, n.identity()),
		numbers:   maphash.Comparable(seed, n),
		kind:      n.kind(),
		tick:      tick,
		most:      n.most(),
		grantLife: algorithm.RoundUp(int64(min(n.Period, maxGrantLife)), tick),
		period:    algorithm.RoundUp(int64(n.Period), tick),
		offset:    algorithm.RoundDown(int64(n.Offset), tick),
	}
	if own != nil {
		mt.identity = own.identify(n.identity())
	}
	return mt, mt.prepare(n)
}

// prepare works out the arithmetic of a limit in its normal form.
func (mt *meter) prepare(n Limit) (err error) {
	switch n.Algorithm {
	case TokenBucket:
		mt.token.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, mt.tick)
	case LeakyBucket:
		mt.leaky.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, mt.tick)
	case FixedWindow:
		mt.fixed = algorithm.FixedWindow{Count: n.Count, Tick: mt.tick}
		if n.Align > AlignClock {
			mt.calendar, err = newCalendar(n)
		}
	case SlidingWindow:
		mt.sliding = algorithm.SlidingWindow{Count: n.Count, Period: mt.period, Tick: mt.tick}
	case RollingWindow:
		mt.rolling = algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), mt.tick)
	case SlidingLog:
		mt.log = algorithm.SlidingLog{Count: n.Count, Period: mt.period, Tick: mt.tick}
	}
	return err
}

// rate returns what a bucket counts by, and nil for a window.
func (mt *meter) rate() *algorithm.Rate {
	switch mt.limit.Algorithm {
	case TokenBucket:
		return &mt.token.Rate
	case LeakyBucket:
		return &mt.leaky.Rate
	}
	return nil
}

// most returns the most that a normal limit could grant at once.
func (l Limit) most() int64 {
	if l.Algorithm.isBucket() {
		return l.Burst
	}
	return l.Count
}

// kind returns the kind of table that a limit's states fit into.
func (l Limit) kind() kind {
	switch l.Algorithm {
	case TokenBucket, LeakyBucket:
		return bucketTable
	case RollingWindow, SlidingLog:
		return runTable
	case FixedWindow:
		if l.Align != AlignFirst {
			return clockTable
		}
	}
	return windowTable
}

// sharedHash is what the new keys of a limit are known by, all together, when
// there is no place for each.
func (mt *meter) sharedHash() uint64 { return max(mt.identity, 1) }

// window returns the fixed window that a request made now would open.
func (mt *meter) window(now int64) algorithm.Window {
	switch mt.limit.Align {
	case AlignFirst:
		return algorithm.Window{End: now + mt.period, Length: mt.period}
	case AlignClock:
		return algorithm.Aligned(now, mt.period, mt.offset)
	}
	today := mt.current.Load()
	if today == nil || now < today.start || now >= today.end {
		today = mt.spanAround(now)
		mt.current.Store(today)
	}
	return algorithm.Window{End: today.end, Length: today.end - today.start}
}

// A span is a window of the calendar. Finding one is slow, so it is kept.
type span struct {
	start, end int64
}

func (mt *meter) spanAround(now int64) *span {
	start, end := mt.calendar.window(time.Unix(0, now))
	return &span{
		start: algorithm.RoundUp(start.UnixNano(), mt.tick),
		end:   algorithm.RoundUp(end.UnixNano(), mt.tick),
	}
}

// A meterCache keeps meters for callers who come with a bare limit. A limit has
// two places where it may be, so that a pair of limits which are asked about in
// turn do not keep pushing each other out.
type meterCache struct {
	slots [1024]atomic.Pointer[meter]
}

// of returns the meter of a request's limit. It may be for any tick.
func (c *meterCache) of(r *Request) (*meter, error) {
	if mt := r.meter; mt != nil && mt.secret == nil && mt.limit == r.Limit {
		return mt, nil
	}
	return c.get(r.Limit, 1, nil)
}

func (c *meterCache) get(l Limit, tick int64, own *secret) (*meter, error) {
	i := l.mix() % uint64(len(c.slots))
	first, second := &c.slots[i], &c.slots[i^1]
	if mt := first.Load(); mt != nil && mt.limit == l {
		return mt, nil
	}
	if mt := second.Load(); mt != nil && mt.limit == l {
		return mt, nil
	}
	mt, err := newMeter(l, tick, own)
	if err == nil {
		second.Store(first.Swap(mt))
	}
	return mt, err
}

// mix tells limits apart well enough to spread them over a cache, in less time
// than a real hash of all fields takes.
func (l Limit) mix() uint64 {
	h := maphash.String(seed, l.Name) ^ maphash.String(seed, l.Zone)<<1
	for _, field := range [...]int64{
		l.Count, int64(l.Period), l.Burst, int64(l.Offset), int64(l.Buckets)<<16 | int64(l.Align)<<8 | int64(l.Algorithm),
	} {
		h = (h ^ uint64(field)) * 0x9e3779b97f4a7c15
	}
	return h >> 32
}
