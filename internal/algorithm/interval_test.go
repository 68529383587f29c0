package algorithm

import (
	"math"
	"math/big"
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

func TestIntervalExamples(t *testing.T) {
	const (
		second = 1_000_000_000
		hour   = 3600 * second
		year   = 365 * 24 * hour
	)
	for _, c := range []struct {
		why                  string
		count, period, burst int64
		interval             int64
		ok                   bool
	}{
		{"an even division", 10, second, 10, 100_000_000, true},
		{"thirds are rounded up", 3, second, 3, 333_333_334, true},
		{"nothing at all lasts for the period", 0, second, 5, second, true},
		{"one a nanosecond is the fastest", second, second, 1, 1, true},
		{"more than one a nanosecond is too fast", second + second/500, second, 1, 1, false},
		{"0.1 % above is still the same rate", second + second/1000, second, 1, 1, true},
		{"0.1 % below is the last that will do", 1000, 999, 1, 1, true},
		{"and a little less will not", 1001, 999, 1, 1, false},
		{"six in ten nanoseconds is not one in two", 600_000_000, second, 1, 2, false},
		{"small but even", 500_000_000, second, 1, 2, true},
		{"a year's bucket is kept in microseconds", 7, year, 7, 4_505_142_857_143_000, true},
		{"and so is one whose units divide it evenly", 365, year, 365, 24 * hour, true},
		{"a large burst coarsens a fine interval", 700_000, second, 1 << 50, 2000, false},
		{"a large burst keeps an even interval", 500_000, second, 1 << 50, 2000, true},
		{"the largest numbers do not overflow", math.MaxInt64, MaxTime, math.MaxInt64, 1000, false},
		{"nor does a fill that is 0 in 64 bits", 1, 16, 1 << 62, 1000, false},
		{"nor a count that is", 1 << 62, second, 1 << 62, 1000, false},
		{"the longest period", 1, MaxTime, 1, MaxTime/1000*1000 + 1000, true},
		{"no period", 1, 0, 1, 0, false},
		{"too long a period", 1, MaxTime + 1, 1, 0, false},
		{"a negative count", -1, second, 1, 0, false},
		{"a negative burst", 1, second, -1, 0, false},
	} {
		interval, ok := Interval(c.count, c.period, c.burst)
		if interval != c.interval || ok != c.ok {
			t.Errorf("%s: Interval(%d, %d, %d) = %d, %v, want %d, %v",
				c.why, c.count, c.period, c.burst, interval, ok, c.interval, c.ok)
		}
	}
}

// The unit changes from nanoseconds to microseconds exactly where twice the refill time
// would be 2^53.
func TestIntervalUsesMicrosecondsAbove2To53(t *testing.T) {
	const period = 1<<20 + 1 // no multiple of 1000
	fine, _ := Interval(1, period, (1<<52-1)/period)
	coarse, _ := Interval(1, period, (1<<52-1)/period+1)
	if fine != period || coarse != 1_049_000 {
		t.Errorf("Interval(1, %d, …) = %d below the edge and %d above it, want %d and 1049000",
			period, fine, coarse, period)
	}
}

func TestIntervalMatchesRationalArithmetic(t *testing.T) {
	anySize := func(most int64) *rapid.Generator[int64] {
		return rapid.Custom(func(t *rapid.T) int64 {
			size := rapid.IntRange(1, 63).Draw(t, "bits")
			return rapid.Int64Range(1, min(most, 1<<size-1)).Draw(t, "value")
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		count := anySize(math.MaxInt64).Draw(t, "count")
		period := anySize(MaxTime).Draw(t, "period")
		burst := anySize(math.MaxInt64).Draw(t, "burst")
		interval, ok := Interval(count, period, burst)
		want, wantOK := rationalInterval(count, period, burst)
		if interval != want || ok != wantOK {
			t.Fatalf("Interval(%d, %d, %d) = %d, %v, want %d, %v", count, period, burst, interval, ok, want, wantOK)
		}
	})
}

// rationalInterval is the definition, in fractions.
func rationalInterval(count, period, burst int64) (int64, bool) {
	exact := big.NewRat(period, 1)
	exact.Quo(exact, big.NewRat(count, 1))
	interval := roundUpTo(1, exact)
	fill := new(big.Int).Mul(interval, big.NewInt(burst))
	if fill.Lsh(fill, 1).Cmp(big.NewInt(1<<53)) >= 0 {
		interval = roundUpTo(1000, exact)
	}
	kept := new(big.Rat).Quo(exact, new(big.Rat).SetInt(interval)) // of the rate
	return interval.Int64(), kept.Cmp(big.NewRat(999, 1000)) >= 0
}

// roundUpTo returns the smallest multiple of grain that is not below x.
func roundUpTo(grain int64, x *big.Rat) *big.Int {
	denominator := new(big.Int).Mul(x.Denom(), big.NewInt(grain))
	n, rest := new(big.Int).QuoRem(x.Num(), denominator, new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	return n.Mul(n, big.NewInt(grain))
}

// The products that stand in for divisions do not overflow, and are exact where the units
// just fit.
func TestMinDownAndMinUpEqualDivision(t *testing.T) {
	check := func(fatalf func(string, ...any), units, time, interval int64) {
		if got, want := minDown(units, time, interval), min(units, time/interval); got != want {
			fatalf("minDown(%d, %d, %d) = %d, want %d", units, time, interval, got, want)
		}
		if got, want := minUp(units, time, interval), min(units, (time-1)/interval+1); got != want {
			fatalf("minUp(%d, %d, %d) = %d, want %d", units, time, interval, got, want)
		}
	}
	check(t.Errorf, math.MaxInt64, math.MaxInt64, math.MaxInt64)
	rapid.Check(t, func(t *rapid.T) {
		interval := rapid.Int64Range(1, math.MaxInt64).Draw(t, "interval")
		units := rapid.Int64Range(0, math.MaxInt64).Draw(t, "units")
		time := rapid.Int64Range(1, math.MaxInt64).Draw(t, "time")
		check(t.Fatalf, units, time, interval)
		some := units % min(math.MaxInt64/interval, 1<<40)
		for time := some*interval - 1; time <= some*interval+1 && time > 0; time++ {
			check(t.Fatalf, some, time, interval)
		}
	})
}
