package main

import "time"

// A policy is a limit in words that every limiter here can be given: one unit
// every so often, and so many at once.
type policy struct {
	every time.Duration
	burst int64
}

// once admits each key one time and denies it from then on.
var once = policy{every: time.Hour, burst: 1}

// forgetful finds each key as good as new whenever it is asked.
var forgetful = policy{every: time.Nanosecond, burst: 1}

// roomy admits every call of a run over n keys and yet keeps every key in
// debt, so that none of them is free space at any moment. The fewer the keys,
// the more often each is asked. A burst takes less than 2^52 nanoseconds to
// refill: above that, penstock would count in microseconds.
func roomy(n int) policy {
	switch {
	case n == 1:
		return policy{every: time.Microsecond, burst: 1_000_000_000}
	case n <= 100_000:
		return policy{every: 5 * time.Minute, burst: 10_000}
	default:
		return policy{every: time.Hour, burst: 1_000}
	}
}

// window is the time in which a whole burst refills. A limiter that counts in
// windows gets the burst once per window: it then admits no less than a bucket.
func (p policy) window() time.Duration {
	return time.Duration(p.burst) * p.every
}
