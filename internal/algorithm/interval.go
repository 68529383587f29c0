package algorithm

import "math/bits"

// exactInteger is the first integer after which a double skips some. The
// scripts that run inside Redis count in doubles.
const exactInteger = 1 << 53

// Interval returns how many nanoseconds one unit of a bucket lasts: period
// over count, where burst is the most the bucket holds (never the zero that
// stands for a default). It reports false when the rate would then be off by
// more than 0.1 %; the interval it returns is the one that was too coarse.
//
// The quotient is rounded up, because an interval that is too short admits
// more than the limit says, and one that is too long only makes it a little
// stricter.
//
// It is a whole number of nanoseconds, or of microseconds where twice the time
// it takes to fill the bucket would reach 2^53 nanoseconds (104 days). That is
// as far as a double counts without gaps; a bucket in Redis holds sums of up
// to twice its fill, and must come to the same integers as one in memory. Such
// a limit gives up nothing by it: its units are far longer than a microsecond,
// or else it fails the next test.
//
// What is lost to rounding is under one part in a thousand as soon as an
// interval has a thousand of those parts. Below that a limit may still divide
// evenly; where it does not, the rate that is kept is visibly not the one that
// was asked for, and it is better to say so.
//
// A count of zero admits nothing, so its interval hardly matters: it is the
// period.
func Interval(count, period, burst int64) (interval int64, ok bool) {
	if count < 0 || burst < 0 || period <= 0 || period > MaxTime {
		return 0, false
	}
	if count == 0 {
		return period, true
	}
	interval = divideUp(period, count)
	if !fillsExactly(burst, interval) {
		interval = divideUp(interval, 1000) * 1000
	}
	return interval, keepsRate(count, period, interval)
}

// divideUp returns a/b rounded up, for positive a and b.
func divideUp(a, b int64) int64 { return (a-1)/b + 1 }

// fillsExactly reports whether 2·burst·interval stays below exactInteger.
func fillsExactly(burst, interval int64) bool {
	high, low := bits.Mul64(uint64(burst), uint64(interval))
	return high == 0 && low < exactInteger/2
}

// keepsRate reports whether one unit per interval is at least 99.9 % of count
// per period, or in whole numbers 1000·period ≥ 999·count·interval. The
// products need more than 64 bits.
func keepsRate(count, period, interval int64) bool {
	wantHigh, wantLow := bits.Mul64(uint64(period), 1000)
	tooLarge, product := bits.Mul64(uint64(count), uint64(interval))
	gotHigh, gotLow := bits.Mul64(product, 999)
	if tooLarge != 0 || gotHigh > wantHigh {
		return false
	}
	return gotHigh < wantHigh || gotLow <= wantLow
}
