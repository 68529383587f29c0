package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
	"github.com/penstock-io/penstock/overload"
)

// A scenario is a small server in trouble. Its times are in seconds.
type scenario struct {
	name        string
	load        func(at float64) float64 // offered, as a multiple of the capacity
	slow        func(at float64) float64 // by how much each call takes longer; nil for never
	dependency  func(at float64) float64 // for how long a call waits without a worker besides, as a multiple of its work; nil for not
	processor   bool                     // calls wait for a processor before the gate sees them
	shared      bool                     // calls share the workers evenly
	from, until float64                  // what is measured
	deadline    float64                  // as a multiple of the mean of the work
	retries     int                      // of clients that retry at once
	gates       int                      // before one server; calls take turns
	critical    float64                  // the share of critical calls
}

const scenarioCapacity = 100 // a second

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

func scenarios() (all []scenario) {
	add := func(s scenario) {
		if s.deadline == 0 {
			s.deadline = 10
		}
		if s.until == 0 {
			s.from, s.until = 10, 40
		}
		all = append(all, s)
	}
	for _, load := range []float64{0.8, 0.9, 1.05, 1.1, 1.2, 1.5, 2, 5, 10} {
		add(scenario{name: fmt.Sprintf("%g×", load), load: between(0, 5, 0.5, load)})
		add(scenario{name: fmt.Sprintf("%g×, shared processors", load), load: between(0, 5, 0.5, load), shared: true})
	}
	for _, load := range []float64{0.8, 1.2, 2, 5, 10} {
		add(scenario{name: fmt.Sprintf("%g×, run queue", load), load: between(0, 5, 0.5, load), processor: true, deadline: 20})
	}
	add(scenario{name: "step from 0.5× to 3×", load: between(0, 10, 0.5, 3)})
	add(scenario{name: "ramp from 0.5× to 4×", load: func(at float64) float64 { return min(max(0.5, 0.5+(at-10)*3.5/30), 4) }})
	add(scenario{name: "sawtooth of 0.3× and 3×, 3 s each", load: func(at float64) float64 {
		if int(at)/3%2 == 0 {
			return 0.3
		}
		return 3
	}})
	add(scenario{name: "flash crowd of 10× for 5 s", load: between(10, 15, 10, 0.5), until: 15, from: 10})
	add(scenario{name: "after the flash crowd", load: between(10, 15, 10, 0.7), until: 25, from: 15})
	for _, load := range []float64{0.9, 2} {
		add(scenario{name: fmt.Sprintf("a third of the capacity for 15 s, %g×", load), load: steadily(load), slow: between(10, 25, 3, 1), until: 25, from: 10})
		add(scenario{name: fmt.Sprintf("and back, %g×", load), load: steadily(load), slow: between(10, 25, 3, 1), until: 40, from: 25})
	}
	for _, load := range []float64{0.7, 2} {
		add(scenario{name: fmt.Sprintf("dependency ten times slower, %g×", load), load: steadily(load), dependency: between(10, 40, 10, 1), deadline: 40})
		add(scenario{name: fmt.Sprintf("cold start, %g×", load), load: steadily(load), from: 0.5, until: 20})
	}
	for _, load := range []float64{0.7, 3} {
		add(scenario{name: fmt.Sprintf("two gates, %g×", load), load: between(0, 5, 0.5, load), gates: 2})
	}
	for _, load := range []float64{1.2, 3} {
		add(scenario{name: fmt.Sprintf("clients retry three times at once, %g×", load), load: between(0, 5, 0.5, load), retries: 3})
	}
	for _, load := range []float64{0.9, 1.5, 3} {
		add(scenario{name: fmt.Sprintf("a fifth critical, %g×", load), load: between(0, 5, 0.5, load), critical: 0.2})
	}
	add(scenario{name: "deadline of four times the work, 3×", load: between(0, 5, 0.5, 3), deadline: 4})
	return all
}

// simulation returns the scenario for a server of so many workers.
func (s scenario) simulation(workers, runs int) simulation {
	mean := time.Duration(float64(workers) / scenarioCapacity * 1e9)
	work := simserver.Exponential(float64(mean))
	sim := simulation{
		from: seconds(s.from), until: seconds(s.until), good: time.Duration(s.deadline * float64(mean)), runs: runs, gates: s.gates,
		load: load{
			rate:    func(now int64) float64 { return scenarioCapacity * s.load(float64(now)/1e9) },
			work:    work,
			retries: s.retries,
		},
	}
	if s.slow != nil {
		sim.load.work = func(r *rand.Rand, now int64) int64 { return int64(float64(work(r, now)) * s.slow(float64(now)/1e9)) }
	}
	if s.critical > 0 {
		sim.load.critical = func(r *rand.Rand) bool { return r.Float64() < s.critical }
	}
	sim.server = func(t simserver.Timeline) simserver.Server {
		var server simserver.Server = &simserver.Pool{Timeline: t, Workers: workers}
		if s.shared {
			server = &simserver.Shared{Timeline: t, Processors: float64(workers)}
		}
		if s.processor {
			server = &simserver.Processor{Timeline: t}
		}
		if s.dependency != nil {
			return &dependent{server, t, func() int64 { return int64(s.dependency(float64(t.Now())/1e9) * float64(mean)) }}
		}
		return server
	}
	return sim
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// A dependent server waits for another after its own work, without a worker.
type dependent struct {
	simserver.Server
	time simserver.Timeline
	wait func() int64
}

// Serve implements [simserver.Server].
func (d *dependent) Serve(work int64, done func()) {
	d.Server.Serve(work, func() { d.time.After(d.wait(), done) })
}

// fixedLimits are those among which the best one is looked for.
var fixedLimits = []int{1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 34, 45, 60}

func newSemaphore(limit int) func() *limiter {
	return func() *limiter { return newGateOf(&overload.GateOptions{Limit: limit, MaxWait: -1}) }
}

// scenarios compares the gate with the best fixed limit for each scenario, and with the libraries that
// come closest at small servers.
func (b *bench) scenarios(workers int) {
	rivals := b.librariesOf("Vegas", "Envoy gradient")
	t := b.Table(fmt.Sprintf("%d workers: share of the capacity served in time", workers),
		"scenario", "best fixed limit", "served by it", ours, "of the best", rivals[0].name, rivals[1].name, "p99", "critical lost")
	runs := b.Size(b.seeds, 1)
	for _, s := range scenarios()[:b.Size(len(scenarios()), 1)] {
		if !strings.Contains(s.name, b.only) || s.processor && workers > 1 {
			continue
		}
		sim := s.simulation(workers, runs)
		serve := func(newLimiter func() *limiter) float64 {
			return b.run(library{make: newLimiter}, sim).good / scenarioCapacity
		}
		best, limit := 0.0, 0
		for _, l := range fixedLimits {
			if served := serve(newSemaphore(l)); served > best {
				best, limit = served, l
			}
		}
		vegas, envoy := serve(rivals[0].make), serve(rivals[1].make)
		all := b.run(libraries[0], sim)
		mine := all.good / scenarioCapacity
		lost := ""
		if s.critical > 0 {
			sim.critical = true
			c := b.run(libraries[0], sim)
			lost = fmt.Sprintf("%.2f %%", 100*(1-c.share))
		}
		b.Find(fmt.Sprintf("%d workers, %s", workers, s.name), "≥ 0.95 of the best fixed limit, and of rivals − 0.02",
			mine >= 0.95*best && mine >= max(vegas, envoy)-0.02, "%.3f, fixed %.3f, rivals %.3f", mine, best, max(vegas, envoy))
		t.Row(s.name, limit, two(best), two(mine), two(mine/best), two(vegas), two(envoy), fmt.Sprintf("%.1f", float64(all.p99)/float64(workers)/1e7/math.Log(100)), lost)
	}
}

func two(x float64) string { return harness.Decimals(2)(x) }

// librariesOf returns the libraries of these names.
func (b *bench) librariesOf(names ...string) (some []library) {
	for _, name := range names {
		for _, l := range libraries {
			if l.name == name {
				some = append(some, l)
			}
		}
	}
	return some
}
