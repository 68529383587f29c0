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

// scenarioOf returns a scenario for a server of so many workers.
func scenarioOf(s simserver.Scenario, workers, runs int) simulation {
	sim := simulation{
		from: seconds(s.From), until: seconds(s.Until), good: time.Duration(s.Deadline * simserver.MeanWork(workers)), runs: runs, gates: s.Gates,
		load:   load{rate: s.Rate, work: s.Work(workers, simserver.ExponentialWork), retries: s.Retries},
		server: func(t simserver.Timeline) simserver.Server { return s.NewServer(t, workers) },
	}
	if s.Critical > 0 {
		sim.load.critical = func(r *rand.Rand) bool { return r.Float64() < s.Critical }
	}
	return sim
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// fixedLimits are those among which the best one is looked for.
var fixedLimits = []int{1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 34, 45, 60}

func newSemaphore(limit int) func() *limiter {
	return func() *limiter { return newGateOf(&overload.GateOptions{Limit: limit, MaxWait: -1}) }
}

// scenarios compares the gate with the best fixed limit for each scenario, and with the libraries that
// come closest at small servers.
func (b *bench) scenarios(workers int) {
	rivals, runs := librariesOf("Vegas", "Envoy gradient"), b.Size(b.seeds, 1)
	t := b.Table(fmt.Sprintf("%d workers: share of the capacity served in time, in the mean of %d runs", workers, runs),
		"scenario", "best fixed limit", "served by it", ours, "of the best", rivals[0].name, rivals[1].name, "p99", "critical lost")
	all := simserver.Scenarios()
	for _, s := range all[:b.Size(len(all), 1)] {
		if !strings.Contains(s.Name, b.only) || s.RunQueue && workers > 1 {
			continue
		}
		sim := scenarioOf(s, workers, runs)
		serve := func(newLimiter func() *limiter) float64 {
			return b.run(library{make: newLimiter}, sim).good / simserver.ScenarioCapacity
		}
		best, limit := 0.0, 0
		for _, l := range fixedLimits {
			if served := serve(newSemaphore(l)); served > best {
				best, limit = served, l
			}
		}
		vegas, envoy := serve(rivals[0].make), serve(rivals[1].make)
		ours := b.run(libraries[0], sim)
		mine := ours.good / simserver.ScenarioCapacity
		lost := ""
		if s.Critical > 0 {
			sim.critical = true
			c := b.run(libraries[0], sim)
			lost = fmt.Sprintf("%.2f %%", 100*(1-c.share))
		}
		b.Find(fmt.Sprintf("%d workers, %s", workers, s.Name), "≥ 0.95 of the best fixed limit, and of rivals − 0.02",
			mine >= 0.95*best && mine >= max(vegas, envoy)-0.02, "%.3f, fixed %.3f, rivals %.3f", mine, best, max(vegas, envoy))
		t.Row(s.Name, limit, two(best), two(mine), two(mine/best), two(vegas), two(envoy), fmt.Sprintf("%.1f", float64(ours.p99)/float64(workers)/1e7/math.Log(100)), lost)
	}
}

func two(x float64) string { return harness.Decimals(2)(x) }

// librariesOf returns the libraries of these names.
func librariesOf(names ...string) (some []library) {
	for _, name := range names {
		for _, l := range libraries {
			if l.name == name {
				some = append(some, l)
			}
		}
	}
	return some
}
