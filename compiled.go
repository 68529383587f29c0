package penstock

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A compiledLimit is a limit made ready for counting: checked, and its arithmetic
// worked out for a store's tick.
type compiledLimit struct {
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

// compileLimit checks a limit and works it out for a clock of the given tick, and for
// a store whose hashes have a secret of their own, or none.
func compileLimit(l Limit, tick int64, own *secret) (*compiledLimit, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	cl := &compiledLimit{
		limit:     l,
		secret:    own,
		identity:  maphash.Comparable(seed, n.identity()),
		numbers:   maphash.Comparable(seed, n),
		kind:      n.kind(),
		tick:      tick,
		most:      n.Capacity(),
		grantLife: algorithm.RoundUp(int64(min(n.Period, maxGrantLife)), tick),
		period:    algorithm.RoundUp(int64(n.Period), tick),
		offset:    algorithm.RoundDown(int64(n.Offset), tick),
	}
	if own != nil {
		cl.identity = own.identify(n.identity())
	}
	return cl, cl.prepare(n)
}

// prepare works out the arithmetic of a limit in its normal form.
func (cl *compiledLimit) prepare(n Limit) (err error) {
	switch n.Algorithm {
	case TokenBucket:
		cl.token.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, cl.tick)
	case LeakyBucket:
		cl.leaky.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, cl.tick)
	case FixedWindow:
		cl.fixed = algorithm.FixedWindow{Count: n.Count, Tick: cl.tick}
		if n.Align > AlignClock {
			cl.calendar, err = newCalendar(n)
		}
	case SlidingWindow:
		cl.sliding = algorithm.SlidingWindow{Count: n.Count, Period: cl.period, Tick: cl.tick}
	case RollingWindow:
		cl.rolling = algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), cl.tick)
	case SlidingLog:
		cl.log = algorithm.SlidingLog{Count: n.Count, Period: cl.period, Tick: cl.tick}
	}
	return err
}

// rate returns what a bucket counts by, and nil for a window.
func (cl *compiledLimit) rate() *algorithm.Rate {
	switch cl.limit.Algorithm {
	case TokenBucket:
		return &cl.token.Rate
	case LeakyBucket:
		return &cl.leaky.Rate
	}
	return nil
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
func (cl *compiledLimit) sharedHash() uint64 { return max(cl.identity, 1) }

// window returns the fixed window that a request made now would open.
func (cl *compiledLimit) window(now int64) algorithm.Window {
	switch cl.limit.Align {
	case AlignFirst:
		return algorithm.Window{End: now + cl.period, Length: cl.period}
	case AlignClock:
		return algorithm.Aligned(now, cl.period, cl.offset)
	}
	today := cl.current.Load()
	if today == nil || now < today.start || now >= today.end {
		today = cl.spanAround(now)
		cl.current.Store(today)
	}
	return algorithm.Window{End: today.end, Length: today.end - today.start}
}

// A span is a window of the calendar. Finding one is slow, so it is kept.
type span struct {
	start, end int64
}

func (cl *compiledLimit) spanAround(now int64) *span {
	start, end := cl.calendar.window(time.Unix(0, now))
	return &span{
		start: algorithm.RoundUp(start.UnixNano(), cl.tick),
		end:   algorithm.RoundUp(end.UnixNano(), cl.tick),
	}
}

// A compiledCache keeps meters for callers who come with a bare limit. A limit has
// two places where it may be, so that a pair of limits which are asked about in
// turn do not keep pushing each other out.
type compiledCache struct {
	slots [1024]atomic.Pointer[compiledLimit]
}

// of returns the meter of a request's limit. It may be for any tick.
func (c *compiledCache) of(r *Request) (*compiledLimit, error) {
	if cl := r.compiled; cl != nil && cl.secret == nil && cl.limit == r.Limit {
		return cl, nil
	}
	return c.get(r.Limit, 1, nil)
}

func (c *compiledCache) get(l Limit, tick int64, own *secret) (*compiledLimit, error) {
	i := l.mix() % uint64(len(c.slots))
	first, second := &c.slots[i], &c.slots[i^1]
	if cl := first.Load(); cl != nil && cl.limit == l {
		return cl, nil
	}
	if cl := second.Load(); cl != nil && cl.limit == l {
		return cl, nil
	}
	cl, err := compileLimit(l, tick, own)
	if err == nil {
		second.Store(first.Swap(cl))
	}
	return cl, err
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
