package simserver

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// A Scenario is a server in trouble. Its times are in seconds.
type Scenario struct {
	Name        string
	Load        func(at float64) float64 // offered, as a multiple of the capacity
	Slow        func(at float64) float64 // by how much each call takes longer; nil for never
	Dependency  func(at float64) float64 // for how long a call waits without a worker besides, as a multiple of its work; nil for not
	RunQueue    bool                     // calls wait for a processor before the gate sees them
	Shared      bool                     // calls share the workers evenly
	From, Until float64                  // what is measured
	Deadline    float64                  // as a multiple of the mean of the work
	Retries     int                      // of clients that retry at once
	Gates       int                      // before one server; calls take turns
	Critical    float64                  // the share of critical calls
}

// ScenarioCapacity is how many calls a second a server of a scenario can serve, however many workers it has.
const ScenarioCapacity = 100

// MeanWork is what a call of a scenario needs in the mean.
func MeanWork(workers int) float64 { return float64(workers) / ScenarioCapacity * 1e9 }

// Scenarios are those of small servers.
func Scenarios() (all []Scenario) {
	add := func(s Scenario) {
		if s.Deadline == 0 {
			s.Deadline = 10
		}
		if s.Until == 0 {
			s.From, s.Until = 10, 40
		}
		s.Gates = max(s.Gates, 1)
		all = append(all, s)
	}
	for _, load := range []float64{0.8, 0.9, 1.05, 1.1, 1.2, 1.5, 2, 5, 10} {
		add(Scenario{Name: fmt.Sprintf("%g×", load), Load: between(0, 5, 0.5, load)})
		add(Scenario{Name: fmt.Sprintf("%g×, shared processors", load), Load: between(0, 5, 0.5, load), Shared: true})
	}
	for _, load := range []float64{0.8, 1.2, 2, 5, 10} {
		add(Scenario{Name: fmt.Sprintf("%g×, run queue", load), Load: between(0, 5, 0.5, load), RunQueue: true, Deadline: 20})
	}
	add(Scenario{Name: "step from 0.5× to 3×", Load: between(0, 10, 0.5, 3)})
	add(Scenario{Name: "ramp from 0.5× to 4×", Load: func(at float64) float64 { return min(max(0.5, 0.5+(at-10)*3.5/30), 4) }})
	add(Scenario{Name: "sawtooth of 0.3× and 3×, 3 s each", Load: func(at float64) float64 {
		if int(at)/3%2 == 0 {
			return 0.3
		}
		return 3
	}})
	add(Scenario{Name: "flash crowd of 10× for 5 s", Load: between(10, 15, 10, 0.5), Until: 15, From: 10})
	add(Scenario{Name: "after the flash crowd", Load: between(10, 15, 10, 0.7), Until: 25, From: 15})
	for _, load := range []float64{0.9, 2} {
		add(Scenario{Name: fmt.Sprintf("a third of the capacity for 15 s, %g×", load), Load: steadily(load), Slow: between(10, 25, 3, 1), Until: 25, From: 10})
		add(Scenario{Name: fmt.Sprintf("and back, %g×", load), Load: steadily(load), Slow: between(10, 25, 3, 1), Until: 40, From: 25})
	}
	for _, load := range []float64{0.7, 2} {
		add(Scenario{Name: fmt.Sprintf("dependency ten times slower, %g×", load), Load: steadily(load), Dependency: between(10, 40, 10, 1), Deadline: 40})
		add(Scenario{Name: fmt.Sprintf("cold start, %g×", load), Load: steadily(load), From: 0.5, Until: 20})
	}
	for _, load := range []float64{0.7, 3} {
		add(Scenario{Name: fmt.Sprintf("two gates, %g×", load), Load: between(0, 5, 0.5, load), Gates: 2})
	}
	for _, load := range []float64{1.2, 3} {
		add(Scenario{Name: fmt.Sprintf("clients retry three times at once, %g×", load), Load: between(0, 5, 0.5, load), Retries: 3})
	}
	for _, load := range []float64{0.9, 1.5, 3} {
		add(Scenario{Name: fmt.Sprintf("a fifth critical, %g×", load), Load: between(0, 5, 0.5, load), Critical: 0.2})
	}
	add(Scenario{Name: "deadline of four times the work, 3×", Load: between(0, 5, 0.5, 3), Deadline: 4})
	return all
}

func steadily(load float64) func(float64) float64 { return func(float64) float64 { return load } }

// between is one value in an interval, and another outside.
func between(begin, end, inside, outside float64) func(float64) float64 {
	return func(at float64) float64 {
		if at >= begin && at < end {
			return inside
		}
		return outside
	}
}

// Rate is how many calls clients send.
func (s Scenario) Rate(now int64) float64 { return ScenarioCapacity * s.Load(float64(now)/1e9) }

// Work is what a call needs, by a distribution whose mean is one.
func (s Scenario) Work(workers int, distribution func(*rand.Rand) float64) Work {
	mean := MeanWork(workers)
	return func(r *rand.Rand, now int64) int64 {
		work := mean * distribution(r)
		if s.Slow != nil {
			work *= s.Slow(float64(now) / 1e9)
		}
		return int64(work)
	}
}

// NewServer returns the server of the scenario. One with a run queue has one processor.
func (s Scenario) NewServer(t Timeline, workers int) (server Server) {
	switch {
	case s.Shared:
		server = &Shared{Timeline: t, Processors: float64(workers)}
	case s.RunQueue:
		server = &Processor{Timeline: t}
	default:
		server = &Pool{Timeline: t, Workers: workers}
	}
	if s.Dependency != nil {
		wait := func() int64 { return int64(s.Dependency(float64(t.Now())/1e9) * MeanWork(workers)) }
		return &dependent{server, t, wait}
	}
	return server
}

// A dependent server waits for another after its own work, without a worker.
type dependent struct {
	Server
	time Timeline
	wait func() int64
}

// Serve implements [Server].
func (d *dependent) Serve(work int64, done func()) {
	d.Server.Serve(work, func() { d.time.After(d.wait(), done) })
}

// Distributions of the work of a call, whose mean is one.
var (
	ExponentialWork = func(r *rand.Rand) float64 { return r.ExpFloat64() }
	ConstantWork    = func(*rand.Rand) float64 { return 1 }
	LognormalWork   = func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64() - 0.5) }    // deviation 1.3
	ParetoWork      = func(r *rand.Rand) float64 { return 0.6 / math.Pow(1-r.Float64(), 0.4) } // shape 2.5, deviation 0.9
)
