//go:build !race

package overload

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// curveOf is the curve of a server after so many calls for each number in flight.
func curveOf(workers, calls, most int) *departureCurve {
	g, now := NewGate(nil), int64(1)
	g.meter.at.Store(now)
	for n := 1; n <= most; n++ {
		for range calls {
			now += int64(mean) / int64(min(n, workers))
			g.meter.changed(now, n, 1)
		}
	}
	g.collect(now)
	return &g.curve
}

func TestDepartureCurveShowsFewWorkers(t *testing.T) {
	for _, workers := range []int{1, 2, 4, 8} {
		rates := curveOf(workers, 24, 3*workers).latest
		got, took, best := rates.likeliestFew()
		if evidence := best - rates.unlimited(); got != float64(workers) || took < 0.99*mean || took > 1.01*mean || evidence < clearEvidence {
			t.Errorf("%d workers: got %g, %.2g ms a call, evidence %.2g", workers, got, took/1e6, evidence)
		}
	}
	rates := curveOf(32, 24, 8).latest
	if got, _, best := rates.likeliestFew(); best-rates.unlimited() >= clearEvidence {
		t.Errorf("calls that do not queue: got %g workers with evidence %.2g", got, best-rates.unlimited())
	}
}

// More calls than ever are in flight, and hardly more of them end than before: either eight workers are busy, or each
// call takes ten times as long.
func TestDepartureCurveTellsSlowerCallsFromFewWorkers(t *testing.T) {
	for name, perCall := range map[string]func(n float64) float64{
		"few workers":  func(float64) float64 { return mean / 8 },
		"slower calls": func(n float64) float64 { return 10 * mean / n },
	} {
		c, now := curveOf(8, 64, 8), 2*jumpTime
		c.keepLatest(0, 1)
		for n := 9.0; n <= 24; n++ {
			c.latest[int(n)].add(departures{4, 4 * perCall(n)})
			c.keepLatest(now, 1)
		}
		few, took := c.fewWorkers(now, 1)
		switch isSlow := c.slowUntil > now; {
		case name == "few workers" && (isSlow || few != 8 || math.Abs(took-mean) > 0.01*mean):
			t.Errorf("%s: got %g, %.3g ms a call, slower %t", name, few, took/1e6, isSlow)
		case name == "slower calls" && (!isSlow || !math.IsInf(took, 1) || c.known.calls() > 0):
			t.Errorf("%s: got %g workers, %.3g ms a call, slower %t", name, few, took/1e6, isSlow)
		}
	}
}

// startsInOverload returns which share of the capacity ten workers serve from a time until ten seconds after a start,
// in each run, the lowest first.
func startsInOverload(runs uint64, times float64, from int64) (shares []float64) {
	const workers, capacity = 10, 200
	load := workload{rate: simserver.Steady(times * capacity), work: simserver.Exponential(50e6)}
	for seed := range runs {
		r := newSimRun(seed, GateOptions{}, pool(workers), load)
		r.run(10e9)
		shares = append(shares, r.servedWithin(500e6, from, 10e9)/capacity)
	}
	slices.Sort(shares)
	return shares
}

// A process that starts in an overload has never seen calls that do not queue. Those that come before the gate is full
// must not make room for so many that all are late.
func TestGateThatStartsInOverloadLetsNoLongQueueIn(t *testing.T) {
	if worst := startsInOverload(200, 1.2, 4e9)[2]; worst < 0.62 {
		t.Errorf("served %.3f of the capacity in one of a hundred runs", worst)
	}
}

// One that has only ever seen more calls in flight than it has workers must not take ten of them for one.
func TestGateThatStartsInOverloadTakesManyWorkersForMany(t *testing.T) {
	if worst := startsInOverload(100, 5, 1e9)[5]; worst < 0.75 {
		t.Errorf("served %.3f of the capacity in one of twenty runs", worst)
	}
}

// A large server that has just started is below its capacity, and the gate soon finds that out. A limit that grows by a
// few calls at a time refuses 0.3 to 0.7 of the calls of 100 and 300 workers for five seconds, also if few came before.
func TestGateOfLargeServerRefusesLittleAtStart(t *testing.T) {
	for workers, most := range map[int]float64{20: 0.005, 50: 0.06, 100: 0.26, 300: 0.17} {
		for _, load := range []float64{0.5, 0.8} {
			for _, begin := range []int64{0, 3e9} {
				refused := 0.0
				for seed := range uint64(6) {
					r := newSimRun(seed, GateOptions{}, pool(workers), workload{work: simserver.Exponential(50e6), rate: func(now int64) float64 {
						if now < begin {
							return 0.4 * float64(workers)
						}
						return 20 * load * float64(workers)
					}})
					r.run(begin + 5e9)
					refused += r.summary(begin, begin+5e9, nil).refusedShare / 6
				}
				check(t, fmt.Sprintf("%d workers, %g of the capacity from %d: share refused in five seconds", workers, load, begin), refused, 0, most)
			}
		}
	}
}

// Few workers have room for few calls, unless these share a processor.
func TestGateHasRoomForTenCallsForEachWorker(t *testing.T) {
	g, now := NewGate(nil), 2*computeTime
	for _, c := range []struct {
		took     float64
		waitedAt int64
		want     float64
	}{
		{mean, now - computeTime, 2 * roomPerWorker},
		{mean, now - computeTime + 1, math.Inf(1)},
		{math.Inf(1), 0, math.Inf(1)},
	} {
		g.curve.took, g.delay.waitedAt = c.took, c.waitedAt
		if got := g.roomFor(2, now); got != c.want {
			t.Errorf("%+v: got %g", c, got)
		}
	}
}

// A jump lowers a limit that is far too high, and no other.
func TestLimitFinderJumps(t *testing.T) {
	f := newLimitFinder(30, 1000)
	if !f.jump(2) || f.limit >= 4 {
		t.Errorf("limit %g, want less than 4 for two workers", f.limit)
	}
	if before := f.limit; f.jump(2) || f.limit != before {
		t.Errorf("limit %g, want %g as before", f.limit, before)
	}
}

// The load rises while calls are slow for another reason: no limit is lowered by a curve of other times.
func TestGateIgnoresCurveWithoutJump(t *testing.T) {
	r := newSimRun(1, GateOptions{}, pool(1), workload{rate: simserver.Steady(50), work: simserver.Exponential(mean)})
	r.run(20e9)
	before := limitOf(r.gate.word.Load())
	r.gate.curve.usual, r.gate.curve.recent = arrivals{100, 1e8}, arrivals{}
	r.gate.checkCurve(r.now, &window{})
	if got := limitOf(r.gate.word.Load()); got != before {
		t.Errorf("limit %d, want %d as before: no call came more than usual", got, before)
	}
	r.gate.curve.jumpedAt = r.now
	r.gate.checkCurve(r.now, &window{})
	if got := limitOf(r.gate.word.Load()); got > 3 {
		t.Errorf("limit %d after a jump, want what one worker needs", got)
	}
}
