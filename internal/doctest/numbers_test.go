package doctest

import (
	"fmt"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// drawNumbers computes the figures that the text of the page mentions.
func drawNumbers(t *testing.T, _, _ string) string {
	var b strings.Builder
	for _, group := range []func(*testing.T) []number{trafficNumbers, bucketNumbers, windowNumbers, verbNumbers, nameNumbers, limitNumbers} {
		for _, n := range group(t) {
			fmt.Fprintf(&b, "%-82s %v\n", n.name, n.value)
		}
	}
	return b.String()
}

type number struct {
	name  string
	value any
}

func trafficNumbers(t *testing.T) []number {
	aligned := newScenario(t, limitOf(t, "100/1s fixed-window align=clock"))
	return []number{
		{"requests in each picture", int(2 * half / every)},
		{"of which 100/1s fixed-window align=clock admits, without the early request", len(aligned.traffic())},
	}
}

func bucketNumbers(t *testing.T) []number {
	long := admittedAcrossEdge(t, limitOf(t, "100/1s leaky-bucket"))
	var longest time.Duration
	for _, e := range admittedAcrossEdge(t, limitOf(t, "100/1s leaky-bucket burst=10")) {
		longest = max(longest, e.acts-e.arrived)
	}
	return []number{
		{"100/1s leaky-bucket: time between two that act", long[2].acts - long[1].acts},
		{"100/1s leaky-bucket: the last one acts after the edge by", long[len(long)-1].acts},
		{"100/1s leaky-bucket burst=10: longest delay", longest},
		{"100/1s leaky-bucket: most that act in one second if one costs 50", withOneLarge(t, 50)},
		{"largest accepted error of a rate", fmt.Sprintf("%.1f %%", 100*worstAcceptedRate())},
		{"all counts per second work up to", workingRates(t)},
	}
}

// withOneLarge fills the queue of a leaky bucket so that a request of a large
// cost acts at the end of a second, and returns how many units act in it.
func withOneLarge(t *testing.T, large int64) (n int64) {
	s := newScenario(t, limitOf(t, "100/1s leaky-bucket burst=200"))
	for range 99 {
		s.take(0, 1)
	}
	for _, cost := range []int64{large, 1} {
		if d := s.take(0, cost); d.Delay < time.Second {
			n += cost
		}
	}
	return 99 + n
}

// worstAcceptedRate returns by how much a rate falls short that is still
// accepted, among many that cannot be spread evenly.
func worstAcceptedRate() (worst float64) {
	for n := int64(1_000_000); n < 10_000_000; n += 997 {
		if penstock.PerSecond(n).Validate() == nil {
			lasts := (int64(time.Second) + n - 1) / n
			worst = max(worst, 1-float64(time.Second)/float64(n*lasts))
		}
	}
	return worst
}

// workingRates checks that rates up to a million a second can be counted.
func workingRates(t *testing.T) int64 {
	const most = 1_000_000
	for n := int64(0); n < most; n += 1 + n/1000 {
		for _, l := range []penstock.Limit{penstock.PerSecond(n + 1), penstock.PerSecond(most - n)} {
			if err := l.Validate(); err != nil {
				t.Errorf("%v: %v", l, err)
			}
		}
	}
	return most
}

func windowNumbers(t *testing.T) []number {
	comesBack := func(text string, taken time.Duration) time.Duration {
		s := newScenario(t, limitOf(t, text))
		s.take(taken, 100)
		return s.take(taken, 1).RetryAfter.Truncate(time.Microsecond)
	}
	ten, hundred := "100/1s rolling-window", "100/1s rolling-window buckets=100"
	return []number{
		{"100/1s rolling-window: a unit comes back after", fmt.Sprint(comesBack(ten, -1), " to ", comesBack(ten, 0))},
		{"100/1s rolling-window buckets=100: a unit comes back after", fmt.Sprint(comesBack(hundred, -1), " to ", comesBack(hundred, 0))},
		{"five a day, most in 24 hours around a day of 23 hours", takenWithin(t, 24*time.Hour, "5/day zone=Europe/Berlin fixed-window",
			"2026-03-28 23:45 Europe/Berlin", "2026-03-29 12:00 Europe/Berlin", "2026-03-30 00:30 Europe/Berlin")},
		{"five a month, most in 30 days around February", takenWithin(t, 30*24*time.Hour, "5/month zone=UTC fixed-window",
			"2026-01-31 12:00 UTC", "2026-02-14 12:00 UTC", "2026-03-01 12:00 UTC")},
	}
}

// takenWithin takes as much as there is at each of the times, which must lie within
// one interval of a length, and returns how much that was.
func takenWithin(t *testing.T, length time.Duration, limit string, times ...string) (n int64) {
	s := newScenario(t, limitOf(t, limit))
	first := wallTime(t, times[0])
	for _, text := range times {
		at := wallTime(t, text)
		if at.Sub(first) >= length {
			t.Errorf("%s is more than %v after %s", text, length, times[0])
		}
		n += s.takeOf("key", at, s.limit.Count).Granted
	}
	return n
}

func verbNumbers(t *testing.T) []number {
	s := newScenario(t, limitOf(t, "100/1s"))
	return []number{
		{"100/1s: left after one user took 99", s.take(0, 99).Remaining},
		{"longest memory of an ID", idMemory(t)},
		{"10/1s: a reservation reaches ahead by", reach(t, "10/1s")},
		{"1/1h burst=2: a reservation reaches ahead by", reach(t, "1/1h burst=2")},
	}
}

// idMemory returns after how many hours an ID is charged again.
func idMemory(t *testing.T) time.Duration {
	s := newScenario(t, limitOf(t, "100/7d fixed-window"))
	r := penstock.Request{Key: "key", Limit: s.limit, Cost: 1, ID: "id"}
	for hour := time.Duration(0); hour < s.limit.Period; hour += time.Hour {
		s.now = secondsEdge.Add(hour)
		if d := s.request(r); d.Remaining < 99 {
			return hour
		}
	}
	return s.limit.Period
}

// reach returns how far ahead the last reservation lies that a bucket grants.
func reach(t *testing.T, limit string) (furthest time.Duration) {
	s := newScenario(t, limitOf(t, limit))
	r := penstock.Request{Key: "key", Limit: s.limit, Cost: 1, MaxDelay: 1000 * time.Hour}
	for range 10_000 {
		furthest = max(furthest, s.request(r).Delay)
	}
	return furthest
}

func nameNumbers(t *testing.T) []number {
	after := func(text string, used int64, raise func(l *penstock.Limit)) int64 {
		s := newScenario(t, limitOf(t, text))
		s.take(0, used)
		raise(&s.limit)
		return s.take(0, 0).Remaining
	}
	return []number{
		{
			"named window, 90 of 100 used, Count raised to 500: remaining",
			after("100/1d fixed-window name=n", 90, func(l *penstock.Limit) { l.Count = 500 }),
		},
		{
			"named bucket, all of 100 used, Burst raised to 500: remaining at once",
			after("100/1d name=n", 100, func(l *penstock.Limit) { l.Burst = 500 }),
		},
		{
			"named bucket, all of 100 used, Count raised to 500: remaining at once",
			after("100/1d name=n", 100, func(l *penstock.Limit) { l.Count, l.Burst = 500, 0 }),
		},
		{
			"named bucket, all of 60/1m used, changed to 600/1m: remaining at once",
			after("60/1m name=n", 60, func(l *penstock.Limit) { l.Count, l.Burst = 600, 600 }),
		},
	}
}

// limitNumbers are the largest values that a limit may have.
func limitNumbers(t *testing.T) []number {
	day := 24 * time.Hour
	most := func(limit func(n int) penstock.Limit) int {
		return sort.Search(1<<30, func(n int) bool { return limit(n+1).Validate() != nil })
	}
	count := func(a penstock.Algorithm) int {
		return most(func(n int) penstock.Limit { return penstock.PerSecond(int64(n)).WithAlgorithm(a) })
	}
	days := func(a penstock.Algorithm) int {
		return most(func(n int) penstock.Limit {
			return penstock.Limit{Algorithm: a, Count: 1, Period: time.Duration(min(n, 1000)) * day}
		})
	}
	buckets := most(func(n int) penstock.Limit {
		return penstock.Limit{Algorithm: penstock.RollingWindow, Count: 1, Period: day, Buckets: n}
	})
	return []number{
		{"longest Period, in days", days(penstock.FixedWindow)},
		{"largest Count of a sliding window", count(penstock.SlidingWindow)},
		{"largest Count of a sliding log", count(penstock.SlidingLog)},
		{"longest Period of a sliding log, in days", days(penstock.SlidingLog)},
		{"most Buckets of a rolling window", buckets},
		{"default Buckets of a rolling window", limitOf(t, "1/1s rolling-window").Buckets},
		{"days in a month and in a year without a zone", fmt.Sprint(int(limitOf(t, "1/month").Period/day), ", ", int(limitOf(t, "1/year").Period/day))},
	}
}

var writtenLimits = regexp.MustCompile("`([0-9]+/[^`]+)`|(?:ParseLimit\\(|\\blimit\"?: ?)\"([^\"]+)\"")

func TestWrittenLimitsParse(t *testing.T) {
	for _, page := range pages {
		limits := writtenLimits.FindAllStringSubmatch(readPage(t, page), -1)
		for _, m := range limits {
			if _, err := penstock.ParseLimit(m[1] + m[2]); err != nil {
				t.Errorf("%s: %q: %v", page, m[1]+m[2], err)
			}
		}
		if len(limits) == 0 {
			t.Errorf("%s has no limits", page)
		}
	}
}
