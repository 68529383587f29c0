//go:build !race

package overload

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// Calls that end in other ways than by being served.

// A trouble is what may come instead of an answer, and when: a call takes a time without a worker, and ends.
type trouble func(r *rand.Rand, now int64) (took int64, o Outcome, happens bool)

// inTrouble runs clients of a server of ten workers of 10 ms, 1.4 times as many calls as it can serve.
func inTrouble(t trouble, limits GateOptions) *simRun {
	r := newSimRun(1, limits, pool(10), workload{rate: simserver.Steady(1400), work: simserver.Exponential(mean)})
	r.instead = t
	return r
}

func base(r *simRun) time.Duration { return time.Duration(r.gate.control.finder.baseLatency()) }

// Nearly all calls fail at once, after 3 ms: the others take as long as before.
func TestGateTakesNoEarlyErrorForLatency(t *testing.T) {
	r := inTrouble(func(r *rand.Rand, now int64) (int64, Outcome, bool) {
		return 3e6, Failure, now > 20e9 && now < 40e9 && r.Float64() < 0.98
	}, GateOptions{})
	r.run(45e9)
	check(t, "milliseconds without queueing", float64(base(r))/1e6, 6, 20)
	r.run(60e9)
	check(t, "limit", float64(limitOf(r.gate.word.Load())), 10, 40)
}

// All calls end by the same time-out. When there are answers again, the gate admits as many as before.
func TestGateBearsTimeouts(t *testing.T) {
	r := inTrouble(func(r *rand.Rand, now int64) (int64, Outcome, bool) {
		return 1e9 + r.Int64N(5e6), Failure, now > 20e9 && now < 80e9
	}, GateOptions{})
	r.run(20e9)
	before := r.gate.control.share
	r.run(140e9)
	check(t, "served of 1000 a second", r.summary(110e9, 140e9, nil).served, 900, 1100)
	check(t, "share refused, before", before, 0.1, 0.5)
}

// Some calls are long polls: at each sweep others of them have hung. Windows end all the same.
func TestGateMeasuresBesideLongPolls(t *testing.T) {
	r := inTrouble(func(r *rand.Rand, _ int64) (int64, Outcome, bool) {
		return int64(r.ExpFloat64() * 10e9), Success, r.Float64() < 0.02
	}, GateOptions{})
	r.run(40e9)
	windows, last := 0, r.gate.meter.mean.Load()
	for r.now < 80e9 {
		r.run(r.now + 20e6)
		if now := r.gate.meter.mean.Load(); now != last {
			windows, last = windows+1, now
		}
	}
	check(t, "windows in 40 s", float64(windows), 10, anything)
}

// Three calls hang at a gate that bears no more.
func TestGateAtMostIsNotLockedOutByHungCalls(t *testing.T) {
	hung := 0
	r := inTrouble(func(*rand.Rand, int64) (int64, Outcome, bool) {
		hung++
		return never, Success, hung <= 3
	}, GateOptions{MaxLimit: 3})
	r.run(30e9)
	check(t, "served a second", r.summary(20e9, 30e9, nil).served, 200, 400)
}

// An hour without calls says nothing of those that come then.
func TestGateBearsIdleHour(t *testing.T) {
	const hour = 3600e9
	for seed := range uint64(3) {
		load := workload{work: constant(mean), rate: func(now int64) float64 {
			switch {
			case now < 10e9:
				return 500
			case now < hour:
				return 1e-6
			}
			return 2000
		}}
		r := newSimRun(seed, GateOptions{}, pool(10), load)
		r.run(10e9)
		r.now = hour
		r.After(0, r.arrive)
		r.run(hour + 4e9)
		check(t, "served of 1000 a second", r.summary(hour, hour+4e9, nil).served, 900, 1100)
	}
}

// Leaving twice ends another call early, also if both happen at the same time, and no more than that.
func TestGateSurvivesLeavingTwiceAtOnce(t *testing.T) {
	for range 1000 {
		g := NewGate(&GateOptions{Limit: 5, MaxWait: -1})
		pass, err := g.Enter(t.Context(), Normal)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { pass.Leave(Success) })
		}
		group.Wait()
		if s := g.Stats(); s.InFlight != 0 || s.Limit != 5 {
			t.Fatalf("got %+v, want no call in flight and a limit of 5", s)
		}
	}
}
