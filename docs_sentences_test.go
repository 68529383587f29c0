package penstock_test

import (
	"fmt"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// The sentences with numbers in them are made again from numbers that are
// worked out, and looked for on the page.
func TestSentencesAreTrue(t *testing.T) {
	page := strings.Join(strings.Fields(readPage(t, algorithmsPage)), " ")
	for _, makers := range []func(*testing.T) []string{
		trafficSentences, bucketSentences, windowSentences, verbSentences, nameSentences, boundarySentences,
	} {
		for _, want := range makers(t) {
			if !strings.Contains(page, want) {
				t.Errorf("%s does not say: %s", algorithmsPage, want)
			}
		}
	}
}

func trafficSentences(t *testing.T) []string {
	onTheClock := newWorld(t, limitOf(t, "100/1s fixed-window align=clock"))
	return []string{
		fmt.Sprintf("%d requests, one every %v, from %v before the edge of a second to %v after it",
			2*half/every, every, half, half),
		fmt.Sprintf("each cell is %v wide and holds %d arrivals", cell, perCell),
		fmt.Sprintf("Without the early request, windows on the clock admit all %d of them", len(onTheClock.theTwoHundred())),
	}
}

func bucketSentences(t *testing.T) []string {
	long := acrossTheEdge(t, limitOf(t, "100/1s leaky-bucket"))
	var longest time.Duration
	for _, e := range acrossTheEdge(t, limitOf(t, "100/1s leaky-bucket burst=10")) {
		longest = max(longest, e.acts-e.arrived)
	}
	return []string{
		fmt.Sprintf("one every %v, and the last %v after the edge", long[2].acts-long[1].acts, long[len(long)-1].acts),
		fmt.Sprintf("with `burst=10` nobody waits longer than %v", longest),
		fmt.Sprintf("of 100 a second, %d when one of them costs 50", withOneLarge(t, 50)),
		fmt.Sprintf("off by more than %.1f %% is refused", 100*worstAcceptedRate()),
		fmt.Sprintf("all counts from 1 to %d do", workingRates(t)),
	}
}

// withOneLarge fills the queue of a leaky bucket so that a request of a large
// cost acts at the end of a second, and returns how many units act in it.
func withOneLarge(t *testing.T, large int64) (n int64) {
	w := newWorld(t, limitOf(t, "100/1s leaky-bucket burst=200"))
	for range 99 {
		w.take(0, 1)
	}
	for _, cost := range []int64{large, 1} {
		if d := w.take(0, cost); d.Delay < time.Second {
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

func windowSentences(t *testing.T) []string {
	comesBack := func(text string, taken time.Duration) time.Duration {
		w := newWorld(t, limitOf(t, text))
		w.take(taken, 100)
		return w.take(taken, 1).RetryAfter.Truncate(time.Microsecond)
	}
	ten, hundred := "100/1s rolling-window", "100/1s rolling-window buckets=100"
	return []string{
		fmt.Sprintf("with 10 buckets, between %v and %v after it was taken; with 100, between %v and %v.",
			comesBack(ten, -1), comesBack(ten, 0), comesBack(hundred, -1), comesBack(hundred, 0)),
		fmt.Sprintf("five a day can be %d in 24 hours", takenWithin(t, 24*time.Hour, "5/day zone=Europe/Berlin fixed-window",
			"2026-03-28 23:45 Europe/Berlin", "2026-03-29 12:00 Europe/Berlin", "2026-03-30 00:30 Europe/Berlin")),
		fmt.Sprintf("five a month can be %d in 30 days", takenWithin(t, 30*24*time.Hour, "5/month zone=UTC fixed-window",
			"2026-01-31 12:00 UTC", "2026-02-14 12:00 UTC", "2026-03-01 12:00 UTC")),
	}
}

// takenWithin takes as much as there is at each of the times, which must lie within
// one interval of a length, and returns how much that was.
func takenWithin(t *testing.T, length time.Duration, limit string, times ...string) (n int64) {
	w := newWorld(t, limitOf(t, limit))
	first := wallTime(t, times[0])
	for _, text := range times {
		at := wallTime(t, text)
		if at.Sub(first) >= length {
			t.Errorf("%s is more than %v after %s", text, length, times[0])
		}
		n += w.takeOf("key", at, w.limit.Count).Granted
	}
	return n
}

func verbSentences(t *testing.T) []string {
	w := newWorld(t, limitOf(t, "100/1s"))
	left := w.take(0, 99).Remaining
	return []string{
		fmt.Sprintf("one user who takes 99 of its 100 leaves %d to all others", left),
		fmt.Sprintf("for one Period and at most %g hours", idMemory(t).Hours()),
		fmt.Sprintf("reaches at most %g minute ahead", reach(t, "10/1s").Minutes()),
		fmt.Sprintf("one of `1/1h burst=2` reaches %g hours", reach(t, "1/1h burst=2").Hours()),
	}
}

// idMemory returns after how many hours an ID is charged again.
func idMemory(t *testing.T) time.Duration {
	w := newWorld(t, limitOf(t, "100/7d fixed-window"))
	r := penstock.Request{Key: "key", Limit: w.limit, Cost: 1, ID: "id"}
	for hour := time.Duration(0); hour < w.limit.Period; hour += time.Hour {
		w.now = secondsEdge.Add(hour)
		if d := w.ask(r); d.Remaining < 99 {
			return hour
		}
	}
	return w.limit.Period
}

// reach returns how far ahead the last reservation lies that a bucket grants.
func reach(t *testing.T, limit string) (furthest time.Duration) {
	w := newWorld(t, limitOf(t, limit))
	r := penstock.Request{Key: "key", Limit: w.limit, Cost: 1, MaxDelay: 1000 * time.Hour}
	for range 10_000 {
		furthest = max(furthest, w.ask(r).Delay)
	}
	return furthest
}

func nameSentences(t *testing.T) []string {
	after := func(text string, used int64, raise func(l *penstock.Limit)) int64 {
		w := newWorld(t, limitOf(t, text))
		w.take(0, used)
		raise(&w.limit)
		return w.take(0, 0).Remaining
	}
	window := after("100/1d fixed-window name=n", 90, func(l *penstock.Limit) { l.Count = 500 })
	burst := after("100/1d name=n", 100, func(l *penstock.Limit) { l.Burst = 500 })
	count := after("100/1d name=n", 100, func(l *penstock.Limit) { l.Count, l.Burst = 500, 0 })
	return []string{
		fmt.Sprintf("used 90 of 100, raising Count to 500 leaves %d", window),
		fmt.Sprintf("raising Burst from 100 to 500 gives a spent key %d at once, raising Count gives it %d at once", burst, count),
	}
}

// boundarySentences are about what a limit may ask for.
func boundarySentences(t *testing.T) []string {
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
	return []string{
		fmt.Sprintf("Period is at most %d days.", days(penstock.FixedWindow)),
		fmt.Sprintf("Count is at most %d. ", count(penstock.SlidingWindow)),
		fmt.Sprintf("Count is at most %d and Period at most %d days", count(penstock.SlidingLog), days(penstock.SlidingLog)),
		fmt.Sprintf("Buckets are from 1 to %d, and %d unless", buckets, limitOf(t, "1/1s rolling-window").Buckets),
		fmt.Sprintf("a month has %d and a year has %d", limitOf(t, "1/month").Period/day, limitOf(t, "1/year").Period/day),
	}
}

var writtenLimits = regexp.MustCompile("`([0-9]+/[^`]+)`|ParseLimit\\(\"([^\"]+)\"\\)")

func TestWrittenLimitsParse(t *testing.T) {
	found := 0
	for page, text := range writtenPages(t) {
		for _, m := range writtenLimits.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := penstock.ParseLimit(m[1] + m[2]); err != nil {
				t.Errorf("%s: %q: %v", page, m[1]+m[2], err)
			}
		}
	}
	if found == 0 {
		t.Errorf("no limits are written in %v", pages)
	}
}
