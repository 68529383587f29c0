// Package simulator shows what a limit does to traffic, under every algorithm. It
// runs the arrivals through the real store in virtual time, so its answers are those
// of a server.
package simulator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/timespan"
)

// MaxArrivals is how many arrivals a simulation may have.
const MaxArrivals = 10_000

// Errors of a simulation whose traffic is wrong. An invalid limit is
// [penstock.ErrBadLimit].
var (
	ErrBadTraffic = errors.New("bad traffic")
	ErrTooMany    = fmt.Errorf("%w: more than %d arrivals", ErrBadTraffic, MaxArrivals)
)

// An Arrival is one request.
type Arrival struct {
	At   time.Duration // since the beginning, in order
	Cost int64
}

// A Lane is the traffic under one algorithm.
type Lane struct {
	Algorithm penstock.Algorithm
	Limit     penstock.Limit
	Written   bool  // this is the limit as it was written; the other lanes are compared to it
	Err       error // why the algorithm cannot have the limit; then there are no results
	Results   []Result

	// Passed and Offered are units, and Denied those that did not pass.
	Passed, Offered, Denied int64

	// MostInPeriod is the most units that passed within any one period. It
	// can exceed the limit's count.
	MostInPeriod int64
}

// A Result is the decision about one arrival.
type Result struct {
	At         time.Duration
	Cost       int64
	Allowed    bool
	Delay      time.Duration // until an allowed request may act
	RetryAfter time.Duration // of a denied request; may be penstock.Never
}

// A Simulation is the same traffic under all algorithms.
type Simulation struct {
	Limit    penstock.Limit
	Arrivals []Arrival
	Lanes    []Lane
	Summary  string // what happened, in a sentence
}

// Run simulates a limit as written in a rule, and the other algorithms with the same
// numbers, under named traffic of [Traffics].
func Run(limit, traffic string) (*Simulation, error) {
	l, err := parseLimit(limit)
	if err != nil {
		return nil, err
	}
	t, err := trafficNamed(traffic)
	if err != nil {
		return nil, err
	}
	return simulate(l, t.arrivals(l), t.onClock), nil
}

// RunArrivals is [Run] with traffic of one's own. The arrivals must be in order.
func RunArrivals(limit string, arrivals []Arrival) (*Simulation, error) {
	l, err := parseLimit(limit)
	if err != nil {
		return nil, err
	}
	if err := validate(arrivals); err != nil {
		return nil, err
	}
	return simulate(l, arrivals, false), nil
}

// maxDuration bounds the time of an arrival: the virtual clock must stay within the
// years that a store can represent.
const maxDuration = 10 * 366 * 24 * time.Hour

// maxCost bounds the cost of an arrival, so that the sum of all costs cannot overflow.
const maxCost = 1e12

func validate(arrivals []Arrival) error {
	if len(arrivals) == 0 {
		return fmt.Errorf("%w: no arrivals", ErrBadTraffic)
	}
	if len(arrivals) > MaxArrivals {
		return ErrTooMany
	}
	before := time.Duration(0)
	for i, a := range arrivals {
		switch {
		case a.At < before:
			return fmt.Errorf("%w: arrival %d at %v is before the one in front of it", ErrBadTraffic, i, a.At)
		case a.At > maxDuration:
			return fmt.Errorf("%w: arrival %d at %v is later than %v", ErrBadTraffic, i, a.At, maxDuration)
		case a.Cost < 1 || a.Cost > maxCost:
			return fmt.Errorf("%w: arrival %d costs %d, want 1 to %d", ErrBadTraffic, i, a.Cost, int64(maxCost))
		}
		before = a.At
	}
	return nil
}

// parseLimit parses a limit that can be simulated.
func parseLimit(text string) (penstock.Limit, error) {
	l, err := penstock.ParseLimit(text)
	if err == nil && l.HasPermits() {
		return l, &penstock.FieldError{
			Field: "Algorithm", Kind: penstock.ErrBadLimit,
			Problem: "concurrent: cannot be simulated, because what it admits depends on when permits are released",
		}
	}
	return l, err
}

func simulate(l penstock.Limit, arrivals []Arrival, onClock bool) *Simulation {
	s := &Simulation{Limit: l, Arrivals: arrivals}
	start := startFor(l)
	for other := range variants(l, onClock) {
		lane := Lane{Algorithm: other.Algorithm, Limit: other, Written: other.Algorithm == l.Algorithm}
		lane.run(start, arrivals)
		s.Lanes = append(s.Lanes, lane)
	}
	s.Summary = s.summarize()
	return s
}

// variants returns the limit with each algorithm that can be simulated.
func variants(l penstock.Limit, onClock bool) iter.Seq[penstock.Limit] {
	return func(yield func(penstock.Limit) bool) {
		for _, a := range penstock.Algorithms() {
			if other := limitFor(l, a, onClock); !other.HasPermits() && !yield(other) {
				return
			}
		}
	}
}

// limitFor returns the limit with another algorithm. On the clock, windows begin at
// multiples of the period, as those of most fixed-window limiters do.
func limitFor(l penstock.Limit, a penstock.Algorithm, onClock bool) penstock.Limit {
	if a == l.Algorithm {
		return l
	}
	other := penstock.Limit{Algorithm: a, Count: l.Count, Period: l.Normal().Period, Burst: l.Burst}
	if onClock && other.CanAlign() {
		other.Align = penstock.AlignClock
	}
	return other.Normal()
}

// startFor returns the beginning of the virtual time: half a period before a window
// of the limit ends, so that traffic around the edge has room on both sides.
func startFor(l penstock.Limit) time.Time {
	n := l.Normal()
	epoch := time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	if n.Align > penstock.AlignClock {
		_, end := n.Window(epoch)
		return end.Add(-n.Period / 2)
	}
	edge := epoch.Truncate(n.Period).Add(n.Period)
	if n.Align == penstock.AlignClock {
		edge = edge.Add(n.Offset)
	}
	return edge.Add(-n.Period / 2)
}

// run decides the arrivals one after the other.
func (l *Lane) run(start time.Time, arrivals []Arrival) {
	now := start
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: func() time.Time { return now }})
	limiter, err := penstock.New(store, l.Limit)
	if err != nil {
		l.Err = err
		return
	}
	l.Results = make([]Result, len(arrivals))
	for i, a := range arrivals {
		now = start.Add(a.At)
		d, err := limiter.AllowN(context.Background(), "key", a.Cost)
		if err != nil {
			l.Err = err
			return
		}
		l.Results[i] = Result{At: a.At, Cost: a.Cost, Allowed: d.Allowed, Delay: d.Delay, RetryAfter: d.RetryAfter}
	}
	l.count()
}

func (l *Lane) count() {
	for _, r := range l.Results {
		l.Offered += r.Cost
		if r.Allowed {
			l.Passed += r.Cost
		}
	}
	l.Denied = l.Offered - l.Passed
	l.MostInPeriod = mostWithin(l.Limit.Normal().Period, l.Results)
}

// mostWithin returns the most units that act within any interval of one period. An
// allowed request acts after its delay.
func mostWithin(period time.Duration, results []Result) (most int64) {
	passed := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return !r.Allowed })
	slices.SortStableFunc(passed, func(a, b Result) int { return cmp.Compare(a.actsAt(), b.actsAt()) })
	units, first := int64(0), 0
	for _, r := range passed {
		units += r.Cost
		for r.actsAt()-passed[first].actsAt() >= period {
			units -= passed[first].Cost
			first++
		}
		most = max(most, units)
	}
	return most
}

func (r *Result) actsAt() time.Duration { return r.At + r.Delay }

// AtMost returns the most units that may pass within one period, whatever the traffic is: the bound of the algorithm.
func (l *Lane) AtMost() int64 {
	n := l.Limit.Normal()
	switch l.Algorithm {
	case penstock.TokenBucket:
		return n.Count + n.Burst - 1
	case penstock.LeakyBucket: // one request may act at the very end of what the ones before it reserved
		return n.Count + l.largestCost() - 1
	case penstock.FixedWindow:
		windows := windowsInPeriod(l.Limit)
		return windows * min(n.Count, math.MaxInt64/windows)
	case penstock.SlidingWindow:
		return max(n.Count, 2*n.Count-2)
	}
	return n.Count
}

func (l *Lane) largestCost() (most int64) {
	for i := range l.Results {
		most = max(most, l.Results[i].Cost)
	}
	return max(most, 1)
}

// windowsInPeriod returns how many fixed windows a period can touch: three, if one of them can be shorter than it.
func windowsInPeriod(l penstock.Limit) int64 {
	n := l.Normal()
	zone, err := time.LoadLocation(n.Zone)
	if n.Align <= penstock.AlignClock || err != nil {
		return 2
	}
	start := startFor(l).In(zone)
	_, offset := start.Zone()
	_, later := start.AddDate(0, 6, 0).Zone()
	if n.Align == penstock.AlignMonth || offset != later {
		return 3
	}
	return 2
}

// Exceeds reports whether more units passed within one period than the limit's count.
func (l *Lane) Exceeds() bool { return l.MostInPeriod > l.Limit.Count }

// summarize describes the lane of the written limit, and the one that exceeds the
// count the most, if that is another.
func (s *Simulation) summarize() string {
	var written, worst *Lane
	for i := range s.Lanes {
		lane := &s.Lanes[i]
		if lane.Written {
			written = lane
		}
		if lane.Exceeds() && (worst == nil || lane.MostInPeriod > worst.MostInPeriod) {
			worst = lane
		}
	}
	text := written.describe()
	if worst != nil && worst != written {
		text += " " + worst.describe()
	}
	return text
}

func (l *Lane) describe() string {
	if l.Err != nil {
		return fmt.Sprintf("%s cannot have this limit.", l.Algorithm)
	}
	within := "never more than"
	if l.Exceeds() {
		within = "up to"
	}
	return fmt.Sprintf("%s passes %d of %d, %s %d in one period of %s (limit %d).",
		l.Algorithm, l.Passed, l.Offered, within, l.MostInPeriod, timespan.Text(l.Limit.Normal().Period), l.Limit.Count)
}
