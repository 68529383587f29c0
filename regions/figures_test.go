package regions

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// An arrival is a request of one unit to a region.
type arrival struct {
	at     time.Duration
	region int
}

// arrivalsOf returns random arrivals, at rates a second that change from second to second.
func arrivalsOf(regions int, length time.Duration, rate func(region, second int) float64) (all []arrival) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range regions {
		for at := 0.0; at < length.Seconds(); {
			now := rate(i, int(at))
			if now == 0 {
				at = float64(int(at) + 1)
				continue
			}
			at += rng.ExpFloat64() / now
			all = append(all, arrival{time.Duration(at * float64(time.Second)), i})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return int(a.at - b.at) })
	return all
}

// A figure is what a scheme did with the arrivals.
type figure struct {
	allowed int
	over    int64
	calls   int // to other regions
	p99     time.Duration
	granted []grant
}

// A scenario is traffic to one limit over regions. One region may be cut off.
type scenario struct {
	name     string
	limit    string
	trips    []time.Duration
	length   time.Duration
	rate     func(region, second int) float64
	cut      [2]time.Duration // from, until
	cutOff   int              // which region
	settings Settings

	used, calls float64 // at least, and at most for each hundred decisions
	waits       bool    // more than one request in a hundred waits for another region
}

func (s *scenario) arrivals() []arrival { return arrivalsOf(len(s.trips), s.length, s.rate) }

// ideal returns what one store without any delay allows.
func (s *scenario) ideal(t *testing.T) (f figure) {
	return s.replay(t, func(store func() penstock.Store) func(int) penstock.Store {
		one := store()
		return func(int) penstock.Store { return one }
	}, parseLimit(t, s.limit))
}

// split gives each region its part of the limit.
func (s *scenario) split(t *testing.T) figure {
	l := parseLimit(t, s.limit)
	l.Count, l.Burst = l.Count/int64(len(s.trips)), l.Burst/int64(len(s.trips))
	return s.replay(t, func(store func() penstock.Store) func(int) penstock.Store {
		each := make([]penstock.Store, len(s.trips))
		for i := range each {
			each[i] = store()
		}
		return func(i int) penstock.Store { return each[i] }
	}, l)
}

// replay sends the arrivals to stores without any delay.
func (s *scenario) replay(t *testing.T, stores func(func() penstock.Store) func(int) penstock.Store, l penstock.Limit) (f figure) {
	inBubble(t, func(t *testing.T) {
		of := stores(func() penstock.Store { return penstock.NewMemory(nil) })
		w := &world{limit: parseLimit(t, s.limit)}
		began := time.Now()
		for _, a := range s.arrivals() {
			sleep(time.Until(began.Add(a.at)))
			if d, err := of(a.region).Take(context.Background(), penstock.Request{Key: "key", Limit: l, Cost: 1}); err == nil && d.Allowed {
				w.granted = append(w.granted, grant{time.Now(), 1})
			}
		}
		f = figure{allowed: len(w.granted), over: w.over(), granted: w.granted}
	})
	return f
}

// counters count in each region, and tell the others once a second what they counted.
func (s *scenario) counters(t *testing.T) (f figure) {
	inBubble(t, func(t *testing.T) {
		w := &world{limit: parseLimit(t, s.limit)}
		n := len(s.trips)
		each, untold := make([]*penstock.Memory, n), make([][]int64, n) // what i has not told j
		for i := range each {
			each[i], untold[i] = penstock.NewMemory(nil), make([]int64, n)
		}
		began, told := time.Now(), 0
		isCut := func(i, j int, at time.Duration) bool {
			return at >= s.cut[0] && at < s.cut[1] && (i == s.cutOff) != (j == s.cutOff)
		}
		tell := func(at time.Duration) {
			for i := range each {
				for j := range each {
					if units := untold[i][j]; units > 0 && i != j && !isCut(i, j, at) {
						_, _ = each[j].Take(context.Background(), penstock.Request{Key: "key", Limit: w.limit, Cost: units, Overdraw: true})
						untold[i][j] = 0
						f.calls++
					}
				}
			}
		}
		for _, a := range s.arrivals() {
			for ; time.Duration(told+1)*time.Second <= a.at; told++ {
				sleep(time.Until(began.Add(time.Duration(told+1) * time.Second)))
				tell(time.Since(began))
			}
			sleep(time.Until(began.Add(a.at)))
			d, err := each[a.region].Take(context.Background(), penstock.Request{Key: "key", Limit: w.limit, Cost: 1})
			if err == nil && d.Allowed {
				w.granted = append(w.granted, grant{time.Now(), 1})
				for j := range untold[a.region] {
					untold[a.region][j]++
				}
			}
		}
		f.allowed, f.over, f.granted = len(w.granted), w.over(), w.granted
	})
	return f
}

// pools are this package.
func (s *scenario) pools(t *testing.T) (f figure) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, 1, parseLimit(t, s.limit), s.settings, mutation{}, 2, s.trips...)
		began := time.Now()
		var all sync.WaitGroup
		if s.cut[1] > 0 {
			time.AfterFunc(s.cut[0], func() { w.set(func() { w.regions[s.cutOff].toHome.cut = true }) })
			time.AfterFunc(s.cut[1], func() { w.set(func() { w.regions[s.cutOff].toHome.cut = false }) })
		}
		for _, a := range s.arrivals() {
			sleep(time.Until(began.Add(a.at)))
			all.Go(func() { w.request(w.regions[a.region], 1) })
		}
		all.Wait()
		sleep(time.Minute)
		slices.Sort(w.delays)
		f = figure{allowed: w.allowed, over: w.over(), calls: w.homeGot, granted: w.granted, p99: w.delays[len(w.delays)*99/100]}
	})
	return f
}

const ms = time.Millisecond

var threeRegions = []time.Duration{1 * ms, 80 * ms, 200 * ms}

// steady is a rate in one region, and another one in the others.
func steady(hot int, rate, rest float64) func(int, int) float64 {
	return func(region, _ int) float64 {
		if region == hot {
			return rate
		}
		return rest
	}
}

// rush is nothing for a while, and then all regions at once.
func rush(rate float64) func(int, int) float64 {
	return func(_, second int) float64 {
		if second < 5 {
			return 0
		}
		return rate
	}
}

var scenarios = []scenario{
	{name: "twice the limit in the farthest region", limit: "6000/1m", trips: threeRegions, length: 3 * time.Minute, rate: steady(2, 200, 0), used: 0.95, calls: 1},
	{name: "the same, a little in the others", limit: "6000/1m", trips: threeRegions, length: 3 * time.Minute, rate: steady(2, 190, 5), used: 0.95, calls: 1},
	{name: "twice the limit, even", limit: "6000/1m", trips: threeRegions, length: 3 * time.Minute, rate: steady(2, 67, 67), used: 0.95, calls: 1},
	{name: "half of the limit in the farthest", limit: "12000/1m", trips: threeRegions, length: 2 * time.Minute, rate: steady(2, 100, 0), used: 1, calls: 1},
	{name: "all regions at once", limit: "1000/1m", trips: threeRegions, length: 15 * time.Second, rate: rush(800), used: 0.87, calls: 1, waits: true},
	{name: "a region cut off for 60 s", limit: "6000/1m", trips: threeRegions, length: 2 * time.Minute, rate: steady(2, 100, 100), cut: [2]time.Duration{20 * time.Second, 80 * time.Second}, cutOff: 2, used: 0.93, calls: 1},
	{name: "fixed windows, twice in the farthest", limit: "6000/1m fixed-window align=clock", trips: threeRegions, length: 3 * time.Minute, rate: steady(2, 190, 5), used: 0.97, calls: 1},
	{name: "sliding window, twice in the farthest", limit: "6000/1m sliding-window", trips: threeRegions, length: 3 * time.Minute, rate: steady(2, 200, 0), used: 0.95, calls: 1, waits: true},
	{name: "1,000 a second, twice in the farthest", limit: "1000/1s", trips: threeRegions, length: 20 * time.Second, rate: steady(2, 2000, 0), used: 0.93, calls: 5, waits: true},
	{name: "ten regions, twice in the farthest", limit: "6000/1m", trips: tenRegions(), length: 3 * time.Minute, rate: steady(9, 200, 0), used: 0.95, calls: 1.5, waits: true},
	{name: "ten regions, all at once", limit: "1000/1m", trips: tenRegions(), length: 15 * time.Second, rate: rush(300), used: 0.85, calls: 2, waits: true},
}

func tenRegions() (trips []time.Duration) {
	for i := range 10 {
		trips = append(trips, time.Duration(20+i*230/9)*ms)
	}
	return trips
}

// TestFigures compares this package with what else is done, on the same arrivals.
func TestFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute's work: make unit")
	}
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-40s %8s | %6s %6s | %6s %6s | %6s %6s %10s %6s\n", "", "", "split", "over", "count", "over", "pools", "over", "calls/100", "p99")
	for i := range scenarios {
		s := &scenarios[i]
		ideal, split, count, pools := s.ideal(t), s.split(t), s.counters(t), s.pools(t)
		capacity := float64(parseLimit(t, s.limit).Capacity())
		used := func(f figure) float64 { return float64(f.allowed) / float64(ideal.allowed) }
		over := func(f figure) string { return fmt.Sprintf("%+.0f%%", 100*float64(f.over)/capacity) }
		calls := 100 * float64(pools.calls) / float64(len(s.arrivals()))
		waits := pools.p99 > 2*ms
		if pools.over > 0 || used(pools) < s.used || calls > s.calls || waits != s.waits {
			t.Errorf("%s: used %.3f, want %v; %.2f calls for 100 decisions, want %v; p99 %v; exceeded by %d",
				s.name, used(pools), s.used, calls, s.calls, pools.p99, pools.over)
		}
		fmt.Fprintf(&table, "%-40s %8d | %6.3f %6s | %6.3f %6s | %6.3f %6s %10.2f %6v\n", s.name, len(s.arrivals()),
			used(split), over(split), used(count), over(count), used(pools), over(pools), calls, pools.p99.Round(ms/10))
	}
	t.Log(table.String())
}

var seriesFile = flag.String("regions.series", "", "file to write the figures of the picture to")

// TestSeries writes what is admitted in the course of time, for docs/images/regions.svg: one region asks for twice the limit, all
// rest, and then all ask at once.
func TestSeries(t *testing.T) {
	if *seriesFile == "" {
		t.Skip("make plots MEASURE=1")
	}
	s := scenario{limit: "1000/1m", trips: threeRegions, length: 150 * time.Second, rate: func(region, second int) float64 {
		switch {
		case second < 60 && region == 2:
			return 33
		case second == 120:
			return 2500
		case second > 120:
			return 50
		}
		return 0
	}}
	text := "seconds,one store,penstock,counters told each second,a third each\n"
	totals := [][]int{s.ideal(t).perSecond(150), s.pools(t).perSecond(150), s.counters(t).perSecond(150), s.split(t).perSecond(150)}
	for second := range 151 {
		text += strconv.Itoa(second)
		for _, total := range totals {
			text += "," + strconv.Itoa(total[second])
		}
		text += "\n"
	}
	if err := os.WriteFile(*seriesFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// perSecond returns how many units were granted until each second.
func (f figure) perSecond(seconds int) []int {
	began := time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC) // of a bubble
	totals := make([]int, seconds+1)
	for _, g := range f.granted {
		if at := int(g.at.Sub(began).Seconds()) + 1; at <= seconds {
			totals[at] += int(g.units)
		}
	}
	for i := 1; i < len(totals); i++ {
		totals[i] += totals[i-1]
	}
	return totals
}
