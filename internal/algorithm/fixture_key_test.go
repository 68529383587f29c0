package algorithm_test

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A kind is an algorithm. There are two kinds of fixed window, since aligned ones do not
// begin with the first unit.
type kind string

const (
	tokenBucket   kind = "token-bucket"
	leakyBucket   kind = "leaky-bucket"
	fixedWindow   kind = "fixed-window"
	alignedWindow kind = "aligned-window"
	slidingWindow kind = "sliding-window"
	rollingWindow kind = "rolling-window"
	slidingLog    kind = "sliding-log"
)

var (
	bucketKinds = []kind{tokenBucket, leakyBucket}
	windowKinds = []kind{fixedWindow, alignedWindow, slidingWindow, rollingWindow, slidingLog}
	everyKind   = slices.Concat(bucketKinds, windowKinds)
)

// debtKinds can be overdrawn.
var debtKinds = []kind{tokenBucket, leakyBucket, fixedWindow, alignedWindow, slidingWindow}

func (k kind) hasDebt() bool { return slices.Contains(debtKinds, k) }

func (k kind) isBucket() bool { return slices.Contains(bucketKinds, k) }

const (
	millisecond = 1_000_000
	second      = 1000 * millisecond
	minute      = 60 * second
	hour        = 60 * minute
	day         = 24 * hour
	year        = 365 * day
)

// A limit is the limit of a key. Each kind uses its own fields.
type limit struct {
	kind      kind
	tick      int64
	rate      algorithm.Rate // buckets
	count     int64          // windows
	period    int64          // windows but fixed ones, in whole ticks
	windows   schedule       // fixed windows
	buckets   int64          // rolling windows
	overdraft int64          // windows
}

func (l limit) String() string {
	switch {
	case l.kind.isBucket():
		return fmt.Sprintf("%s %+v", l.kind, l.rate)
	case l.windows != nil:
		return fmt.Sprintf("%s of %d and %d in %T%+v, tick %d", l.kind, l.count, l.overdraft, l.windows, l.windows, l.tick)
	case l.kind == rollingWindow:
		return fmt.Sprintf("%s of %d per %d in %d buckets, tick %d", l.kind, l.count, l.period, l.buckets, l.tick)
	}
	return fmt.Sprintf("%s of %d and %d per %d, tick %d", l.kind, l.count, l.overdraft, l.period, l.tick)
}

// max returns the most that could be granted at once.
func (l limit) max() int64 {
	if l.kind.isBucket() {
		return l.rate.Burst
	}
	return l.count
}

// durations returns the durations at which the limit's state changes.
func (l limit) durations(now int64) []int64 {
	switch l.kind {
	case tokenBucket, leakyBucket:
		bucket := algorithm.TokenBucket{Rate: l.rate}
		return []int64{l.rate.Interval, bucket.Capacity(), bucket.Reach()}
	case fixedWindow, alignedWindow:
		w := l.windows.window(now)
		return []int64{w.Length, w.End - now, now - (w.End - w.Length)}
	case rollingWindow:
		length := bucketLength(l)
		return []int64{length, length - now%length, now % length, l.period}
	}
	return []int64{l.period}
}

// A schedule is where the windows of a fixed window lie.
type schedule interface {
	window(now int64) algorithm.Window // for the algorithm
	endAfter(now int64) int64          // for the oracle
	shortest() int64                   // of the windows' lengths
}

// fromFirst has windows of one length that begin with their first unit.
type fromFirst struct{ length int64 }

func (f fromFirst) window(now int64) algorithm.Window {
	return algorithm.Window{End: now + f.length, Length: f.length}
}

func (f fromFirst) endAfter(now int64) int64 { return now + f.length }

func (f fromFirst) shortest() int64 { return f.length }

// onClock has windows of one length, one of which begins at an offset.
type onClock struct{ length, offset int64 }

func (c onClock) window(now int64) algorithm.Window {
	return algorithm.Aligned(now, c.length, c.offset)
}

// endAfter starts a whole number of lengths before now, plus the offset, and then adds
// whole windows.
func (c onClock) endAfter(now int64) int64 {
	end := now/c.length*c.length - 2*c.length + c.offset
	for end <= now {
		end += c.length
	}
	return end
}

func (c onClock) shortest() int64 { return c.length }

// calendar has windows of several lengths, in turn, like months. The first begins at or
// before zero.
type calendar struct {
	start   int64
	lengths []int64
}

func (c calendar) window(now int64) algorithm.Window {
	turn := int64(0)
	for _, length := range c.lengths {
		turn += length
	}
	start := c.start + (now-c.start)/turn*turn
	for _, length := range c.lengths {
		if now < start+length {
			return algorithm.Window{End: start + length, Length: length}
		}
		start += length
	}
	return algorithm.Window{} // unreachable
}

func (c calendar) endAfter(now int64) int64 { return c.window(now).End }

func (c calendar) shortest() int64 { return slices.Min(c.lengths) }

// A key is one key of a store: a limit, and the state under it. It decides as a store
// does.
type key interface {
	decide(now int64, req algorithm.Request) result
	change(l limit)
	fork() key

	// state describes the state at now. It is the same for equivalent states.
	state(now int64) string

	// valid reports whether Decide may leave this state.
	valid(now int64) bool
}

func newKey(l limit) key {
	var k key
	switch l.kind {
	case tokenBucket:
		k = &tokenKey{}
	case leakyBucket:
		k = &leakyKey{}
	case fixedWindow, alignedWindow:
		k = &fixedKey{}
	case slidingWindow:
		k = &slidingKey{}
	case rollingWindow:
		k = &rollingKey{}
	case slidingLog:
		k = &logKey{}
	}
	k.change(l)
	return k
}

type tokenKey struct {
	limit  algorithm.TokenBucket
	bucket algorithm.Bucket
}

func (k *tokenKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.bucket, now, req)
	k.bucket = after
	return result{v, k.limit.Balance(max(k.bucket.Full-now, 0))}
}

func (k *tokenKey) change(l limit) { k.limit = algorithm.TokenBucket{Rate: l.rate} }

func (k *tokenKey) fork() key { copied := *k; return &copied }

func (k *tokenKey) state(int64) string { return fmt.Sprintf("%+v", k.bucket) }

func (k *tokenKey) valid(now int64) bool {
	b := k.bucket
	return b == algorithm.Bucket{} || b.Full > now && b.Full-now <= k.limit.MaxDebt()
}

type leakyKey struct {
	limit  algorithm.LeakyBucket
	bucket algorithm.Bucket
}

func (k *leakyKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.bucket, now, req)
	k.bucket = after
	return result{v, k.limit.Balance(max(k.bucket.Full-now, 0))}
}

func (k *leakyKey) change(l limit) { k.limit = algorithm.LeakyBucket{Rate: l.rate} }

func (k *leakyKey) fork() key { copied := *k; return &copied }

func (k *leakyKey) state(int64) string { return fmt.Sprintf("%+v", k.bucket) }

func (k *leakyKey) valid(now int64) bool {
	b := k.bucket
	return b == algorithm.Bucket{} || b.Full > now && b.Full-now <= k.limit.MaxDebt()
}

type fixedKey struct {
	limit   algorithm.FixedWindow
	windows schedule
	counter algorithm.Counter
}

func (k *fixedKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.counter, now, k.windows.window(now), req)
	k.counter = after
	return result{v, k.limit.Balance(k.counter, now)}
}

func (k *fixedKey) change(l limit) {
	k.limit = algorithm.FixedWindow{Count: l.count, Overdraft: l.overdraft, Tick: l.tick}
	k.windows = l.windows
}

func (k *fixedKey) fork() key { copied := *k; return &copied }

// state describes the counter of the open window.
func (k *fixedKey) state(now int64) string {
	if k.counter.End <= now {
		return "unused"
	}
	return fmt.Sprintf("%+v", k.counter)
}

func (k *fixedKey) valid(now int64) bool {
	c := k.counter
	return c == algorithm.Counter{} || c.Used > 0 && c.End <= now+k.windows.window(now).Length
}

type slidingKey struct {
	limit algorithm.SlidingWindow
	slide algorithm.Slide
}

func (k *slidingKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.slide, now, req)
	k.slide = after
	return result{v, k.limit.Balance(k.slide, now)}
}

func (k *slidingKey) change(l limit) {
	k.limit = algorithm.SlidingWindow{Count: l.count, Overdraft: l.overdraft, Period: l.period, Tick: l.tick}
}

func (k *slidingKey) fork() key { copied := *k; return &copied }

// state describes the counts after the windows that have ended since the last write.
func (k *slidingKey) state(now int64) string {
	s := k.slide
	for s.End <= now && s != (algorithm.Slide{End: s.End}) {
		if s.Overdrawn {
			s.Current = min(s.Current, k.limit.Count)
		}
		s = algorithm.Slide{Previous: s.Current, End: s.End + k.limit.Period}
	}
	if s.Previous == 0 && s.Current == 0 {
		return "unused"
	}
	return fmt.Sprintf("%+v", s)
}

func (k *slidingKey) valid(now int64) bool {
	s := k.slide
	return s == algorithm.Slide{} || s.Previous >= 0 && s.Current >= 0 && s.Previous+s.Current > 0 &&
		s.End > now-k.limit.Period && s.End <= now+k.limit.Period
}

// A rollingKey has no ring until something is recorded in it.
type rollingKey struct {
	limit algorithm.RollingWindow
	ring  algorithm.Ring
}

func (k *rollingKey) decide(now int64, req algorithm.Request) result {
	k.limit.Normalize(&k.ring, now)
	v := k.limit.Decide(&k.ring, now, req)
	if v.Granted != 0 {
		if k.ring.Counts == nil {
			k.ring.Counts = make([]int64, k.limit.Buckets+1)
		}
		k.limit.Record(&k.ring, now, v.Granted)
	}
	return result{v, k.limit.Balance(&k.ring, now)}
}

func (k *rollingKey) change(l limit) {
	k.limit = algorithm.NewRollingWindow(l.count, l.period, l.buckets, l.tick)
}

func (k *rollingKey) fork() key {
	copied := *k
	copied.ring.Counts = slices.Clone(k.ring.Counts)
	return &copied
}

// state describes the buckets that still count, oldest first, each by its number.
func (k *rollingKey) state(now int64) string {
	var live []entry
	r, n := &k.ring, len(k.ring.Counts)
	for i := 1; i <= n; i++ {
		number := r.Newest - int64(n-i)
		units := r.Counts[(r.Head+i)%n]
		if units > 0 && now/k.limit.Length-number <= k.limit.Buckets {
			live = append(live, entry{number, units})
		}
	}
	return fmt.Sprintf("%+v, empty in %d", live, max(k.empty()-now, 0))
}

func (k *rollingKey) empty() int64 { return k.limit.Empty(&k.ring) }

func (k *rollingKey) valid(now int64) bool {
	total := int64(0)
	for _, units := range k.ring.Counts {
		if units < 0 {
			return false
		}
		total += units
	}
	return total == k.ring.Total && k.ring.Newest <= now/k.limit.Length
}

// A logKey grows its ring when needed.
type logKey struct {
	limit algorithm.SlidingLog
	log   algorithm.Log
}

func (k *logKey) decide(now int64, req algorithm.Request) result {
	k.limit.Normalize(&k.log, now)
	v := k.limit.Decide(&k.log, now, req)
	if v.Granted != 0 {
		k.grow(k.limit.Room(&k.log, now, max(v.Granted, 0)))
		k.limit.Record(&k.log, now, v.Granted)
	}
	return result{v, k.limit.Balance(&k.log, now)}
}

func (k *logKey) grow(need int) {
	if need <= len(k.log.Times) {
		return
	}
	room := max(need, k.log.Len) // the log may hold more than is needed, and CopyTo copies all
	longer := algorithm.Log{Times: make([]int64, room)}
	k.log.CopyTo(&longer)
	k.log = longer
}

func (k *logKey) change(l limit) {
	k.limit = algorithm.SlidingLog{Count: l.count, Period: l.period, Tick: l.tick}
}

// fork copies the log into a longer ring, which must not matter.
func (k *logKey) fork() key {
	copied := &logKey{limit: k.limit, log: algorithm.Log{Times: make([]int64, len(k.log.Times)+1)}}
	k.log.CopyTo(&copied.log)
	return copied
}

// state describes the units that still count.
func (k *logKey) state(now int64) string {
	var live []int64
	for i := range k.log.Len {
		at := k.log.Times[(k.log.Head+i)%len(k.log.Times)]
		if now-at < k.limit.Period {
			live = append(live, at)
		}
	}
	return fmt.Sprintf("%d, empty in %d", live, max(k.empty()-now, 0))
}

func (k *logKey) empty() int64 { return k.limit.Empty(&k.log) }

func (k *logKey) valid(now int64) bool {
	latest := int64(0)
	for i := range k.log.Len {
		at := k.log.Times[(k.log.Head+i)%len(k.log.Times)]
		if at < latest {
			return false
		}
		latest = at
	}
	return latest <= now && (k.log.Len == 0 || k.log.Newest == latest)
}
