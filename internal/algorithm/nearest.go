package algorithm

import "cmp"

// NearestCounts returns the greatest count below and the least above one that cannot be spread
// evenly over the period, for which [Interval] finds an interval; 0 if there is none. A burst of
// 0 is that of the count.
//
// The interval between units is in whole nanoseconds or whole microseconds, so the candidates are
// the counts for the intervals next to the requested one.
func NearestCounts(count, period, burst int64) (below, above int64) {
	for _, grain := range [...]int64{1, 1000} {
		shorter := period / count / grain * grain
		for _, interval := range [...]int64{shorter, shorter + grain} {
			if interval == 0 {
				continue
			}
			c := (period-1)/interval + 1
			_, spreads := Interval(c, period, cmp.Or(burst, c))
			switch {
			case !spreads:
			case c < count:
				below = max(below, c)
			case above == 0 || c < above:
				above = c
			}
		}
	}
	return below, above
}
