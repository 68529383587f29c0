package algorithm

import "math/bits"

// exactInteger is the first integer beyond which doubles have gaps. Lua in Redis
// computes in doubles.
const exactInteger = 1 << 53

// Interval returns how many nanoseconds one unit of a bucket takes to refill:
// period divided by count, rounded up, because a shorter interval would admit
// more than the limit. burst is the bucket's size, with defaults filled in. It is
// not ok if the rate would be off by more than 0.1 %.
//
// The interval is in whole nanoseconds. If twice the time to fill the bucket
// would reach 2^53 nanoseconds (104 days), it is in whole microseconds: Redis
// computes sums of up to twice that time in doubles, and must get the same
// integers as a store in memory. Such limits lose nothing: their units take far
// longer than a microsecond, or else they fail the test of the rate.
//
// A count of zero admits nothing; its interval is the period.
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

// MaxOverdraft returns the largest overdraft of a valid bucket: one that refills within
// [MaxRefill], and whose interval keeps the rate.
func MaxOverdraft(count, period, burst int64) int64 {
	if micros, ok := Interval(count, period, exactInteger); ok {
		return MaxRefill / micros
	}
	interval, _ := Interval(count, period, burst)
	return (exactInteger/2 - 1) / interval
}

// divideUp returns a/b rounded up, for positive a and b.
func divideUp(a, b int64) int64 { return (a-1)/b + 1 }

// fillsExactly reports whether 2·burst·interval stays below exactInteger.
func fillsExactly(burst, interval int64) bool {
	high, low := bits.Mul64(uint64(burst), uint64(interval))
	return high == 0 && low < exactInteger/2
}

// keepsRate reports whether one unit per interval is at least 99.9 % of count per
// period: 1000·period ≥ 999·count·interval in integers. The products need more
// than 64 bits.
func keepsRate(count, period, interval int64) bool {
	wantHigh, wantLow := bits.Mul64(uint64(period), 1000)
	tooLarge, product := bits.Mul64(uint64(count), uint64(interval))
	gotHigh, gotLow := bits.Mul64(product, 999)
	if tooLarge != 0 || gotHigh > wantHigh {
		return false
	}
	return gotHigh < wantHigh || gotLow <= wantLow
}

// minDown returns units, or the whole intervals in a time if that is less. None of them
// is negative. A multiplication finds that the units fit in a tenth of the time that a
// division takes.
func minDown(units, time, interval int64) int64 {
	if high, low := bits.Mul64(uint64(units), uint64(interval)); high == 0 && low <= uint64(time) {
		return units
	}
	return time / interval
}

// minUp is minDown, but counts an interval that has begun.
func minUp(units, time, interval int64) int64 {
	if high, low := bits.Mul64(uint64(units), uint64(interval)); high == 0 && low <= uint64(time) {
		return units
	}
	return divideUp(time, interval)
}
