package main

import (
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A limiter is a library's, open, with the state of all its keys.
//
// Each has its own loop, though the loops are alike: a shared loop would add an
// indirect call that users do not have, which would favour slow limiters.
type limiter interface {
	run(w *walk, calls int) harness.Counts
}

// A loop takes the next keys of a walk, one after the other.
type loop func(w *walk, calls int) harness.Counts

func (f loop) run(w *walk, calls int) harness.Counts { return f(w, calls) }

// A library opens a limiter for n keys.
type library struct {
	name   string
	module string // whose version is printed
	keyed  bool
	open   func(p benchLimit, n int) limiter
}

// mostChecked is for how many keys at most it is checked that they are separate.
const mostChecked = 10_000

// openFilled opens a limiter and takes each of n keys once, after a check that it separates keys.
func (l library) openFilled(p benchLimit, n int) limiter {
	if l.keyed {
		checkSeparateKeys(l, min(n, mostChecked))
	}
	opened := l.open(p, n)
	l.visit(opened, n, 0)
	return opened
}

// visit takes every key once; so many must be denied.
func (l library) visit(opened limiter, keys, denied int) {
	var t harness.Counts
	fillKeys(0, keys, func(key string) { t.Add(opened.run(walkTo(key), 1)) })
	harness.Check(t.First)
	if t.Denied != denied {
		harness.Failf("%s: %d of %d keys were denied, want %d", l.name, t.Denied, keys, denied)
	}
}

// release stops the background work of a limiter, if any.
func release(l limiter) {
	if c, ok := l.(interface{ close() }); ok {
		c.close()
	}
}

// A benchLimit is a limit that every library can be configured with: one unit every
// so often, and so many at once.
type benchLimit struct {
	every time.Duration
	burst int64
}

// once allows each key one time and then denies it.
var once = benchLimit{every: time.Hour, burst: 1}

// alwaysFull refills each key before the next call.
var alwaysFull = benchLimit{every: time.Nanosecond, burst: 1}

// ample allows every call of a run over n keys and yet keeps every key in debt, so that
// no entry is ever free space. The fewer the keys, the more calls each gets. A burst
// takes less than 2^52 nanoseconds to refill: above that, penstock would count in
// microseconds.
func ample(n int) benchLimit {
	switch {
	case n == 1:
		return benchLimit{every: time.Microsecond, burst: 1_000_000_000}
	case n < 100:
		return benchLimit{every: 40 * time.Millisecond, burst: 100_000_000}
	case n < 10_000:
		return benchLimit{every: 4 * time.Second, burst: 1_000_000}
	case n <= 100_000:
		return benchLimit{every: 5 * time.Minute, burst: 10_000}
	default:
		return benchLimit{every: time.Hour, burst: 1_000}
	}
}

// window is the time in which a whole burst refills. A limiter that counts in
// windows gets the burst once per window: it then admits no less than a bucket.
func (p benchLimit) window() time.Duration { return time.Duration(p.burst) * p.every }

// The floor is the least that a token bucket can do: read a monotonic clock once and
// swap one word. It has no keys and no table, and only returns yes or no. Every ratio
// "to the floor" is to this, measured in the same rounds.
type floor struct {
	base            time.Time
	every, capacity int64
	word            atomic.Int64
}

// newFloor returns a floor that denies every call for the limit once, which is spent,
// and no call otherwise: it counts the calls of all keys in one word, so it needs the
// limit of a single key.
func newFloor(p benchLimit) *floor {
	if p != once {
		p = ample(1)
	}
	f := &floor{base: time.Now(), every: int64(p.every), capacity: int64(p.window())}
	if p == once {
		f.allow()
	}
	return f
}

func (f *floor) allow() bool {
	now := int64(time.Since(f.base))
	for {
		full := f.word.Load()
		next := max(full, now) + f.every
		if next-now > f.capacity {
			return false
		}
		if f.word.CompareAndSwap(full, next) {
			return true
		}
	}
}

// run reads no keys: the floor has none.
func (f *floor) run(_ *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(f.allow(), nil)
	}
	return t
}
