package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/simulator"
)

func run(t *testing.T, limit, traffic string) *simulator.Simulation {
	t.Helper()
	s, err := simulator.Run(limit, traffic)
	if err != nil {
		t.Fatalf("%s, %s: %v", limit, traffic, err)
	}
	return s
}

func lane(s *simulator.Simulation, a penstock.Algorithm) *simulator.Lane {
	for i := range s.Lanes {
		if s.Lanes[i].Algorithm == a {
			return &s.Lanes[i]
		}
	}
	return nil
}

// The known weakness of a fixed window: twice the count around its edge.
func TestRunEdgePassesTwiceUnderAFixedWindow(t *testing.T) {
	s := run(t, "10/1s", "edge")
	fixed, log := lane(s, penstock.FixedWindow), lane(s, penstock.SlidingLog)
	if fixed.Passed != 20 || fixed.MostInPeriod != 20 || !fixed.Exceeds() {
		t.Errorf("fixed window: %d of 20 passed, %d in one period; want all", fixed.Passed, fixed.MostInPeriod)
	}
	if log.Passed != 10 || log.MostInPeriod != 10 || log.Exceeds() {
		t.Errorf("sliding log: %d of 20 passed, %d in one period; want 10", log.Passed, log.MostInPeriod)
	}
	const want = "token-bucket passes 11 of 20, up to 11 in one period of 1s (limit 10). " +
		"fixed-window passes 20 of 20, up to 20 in one period of 1s (limit 10)."
	if s.Summary != want {
		t.Errorf("summary %q, want %q", s.Summary, want)
	}
}

// The traffic meets the edge of the window that was written, wherever it is.
func TestRunEdgeMeetsWindowsOfTheCalendar(t *testing.T) {
	for _, limit := range []string{
		"5/day zone=Asia/Shanghai fixed-window", "5/1h fixed-window align=clock offset=10m", "3/month zone=UTC fixed-window",
	} {
		fixed := lane(run(t, limit, "edge"), penstock.FixedWindow)
		if fixed.Err != nil || !fixed.Written || fixed.Passed != fixed.Offered {
			t.Errorf("%s: %d of %d passed, %v", limit, fixed.Passed, fixed.Offered, fixed.Err)
		}
	}
}

func TestRunAlgorithmsKeepTheirBounds(t *testing.T) {
	for _, traffic := range simulator.Traffics {
		for _, limit := range []string{"1/1s", "10/1s", "10/1m burst=3", "250/1h", "5000/1m sliding-log", "1000000/1h", "5/day zone=Asia/Shanghai fixed-window", "7/day zone=Europe/Berlin fixed-window"} {
			s := run(t, limit, traffic.Name)
			for _, l := range s.Lanes {
				if l.Err != nil {
					if l.Algorithm != penstock.SlidingLog || l.Limit.Count <= 10_000 {
						t.Errorf("%s, %s, %s: %v", limit, traffic.Name, l.Algorithm, l.Err)
					}
					continue
				}
				if l.Offered != l.Passed+l.Denied || l.Passed < 1 || l.MostInPeriod > l.AtMost() {
					t.Errorf("%s, %s, %s: %d of %d passed, %d in one period, want at most %d",
						limit, traffic.Name, l.Algorithm, l.Passed, l.Offered, l.MostInPeriod, l.AtMost())
				}
			}
		}
	}
}

// The bounds are those of the documents.
func TestLanesSayWhatMayPassInAPeriod(t *testing.T) {
	for limit, want := range map[string]string{
		"10/1s": "19 10 20 18 10 10", "10/1s burst=3": "12 10 20 18 10 10", "1/1s": "1 1 2 1 1 1",
		"5/day zone=Asia/Shanghai fixed-window": "9 5 10 8 5 5", "5/day zone=Europe/Berlin fixed-window": "9 5 15 8 5 5", "5/month zone=UTC fixed-window": "9 5 15 8 5 5",
	} {
		var got []string
		for _, l := range run(t, limit, "edge").Lanes {
			got = append(got, fmt.Sprint(l.AtMost()))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: at most %s, want %s", limit, text, want)
		}
	}
}

// A window may have a count of which a period, with the windows that it touches, has more than a number holds.
func TestLaneSaysWhatMayPassOfAHugeCount(t *testing.T) {
	l := lane(run(t, "9000000000000000000/1m fixed-window", "edge"), penstock.FixedWindow)
	if got := l.AtMost(); l.Err != nil || got < l.Limit.Count {
		t.Errorf("at most %d, %v, want %d or more", got, l.Err, l.Limit.Count)
	}
}

// A lane is what a limiter decides, and RetryAfter is true.
func TestRunArrivalsEqualsALimiter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		limit := penstock.Limit{Count: 1 + rng.Int64N(20), Period: time.Duration(1+rng.IntN(100)) * time.Second}
		limit.Algorithm = penstock.Algorithm(rng.IntN(6))
		var arrivals []simulator.Arrival
		at := time.Duration(0)
		for range 1 + rng.IntN(100) {
			at += time.Duration(rng.Int64N(int64(limit.Period) / limit.Count))
			arrivals = append(arrivals, simulator.Arrival{At: at, Cost: 1 + rng.Int64N(3)})
		}
		s, err := simulator.RunArrivals(limit.String(), arrivals)
		if err != nil {
			t.Fatal(err)
		}
		got := lane(s, limit.Algorithm)
		now := time.Unix(1_900_000_000, 0)
		start := now
		if limit.Algorithm == penstock.RollingWindow { // its buckets lie on the clock
			edge := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Truncate(limit.Period).Add(limit.Period)
			start = edge.Add(-limit.Period / 2)
		}
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
		for i, a := range arrivals {
			now = start.Add(a.At)
			d, err := store.Take(context.Background(), penstock.Request{Key: "k", Limit: limit, Cost: a.Cost})
			r := got.Results[i]
			if err != nil || r.Allowed != d.Allowed || r.Delay != d.Delay || r.RetryAfter != d.RetryAfter {
				t.Fatalf("%v, arrival %d: %+v, want %+v (%v)", limit, i, r, d, err)
			}
		}
	}
}

func TestRunArrivalsMostInPeriodCountsTheWorstInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for range 100 {
		var arrivals []simulator.Arrival
		at := time.Duration(0)
		for range 60 {
			at += time.Duration(rng.Int64N(int64(300 * time.Millisecond)))
			arrivals = append(arrivals, simulator.Arrival{At: at, Cost: 1 + rng.Int64N(3)})
		}
		s, err := simulator.RunArrivals("7/1s", arrivals)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.Lanes {
			most := int64(0)
			for _, from := range l.Results {
				units := int64(0)
				for _, r := range l.Results {
					if d := r.At + r.Delay - from.At - from.Delay; r.Allowed && d >= 0 && d < time.Second {
						units += r.Cost
					}
				}
				most = max(most, units)
			}
			if l.MostInPeriod != most || most > l.AtMost() {
				t.Fatalf("%s: %d in one period, want %d, and at most %d", l.Algorithm, l.MostInPeriod, most, l.AtMost())
			}
		}
	}
}

func TestRunRejectsBadInput(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		limit    string
		traffic  string
		arrivals []simulator.Arrival
		want     error
	}{
		"limit":         {limit: "ten a minute", traffic: "edge", want: penstock.ErrBadLimit},
		"traffic":       {limit: "10/1m", traffic: "edgy", want: simulator.ErrBadTraffic},
		"no arrivals":   {limit: "10/1m", want: simulator.ErrBadTraffic},
		"too many":      {limit: "10/1m", arrivals: slices.Repeat([]simulator.Arrival{{Cost: 1}}, simulator.MaxArrivals+1), want: simulator.ErrTooMany},
		"out of order":  {limit: "10/1m", arrivals: []simulator.Arrival{{At: ms, Cost: 1}, {At: 0, Cost: 1}}, want: simulator.ErrBadTraffic},
		"negative":      {limit: "10/1m", arrivals: []simulator.Arrival{{At: -ms, Cost: 1}}, want: simulator.ErrBadTraffic},
		"cost":          {limit: "10/1m", arrivals: []simulator.Arrival{{At: ms}}, want: simulator.ErrBadTraffic},
		"in 200 years":  {limit: "10/1m", arrivals: []simulator.Arrival{{At: 200 * 365 * 24 * time.Hour, Cost: 1}}, want: simulator.ErrBadTraffic},
		"limit and own": {limit: "-1/1m", arrivals: []simulator.Arrival{{At: ms, Cost: 1}}, want: penstock.ErrBadLimit},
	} {
		var err error
		if c.traffic != "" {
			_, err = simulator.Run(c.limit, c.traffic)
		} else {
			_, err = simulator.RunArrivals(c.limit, c.arrivals)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}
