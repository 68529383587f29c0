package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// A realCase is an HTTP server as a process of its own.
type realCase struct {
	name     string
	config   serverConfig
	deadline time.Duration
}

var realCases = []realCase{
	{"computes, GOMAXPROCS=1", serverConfig{Procs: 1, Mean: 10 * time.Millisecond}, 200 * time.Millisecond},
	{"computes, GOMAXPROCS=2", serverConfig{Procs: 2, Mean: 10 * time.Millisecond}, 200 * time.Millisecond},
	{"waits, GOMAXPROCS=1", serverConfig{Procs: 1, Workers: 10, Mean: 50 * time.Millisecond}, 500 * time.Millisecond},
	{"waits, GOMAXPROCS=2", serverConfig{Procs: 2, Workers: 10, Mean: 50 * time.Millisecond}, 500 * time.Millisecond},
}

// realServers sends requests to real servers at multiples of what they can serve. Limiters take turns at
// each load, so that what else the machine does concerns them all, and the capacity is measured before
// each load and after it.
func (b *bench) realServers() {
	lines := [][]string{{"case", "limiter", "offered", "goodput"}}
	contenders := librariesOf(ours, "failsafe-go", "gradient2", noLimiter)
	offers := harness.Scale(b.Run, []float64{0.8, 1.2, 2, 5, 10}, []float64{2})
	for _, c := range realCases[:b.Size(len(realCases), 1)] {
		if !strings.Contains(c.name, b.only) {
			continue
		}
		cells := map[string]string{}
		for _, times := range offers {
			results, capacity := b.loadReal(c, contenders, times)
			for i, s := range results {
				share := s.good / capacity
				cells[fmt.Sprint(contenders[i].name, times)] = fmt.Sprintf("%.2f, %d ms, %.0f %% (%s)", share, s.p99.Milliseconds(), 100*s.refused, s.lateness.Round(time.Millisecond))
				lines = append(lines, []string{c.name, contenders[i].name, strconv.FormatFloat(times, 'g', 3, 64), strconv.FormatFloat(share, 'f', 3, 64)})
			}
		}
		title := fmt.Sprintf("A real server that %s, %s a request: share of the capacity served within %s, p99, refused (how late the clients were, p99)",
			c.name, c.config.Mean, c.deadline)
		b.grid(title, offers, contenders, func(l library, times float64) string { return cells[fmt.Sprint(l.name, times)] })
	}
	harness.WriteCSV(b.realCSV, lines)
}

// A realResult is what a real server served of a load.
type realResult struct {
	summary
	lateness time.Duration // of the clients
}

// loadReal gives each contender its turn at a load.
func (b *bench) loadReal(c realCase, contenders []library, times float64) (results []realResult, capacity float64) {
	turn, warm := harness.Scale(b.Run, b.realTurn, time.Second), harness.Scale(b.Run, b.realTurn/5, time.Second/5)
	before := capacityOf(c.config, warm)
	for i, l := range contenders {
		config := c.config
		config.Limiter = l.name
		server := startServer(config)
		g := newGenerator(server.url, nil)
		g.run(simserver.Steady(before*times), turn, i+1)
		server.stop() // or else it would work on what clients have given up
		results = append(results, realResult{g.summary(turn*2/5, turn, c.deadline, false), g.lateness()})
	}
	return results, (before + capacityOf(c.config, warm)) / 2
}

// capacityOf is what a server without limiter serves to a few clients, each of which waits for its
// answer. They are enough to keep all workers busy. All requests take equally long, or else the capacity
// would differ by chance.
func capacityOf(c serverConfig, length time.Duration) float64 {
	c.Limiter, c.Equal = noLimiter, true
	s := startServer(c)
	defer s.stop()
	g := newGenerator(s.url, nil)
	var served atomic.Int64
	begin := time.Now()
	took, _ := harness.Concurrently(max(4, 2*c.Workers), func(int) error {
		for time.Since(begin) < length || served.Load() == 0 && time.Since(begin) < time.Minute {
			if status, err := g.get(); err == nil && status == http.StatusNoContent {
				served.Add(1)
			}
		}
		return nil
	})
	if served.Load() == 0 {
		harness.Failf("server serves nothing")
	}
	return float64(served.Load()) / took.Seconds()
}
