package simserver

import "math/rand/v2"

// A Rate is how many calls a second clients send at a time.
type Rate func(now int64) float64

// Work is what a call at a time needs.
type Work func(r *rand.Rand, now int64) int64

// Steady is the same rate at any time.
func Steady(rate float64) Rate { return func(int64) float64 { return rate } }

// Overloaded is half of the capacity, and from a time on a multiple of it.
func Overloaded(capacity, times float64, from int64) Rate {
	return func(now int64) float64 {
		if now < from {
			return capacity / 2
		}
		return capacity * times
	}
}

// Exponential has an exponential distribution.
func Exponential(mean float64) Work {
	return func(r *rand.Rand, _ int64) int64 { return int64(r.ExpFloat64() * mean) }
}

// HeavyTail is 1 ms, or 91 ms for a call in ten: 10 ms in the mean.
func HeavyTail(r *rand.Rand, _ int64) int64 {
	if r.IntN(10) == 0 {
		return 91e6
	}
	return 1e6
}

// Stepped multiplies the work from a time on.
func Stepped(work Work, at int64, times float64) Work {
	return func(r *rand.Rand, now int64) int64 {
		w := work(r, now)
		if now >= at {
			return int64(float64(w) * times)
		}
		return w
	}
}
