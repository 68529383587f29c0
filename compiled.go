package penstock

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/calendar"
	"github.com/penstock-io/penstock/internal/siphash"
)

// A compiledLimit is a valid limit, with its arithmetic prepared for the tick of
// a store's clock.
type compiledLimit struct {
	limit        Limit        // as given by the caller
	key          *siphash.Key // of a Durable store's hash function; nil for maphash
	identityHash uint64       // of Limit.Identity: limits with equal hashes share state
	normalHash   uint64       // of Limit.Normal: differs if any number of the limit does
	steps        *memorySteps // how a Memory decides
	table        tableKind    // where a Memory holds the state
	onWallClock  bool         // of table
	hasBlocks    bool         // of table
	readsBlock   bool         // of table: whether every decision reads the block
	tick         int64
	capacity     int64 // the most that can be granted at once
	idLifetime   int64 // how long a grant under an ID is remembered

	arithmetic

	bucketRate *algorithm.Rate // of token or leaky; nil for a window

	period        int64 // of windows, in whole ticks
	offset        int64 // of windows aligned to the clock
	calendar      *calendar.Calendar
	currentWindow atomic.Pointer[windowSpan] // the calendar's window around now
}

// seed makes hashes differ between processes, so an attacker cannot choose keys
// that collide.
var seed = maphash.MakeSeed()

// maxIDLifetime bounds how long a grant under an ID is remembered.
const maxIDLifetime = 24 * time.Hour

// compileLimit validates a limit and compiles it for a clock with that tick. key
// is that of a Durable store, or nil.
func compileLimit(l Limit, tick int64, key *siphash.Key) (*compiledLimit, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	cl := &compiledLimit{
		limit:        l,
		key:          key,
		identityHash: identityHashOf(n.identity(), key),
		normalHash:   maphash.Comparable(seed, n),
		table:        tableKindOf(&n),
		steps:        &stepsOf[n.Algorithm],
		tick:         tick,
		capacity:     n.Capacity(),
		idLifetime:   algorithm.RoundUp(int64(min(n.Period, maxIDLifetime)), tick),
		period:       algorithm.RoundUp(int64(n.Period), tick),
		offset:       algorithm.RoundDown(int64(n.Offset), tick),
	}
	cl.onWallClock, cl.hasBlocks, cl.readsBlock = cl.table.onWallClock(), cl.table.hasBlocks(), cl.table.readsBlock()
	return cl, cl.steps.prepare(cl, n)
}

// identityHashOf returns the hash of a limit's identity. With a key it is the
// same in every process.
func identityHashOf(l Limit, key *siphash.Key) uint64 {
	if key == nil {
		return maphash.Comparable(seed, l)
	}
	var b strings.Builder
	for _, n := range [...]int64{
		l.shape(), l.Count, int64(l.Period), l.Burst, int64(l.Offset), int64(len(l.Name)),
	} {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], uint64(n))
		b.Write(word[:])
	}
	b.WriteString(l.Name)
	b.WriteString(l.Zone)
	if l.Debt != 0 { // not otherwise, so that limits without it keep their states
		fmt.Fprintf(&b, " debt=%d", l.Debt)
	}
	return key.Sum(b.String())
}

// rate returns the rate of a bucket, and nil for a window.
func (cl *compiledLimit) rate() *algorithm.Rate { return cl.bucketRate }

// interval returns how long a bucket takes to earn one unit, or 0 for a window.
func (cl *compiledLimit) interval() int64 {
	if rate := cl.rate(); rate != nil {
		return rate.Interval
	}
	return 0
}

// hashOf returns the hash of a key under a limit in this process. It is never 0.
func hashOf(cl *compiledLimit, key string) uint64 {
	return max(maphash.String(seed, key)^cl.identityHash, 1)
}

// overflowHash is the hash of the limit's overflow bucket.
func (cl *compiledLimit) overflowHash() uint64 { return max(cl.identityHash, 1) }

// neverGrants reports whether the request can never be granted, in any state of
// its key.
func (cl *compiledLimit) neverGrants(r *Request) bool { return cl.neverGrantsBehind(r, 0) }

// neverGrantsBehind is neverGrants for a request of a TakeAll, with the total cost of its key. Of
// that, prior units are of the requests before it.
func (cl *compiledLimit) neverGrantsBehind(r *Request, prior int64) bool {
	req := r.forAlgorithm()
	req.Prior = prior
	if cl.limit.HasQueue() {
		_, idle := cl.leaky.Decide(algorithm.Bucket{}, 0, req)
		return idle.RetryAfter == algorithm.Never
	}
	return req.NeverFits(cl.capacity)
}

// denyWhenFull returns the outcome if the store has room neither for a key nor
// for its limit's overflow bucket.
func (cl *compiledLimit) denyWhenFull(req *algorithm.Request) algorithm.Outcome {
	switch {
	case req.Cost <= 0 || req.Overdraw:
		return algorithm.Outcome{Allowed: true}
	case req.NeverFits(cl.capacity):
		return algorithm.Outcome{RetryAfter: algorithm.Never}
	}
	return algorithm.Outcome{RetryAfter: cl.period}
}

// window returns the fixed window that a request at now would open.
func (cl *compiledLimit) window(now int64) algorithm.Window {
	switch cl.limit.Align {
	case AlignFirst:
		return algorithm.Window{End: now + cl.period, Length: cl.period}
	case AlignClock:
		return algorithm.Aligned(now, cl.period, cl.offset)
	}
	current := cl.currentWindow.Load()
	if current == nil || now < current.start || now >= current.end {
		current = cl.spanAround(now)
		cl.currentWindow.Store(current)
	}
	return algorithm.Window{End: current.end, Length: current.end - current.start}
}

// A windowSpan is a window of the calendar, cached because computing one is slow.
type windowSpan struct {
	start, end int64
}

func (cl *compiledLimit) spanAround(now int64) *windowSpan {
	start, end := cl.calendar.Window(time.Unix(0, now))
	return &windowSpan{
		start: algorithm.RoundUp(start.UnixNano(), cl.tick),
		end:   algorithm.RoundUp(end.UnixNano(), cl.tick),
	}
}

// equal reports whether two limits are the same. The operator would call functions for the
// numbers as well, which every decision would pay for.
func (l *Limit) equal(o *Limit) bool {
	return l.Count == o.Count && l.Period == o.Period && l.Burst == o.Burst && l.Debt == o.Debt &&
		l.Algorithm == o.Algorithm && l.Align == o.Align && l.Untrusted == o.Untrusted &&
		l.Buckets == o.Buckets && l.Offset == o.Offset && sameText(l.Name, o.Name) && sameText(l.Zone, o.Zone)
}

// sameText reports whether two texts are equal. Most are copies, and have one address.
func sameText(a, b string) bool {
	return len(a) == len(b) && (unsafe.StringData(a) == unsafe.StringData(b) || a == b)
}

// A compiledCache caches compiled limits, for requests that carry only a Limit.
// Each limit has two slots, so two limits that are used in turn do not evict each
// other.
type compiledCache struct {
	slots [1024]atomic.Pointer[compiledLimit]
}

// forRequest returns the compiled limit of a request. It may be compiled for any
// tick.
func (c *compiledCache) forRequest(r *Request) (*compiledLimit, error) {
	if cl := r.compiled; cl != nil && cl.key == nil && cl.limit.equal(&r.Limit) {
		return cl, nil
	}
	return c.get(r.Limit, 1, nil)
}

func (c *compiledCache) get(l Limit, tick int64, key *siphash.Key) (*compiledLimit, error) {
	i := l.cacheHash() % uint64(len(c.slots))
	first, second := &c.slots[i], &c.slots[i^1]
	if cl := first.Load(); cl != nil && cl.limit == l {
		return cl, nil
	}
	if cl := second.Load(); cl != nil && cl.limit == l {
		return cl, nil
	}
	cl, err := compileLimit(l, tick, key)
	if err != nil {
		return nil, err
	}
	if old := first.Swap(cl); old != nil { // what the second slot holds stays if the first was free
		second.Store(old)
	}
	return cl, nil
}

// cacheHash hashes a limit for a cache, faster than a full hash of all fields.
func (l Limit) cacheHash() uint64 {
	h := maphash.String(seed, l.Name) ^ maphash.String(seed, l.Zone)<<1
	for _, field := range [...]int64{
		l.Count, int64(l.Period), l.Burst, l.Debt, int64(l.Offset), l.shape(),
	} {
		h = (h ^ uint64(field)) * 0x9e3779b97f4a7c15
	}
	return h >> 32
}

// shape returns the small fields of a limit as one number.
func (l *Limit) shape() int64 {
	shape := int64(l.Buckets)<<32 | int64(l.Align)<<8 | int64(l.Algorithm)
	if l.Untrusted {
		shape |= 1 << 16
	}
	return shape
}
