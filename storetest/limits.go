package storetest

import (
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

var algorithms = penstock.Algorithms()

// needsID reports whether requests under a limit need an ID, which names the permits.
func needsID(l penstock.Limit) bool { return l.HasPermits() }

// zones have clocks without changes, with an odd offset, with a change in the night,
// and with a change at midnight.
var zones = []string{"UTC", "Asia/Kathmandu", "Asia/Shanghai", "Europe/Berlin", "Africa/Cairo"}

// anyLimit generates limits of an algorithm, in whole milliseconds.
func anyLimit(a penstock.Algorithm) *rapid.Generator[penstock.Limit] {
	return rapid.Custom(func(t *rapid.T) penstock.Limit {
		l := penstock.Limit{
			Algorithm: a,
			Count:     anyCount().Draw(t, "count"),
			Period:    anyPeriod().Draw(t, "period"),
		}
		switch {
		case l.IsBucket():
			l.Burst = rapid.Int64Range(0, 20).Draw(t, "burst")
		case a == penstock.RollingWindow:
			l.Buckets = rapid.IntRange(0, 12).Draw(t, "buckets")
		case a == penstock.FixedWindow:
			alignAny(t, &l)
		}
		l.Debt = anyDebt().Draw(t, "debt")
		return l
	}).Filter(func(l penstock.Limit) bool { return l.Validate() == nil })
}

// alignAny draws the alignment of a fixed window.
func alignAny(t *rapid.T, l *penstock.Limit) {
	l.Align = penstock.Align(rapid.IntRange(0, int(penstock.AlignYear)).Draw(t, "align"))
	if l.Align > penstock.AlignClock {
		l.Period = 0
		l.Zone = rapid.SampledFrom(zones).Draw(t, "zone")
		l.Offset = millis(-int64(time.Hour/tick), int64(5*time.Hour/tick)).Draw(t, "offset")
		return
	}
	l.Offset = millis(0, int64(l.Period/tick)-1).Draw(t, "offset")
}

// anyCount prefers small counts, which are soon used up.
func anyCount() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(0, 3), rapid.Int64Range(1, 20), rapid.Int64Range(1, 20), rapid.Int64Range(1, 1000),
	)
}

// anyDebt generates debts: the default, none, or a few units.
func anyDebt() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Just[int64](0), rapid.Just[int64](0), rapid.Int64Range(penstock.NoDebt, 30))
}

func anyPeriod() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		millis(1, 50), millis(100, 10_000),
		rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, 10 * day}),
	)
}

func millis(least, most int64) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.Int64Range(least, max(least, most)), func(n int64) time.Duration {
		return time.Duration(n) * tick
	})
}

// anyTime generates start times: any between 2020 and 2032, more often near a change
// of the clocks or of the year.
func anyTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		near := rapid.SampledFrom([]time.Time{
			time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC),    // Berlin's clocks go forward
			time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC),  // and back
			time.Date(2026, 4, 23, 21, 0, 0, 0, time.UTC),   // Cairo's, over midnight
			time.Date(2026, 10, 29, 20, 0, 0, 0, time.UTC),  // and back over it
			time.Date(2028, 2, 28, 12, 0, 0, 0, time.UTC),   // February of a leap year
			time.Date(2024, 12, 31, 12, 30, 0, 0, time.UTC), // end of a leap year
			time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).
				Add(millis(-6*365*int64(day/tick), 6*365*int64(day/tick)).Draw(t, "moment")),
		}).Draw(t, "near")
		return near.Add(millis(0, int64(day/tick)).Draw(t, "past that"))
	})
}

// anyCost generates costs around the most that a limit can grant at once.
func anyCost(most int64) *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, 3), rapid.Int64Range(1, most+2), rapid.Int64Range(max(most-1, 1), most+2),
		rapid.Just(int64(0)), rapid.Int64Range(-3, -1), rapid.Int64Range(-most-2, -1),
		rapid.SampledFrom([]int64{math.MaxInt64, 1 << 40, -1 << 40, -math.MaxInt64, penstock.Reset}),
	)
}

// fitCost makes a cost one that a request under the limit may have.
func fitCost(l penstock.Limit, cost int64) int64 {
	if needsID(l) {
		return min(cost, maxPermits)
	}
	return cost
}

// maxPermits is the most that one request can take under a concurrency limit.
const maxPermits = 100

// anyDelay generates a MaxDelay, often zero.
func anyDelay(period time.Duration) *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.Just(time.Duration(0)), rapid.Just(time.Duration(0)),
		millis(1, int64(2*period/tick)), rapid.Just(time.Duration(math.MaxInt64)),
	)
}

// anyKeepFree draws how many units a request keeps free: mostly none, at times more than
// the limit has.
func anyKeepFree(most int64) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Just[int64](0), rapid.Just[int64](0), rapid.Int64Range(0, most+1))
}
