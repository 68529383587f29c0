package main

import "time"

// A benchLimit is a limit that every contender can be configured with: one unit every
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
func (p benchLimit) window() time.Duration {
	return time.Duration(p.burst) * p.every
}
