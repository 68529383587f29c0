package penstock

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/words"
	"pgregory.net/rapid"
)

func TestLimitValidateAccepts(t *testing.T) {
	for _, l := range []Limit{
		PerSecond(10),
		PerSecond(0),
		PerDay(1).WithBurst(1000),
		PerSecond(1_000_000_000),
		PerSecond(5).WithName(strings.Repeat("n", 64)),
		{Count: 1, Period: 1},
		{Count: 1, Period: 366 * day},
		{Count: 0, Period: time.Second, Burst: math.MaxInt64},
		{Algorithm: LeakyBucket, Count: 100, Period: time.Minute, Burst: 1},
		{Algorithm: FixedWindow, Count: math.MaxInt64, Period: time.Second},
		{Algorithm: FixedWindow, Count: 5, Period: time.Minute, Align: AlignClock, Offset: -59 * time.Second},
		{Algorithm: FixedWindow, Count: 5, Align: AlignDay},
		{Algorithm: FixedWindow, Count: 5, Align: AlignYear, Period: 365 * day, Zone: "Asia/Shanghai"},
		{Algorithm: FixedWindow, Count: 5, Align: AlignMonth, Offset: 29 * day, Zone: "Etc/GMT+8"},
		{Algorithm: SlidingWindow, Count: 1<<26 - 1, Period: time.Hour},
		{Count: 1, Period: time.Second, Debt: NoDebt},
		{Count: 1, Period: day, Debt: 26687},
		{Count: 2_500_000, Period: time.Second, Debt: (1<<52 - 1) / 400},
		{Algorithm: FixedWindow, Count: 1, Period: time.Second, Debt: math.MaxInt64 - 1},
		{Algorithm: SlidingWindow, Count: 1, Period: time.Hour, Debt: 1<<26 - 2},
		{Algorithm: RollingWindow, Count: 5, Period: 5, Buckets: 1000},
		{Algorithm: SlidingLog, Count: 10_000, Period: 24 * day},
		{Algorithm: Concurrent, Count: 10_000, Period: day},

		// Fields of other algorithms are ignored, whatever their value.
		{Algorithm: FixedWindow, Count: 5, Period: time.Hour, Burst: -1, Buckets: -1},
		{Algorithm: SlidingLog, Count: 5, Period: time.Hour, Burst: -1, Buckets: 5000, Debt: -5},
	} {
		if err := l.Validate(); err != nil {
			t.Errorf("%+v.Validate() = %v, want nil", fields(l), err)
		}
	}
}

func TestLimitValidateRefuses(t *testing.T) {
	fixed := func(l Limit) Limit { return l.WithAlgorithm(FixedWindow) }
	for _, c := range []struct {
		limit          Limit
		field, problem string // the problem only in part
	}{
		{Limit{}, "Period", "0s: must be more than zero"},
		{PerSecond(1).WithName(strings.Repeat("n", 65)), "Name", "65 bytes long: must be at most 64"},
		{PerSecond(1).WithAlgorithm(200), "Algorithm", "200: must be at most "},
		{PerSecond(10_001).WithAlgorithm(Concurrent), "Count", "10001: must be at most 10000 for a concurrent limit"},
		{Per(1, 24*time.Hour+1).WithAlgorithm(Concurrent), "Period", "must be at most 1d for a concurrent limit; renew"},
		{fixed(Limit{Count: 1, Period: time.Hour, Align: 6}), "Align", "6: must be one of the six"},
		{PerSecond(-1), "Count", "-1: must not be negative"},
		{PerSecond(1).WithBurst(-1), "Burst", "-1: must not be negative"},
		{PerSecond(0).WithBurst(-1), "Burst", "-1: must not be negative"},
		{Limit{Count: 1, Period: -time.Second}, "Period", "-1s: must be more than zero"},
		{Limit{Count: 1, Period: 366*day + 1}, "Period", "must be at most 366d"},

		{fixed(Limit{Count: 1, Period: time.Hour, Align: AlignDay}), "Period", "1h: must be 1d, or 0, with Align day"},
		{fixed(Limit{Count: 1, Period: 31 * day, Align: AlignMonth}), "Period", "31d: must be 30d, or 0,"},
		{fixed(Limit{Count: 1, Period: -1, Align: AlignYear}), "Period", "-1ns: must be 365d, or 0,"},
		{fixed(Limit{Count: 1, Period: time.Hour, Align: AlignClock, Offset: time.Hour}), "Offset", "1h: must be shorter than the period of 1h"},
		{fixed(Limit{Count: 1, Period: time.Hour, Align: AlignClock, Offset: -time.Hour}), "Offset", "-1h: must be shorter"},
		{fixed(Limit{Count: 1, Period: time.Hour, Align: AlignClock, Offset: math.MinInt64}), "Offset", "must be shorter"},
		{fixed(Limit{Count: 1, Align: AlignWeek, Offset: 7 * day}), "Offset", "7d: must be shorter than the period of 7d"},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "Asia/Shangri-La"}), "Zone", `"Asia/Shangri-La": want an IANA time zone`},
		{fixed(Limit{Count: 1, Period: day, Zone: "Asia/Shanghai"}), "Zone", `"Asia/Shanghai": requires Algorithm FixedWindow, and Align AlignDay`},
		{Limit{Count: 1, Period: day, Align: AlignDay, Zone: "UTC"}, "Align", "day: requires Algorithm FixedWindow, not token-bucket"},
		{Limit{Count: 1, Align: AlignDay, Zone: "UTC"}, "Align", "day: requires Algorithm FixedWindow"},
		{fixed(Limit{Count: 1, Period: day, Offset: time.Hour}), "Offset", "1h: requires Algorithm FixedWindow, and an Align other than AlignFirst"},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "Local"}), "Zone", `"Local": differs between machines`},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "localtime"}), "Zone", `"localtime": want an IANA time zone`},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "Asia//Shanghai"}), "Zone", "want an IANA time zone"},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "Asia/./Shanghai"}), "Zone", "want an IANA time zone"},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: "Asia/Shanghai/"}), "Zone", "want an IANA time zone"},
		{fixed(Limit{Count: 1, Align: AlignDay, Zone: strings.Repeat("Z", 65)}), "Zone", "65 bytes long: must be at most 64"},

		{Limit{Algorithm: RollingWindow, Count: 1, Period: time.Hour, Buckets: 1001}, "Buckets", "1001: must be from 1 to 1000, or 0 for 10"},
		{Limit{Algorithm: RollingWindow, Count: 1, Period: time.Hour, Buckets: -1}, "Buckets", "-1: must be from 1 to 1000"},
		{Limit{Algorithm: SlidingLog, Count: 10_001, Period: time.Hour}, "Count", "10001: must be at most 10000 for a sliding-log; a sliding-window counts more"},
		{Limit{Algorithm: SlidingLog, Count: 1, Period: 25 * day}, "Period", "25d: must be at most 24d for a sliding-log; a sliding-window counts for longer"},
		{Limit{Algorithm: SlidingWindow, Count: 1 << 26, Period: time.Hour}, "Count", "67108864: must be at most 67108863 for a sliding-window"},

		{Limit{Count: 1, Period: time.Second, Debt: -2}, "Debt", "-2: must not be negative, except for NoDebt"},
		{Limit{Period: time.Second, Debt: -2}, "Debt", "-2: must not be negative"},
		{Limit{Count: 1, Period: day, Debt: 26689}, "Debt", "26689: must be at most 26687 for this token-bucket"},
		{Limit{Count: 2_500_000, Period: time.Second, Debt: (1<<52-1)/400 + 1}, "Debt", "must be at most 11258999068426 for"},
		{fixed(Limit{Count: 1, Period: time.Second, Debt: math.MaxInt64}), "Debt", "must be at most"},
		{Limit{Algorithm: SlidingWindow, Count: 5, Period: time.Hour, Debt: 1<<26 - 5}, "Debt", "67108859: must be at most 67108858"},

		{PerDay(1).WithBurst(26689), "Burst", "26689: must be at most 26687, which takes 73 years"},
		{PerSecond(1).WithAlgorithm(LeakyBucket).WithBurst(math.MaxInt64), "Burst", "must be at most"},
		{PerSecond(600_000_000), "Count", "600000000: cannot be spread evenly over 1s to within 0.1 %; the nearest that can are 500000000 and 1000000000"},
		{PerSecond(math.MaxInt64), "Count", "; the nearest that can is 1000000000"},
		{Limit{Count: 5, Period: 7}, "Count", "5: cannot be spread evenly over 7ns to within 0.1 %; the nearest that can are 1 and 7"},
		{Limit{Count: 2, Period: 3000, Burst: 1 << 55}, "Count", "2: cannot be spread evenly over 3us to within 0.1 %; the nearest that can is 3"},
		{Limit{Count: 1, Period: 1500, Burst: 1 << 55}, "Count", "1: cannot be spread evenly over 1.5us to within 0.1 %"},
		{PerSecond(700_000).WithBurst(1 << 50), "Count", "; the nearest that can are 500000 and 1000000"},
	} {
		var bad *FieldError
		err := c.limit.Validate()
		if !errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(bad.Problem, c.problem) {
			t.Errorf("%+v.Validate() = %v, want %s %s", fields(c.limit), err, c.field, c.problem)
		}
		if !errors.Is(err, ErrBadLimit) {
			t.Errorf("%+v.Validate() = %v, which is not ErrBadLimit", fields(c.limit), err)
		}
	}
}

func TestLimitNormalFillsInDefaults(t *testing.T) {
	for _, c := range []struct{ limit, want Limit }{
		{PerSecond(10), Limit{Count: 10, Period: time.Second, Burst: 10}},
		{PerSecond(0).WithBurst(5), Limit{Period: time.Second}},
		{asUntrusted(PerSecond(10)), Limit{Untrusted: true, Count: 10, Period: time.Second, Burst: 10}},
		{
			Limit{Count: 1, Period: 1, Burst: 2, Buckets: 3, Align: 4, Offset: 5, Zone: "6", Name: "7"},
			Limit{Count: 1, Period: 1, Burst: 2, Name: "7"},
		},
		{
			Limit{Algorithm: RollingWindow, Count: 1, Period: 1, Burst: 2, Align: 4},
			Limit{Algorithm: RollingWindow, Count: 1, Period: 1, Buckets: 10},
		},
		{
			Limit{Algorithm: SlidingLog, Count: 1, Period: 1, Burst: 2, Buckets: 3, Align: 4, Zone: "6"},
			Limit{Algorithm: SlidingLog, Count: 1, Period: 1},
		},
		{
			Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour, Offset: 5, Zone: "UTC"},
			Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour},
		},
		{
			Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour, Align: AlignClock, Offset: -time.Minute, Zone: "UTC"},
			Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour, Align: AlignClock, Offset: 59 * time.Minute},
		},
		{
			Limit{Algorithm: FixedWindow, Count: 1, Align: AlignWeek, Offset: -time.Minute},
			Limit{Algorithm: FixedWindow, Count: 1, Period: 7 * day, Align: AlignWeek, Offset: -time.Minute, Zone: "UTC"},
		},
	} {
		if got := c.limit.Normal(); got != c.want {
			t.Errorf("%+v.Normal()\ngot  %+v\nwant %+v", fields(c.limit), fields(got), fields(c.want))
		}
	}
}

// The normal form is valid if the limit is, and it is its own normal form.
func TestLimitNormalKeepsMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLimit().Draw(t, "limit")
		n := l.Normal()
		if n.Normal() != n {
			t.Fatalf("%+v.Normal() is %+v, whose normal form is %+v", fields(l), fields(n), fields(n.Normal()))
		}
		if (l.Validate() == nil) != (n.Validate() == nil) {
			t.Fatalf("%+v.Validate() = %v, but of its normal form %v", fields(l), l.Validate(), n.Validate())
		}
	})
}

// The error for a count that cannot be spread suggests counts that can.
func TestLimitValidateSuggestsCountsThatWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := rapid.Int64Range(int64(time.Minute), int64(time.Hour)).Draw(t, "period")
		l := Limit{
			// Units are fewer than 500 ns apart, so that few intervals can be rounded.
			Count:  rapid.Int64Range(period/500, 1<<62).Draw(t, "count"),
			Period: time.Duration(period),
			Burst:  rapid.SampledFrom([]int64{0, 1, 1 << 40, 1 << 51}).Draw(t, "burst"),
		}
		var bad *FieldError
		if !errors.As(l.Validate(), &bad) || bad.Field != "Count" {
			t.Skip("a rate that can be kept")
		}
		_, proposal, ok := strings.Cut(bad.Problem, "that can ")
		if !ok {
			t.Fatalf("%+v: %v suggests nothing", fields(l), bad)
		}
		_, counts, _ := strings.Cut(proposal, " ")
		for count := range strings.SplitSeq(counts, " and ") {
			other := l
			other.Count = mustWholeNumber(t, count)
			var still *FieldError
			if errors.As(other.Validate(), &still) && still.Field == "Count" {
				t.Fatalf("%+v: %v, but %d does not work either: %v", fields(l), bad, other.Count, still)
			}
		}
	})
}

func mustWholeNumber(t *rapid.T, s string) int64 {
	n, err := words.Number(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return n
}

// anyLimit draws limits of every kind, valid and invalid.
func anyLimit() *rapid.Generator[Limit] {
	return rapid.OneOf(arbitraryLimit(), plausibleLimit())
}

// plausibleLimit draws limits that are mostly valid.
func plausibleLimit() *rapid.Generator[Limit] {
	return rapid.Custom(func(t *rapid.T) Limit {
		l := Limit{
			Name:      rapid.SampledFrom([]string{"", "login", "log in", "a=b", `"`, "路径"}).Draw(t, "name"),
			Algorithm: Algorithm(rapid.IntRange(0, 5).Draw(t, "algorithm")),
			Count:     rapid.Int64Range(0, 100).Draw(t, "count"),
			Period:    rapid.SampledFrom([]time.Duration{time.Second, 90 * time.Minute, day}).Draw(t, "period"),
			Burst:     rapid.Int64Range(0, 100).Draw(t, "burst"),
			Debt:      rapid.Int64Range(NoDebt, 100).Draw(t, "debt"),
			Buckets:   rapid.IntRange(0, 1000).Draw(t, "buckets"),
			Align:     Align(rapid.IntRange(0, 5).Draw(t, "align")),
			Offset:    time.Duration(rapid.IntRange(-24, 24).Draw(t, "offset")) * time.Hour,
			Zone:      rapid.SampledFrom([]string{"", "UTC", "Asia/Shanghai"}).Draw(t, "zone"),
		}
		if nominal := l.calendarPeriod(); nominal != 0 {
			l.Period = rapid.SampledFrom([]time.Duration{0, nominal}).Draw(t, "nominal")
		}
		return l.withoutUnusedAlign()
	})
}

// withoutUnusedAlign clears fields that do not apply. The normal form does too, and
// so is valid where the limit is not.
func (l Limit) withoutUnusedAlign() Limit {
	if l.checkAlign() != nil {
		l.Align, l.Offset, l.Zone = AlignFirst, 0, ""
	}
	return l
}

// arbitraryLimit draws any values that the fields can hold, often edge cases.
func arbitraryLimit() *rapid.Generator[Limit] {
	count := rapid.OneOf(
		rapid.Int64Range(0, 100), rapid.Int64Range(-1, 1<<27), rapid.Int64(),
	)
	period := rapid.OneOf(
		rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, time.Hour, day, 7 * day, 30 * day, 365 * day}),
		rapid.Map(rapid.Int64Range(-1, int64(367*day)), func(n int64) time.Duration { return time.Duration(n) }),
		rapid.Map(rapid.IntRange(1, 1000), func(n int) time.Duration { return time.Duration(n) * time.Millisecond }),
	)
	offset := rapid.OneOf(
		rapid.Just(time.Duration(0)),
		rapid.Map(rapid.IntRange(-3600, 3600), func(n int) time.Duration { return time.Duration(n) * time.Second }),
		rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }),
	)
	return rapid.Custom(func(t *rapid.T) Limit {
		l := Limit{
			Name:      rapid.OneOf(rapid.Just(""), rapid.StringN(0, 20, 70), anyBytes(66)).Draw(t, "name"),
			Algorithm: Algorithm(rapid.IntRange(0, 6).Draw(t, "algorithm")),
			Count:     count.Draw(t, "count"),
			Period:    period.Draw(t, "period"),
			Burst:     rapid.OneOf(rapid.Just(int64(0)), count).Draw(t, "burst"),
			Debt:      rapid.OneOf(rapid.Just(int64(0)), count).Draw(t, "debt"),
			Buckets:   rapid.OneOf(rapid.Just(0), rapid.IntRange(-1, 1001)).Draw(t, "buckets"),
			Align:     Align(rapid.IntRange(0, 6).Draw(t, "align")),
			Offset:    offset.Draw(t, "offset"),
			Zone:      rapid.SampledFrom([]string{"", "UTC", "Asia/Shanghai", "Local", "Nowhere", "UTC name=x", `"`}).Draw(t, "zone"),
		}
		return l.withoutUnusedAlign()
	})
}

func anyBytes(most int) *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, most), func(b []byte) string { return string(b) })
}

func TestLimitPropertiesAreThoseOfAlgorithm(t *testing.T) {
	for want, has := range map[string]func(*Limit) bool{
		"token-bucket or leaky-bucket": func(l *Limit) bool { return l.IsBucket() },
		"leaky-bucket":                 func(l *Limit) bool { return l.HasQueue() },
		"fixed-window":                 func(l *Limit) bool { return l.CanAlign() && l.ResetsAtOnce() },
		"rolling-window":               func(l *Limit) bool { return l.HasBuckets() },
		"concurrent":                   func(l *Limit) bool { return l.HasPermits() },
		"token-bucket, fixed-window or sliding-window": func(l *Limit) bool { return l.CanLease() },
	} {
		if got := algorithmsThat(has); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if unknown := (Limit{Algorithm: 99}); unknown.CanAlign() || unknown.HasBuckets() || unknown.ResetsAtOnce() {
		t.Error("an unknown algorithm has properties")
	}
}
