package main

import (
	"fmt"
	"net/http"
	"slices"
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

// realServers sends requests to real servers at multiples of what they can serve.
func (b *bench) realServers() {
	lines := [][]string{{"case", "limiter", "offered", "goodput"}}
	offers := harness.Scale(b.Run, []float64{0.8, 1.2, 2, 5, 10}, []float64{2})
	hashes := hashesPerMilli()
	for _, c := range realCases[:b.Size(len(realCases), 1)] {
		c.config.Hashes = hashes
		contenders := librariesOf(ours, "failsafe-go", "gradient2", noLimiter)
		if c.config.Workers == 0 {
			contenders = append(contenders, library{name: refuseAll})
		}
		title := fmt.Sprintf("A real server that %s, %s a request: share served within %s of what it could (least and most), p99, refused", c.name, c.config.Mean, c.deadline)
		b.grid(title, offers, contenders, func(l library, times float64) string {
			if !strings.Contains(fmt.Sprintf("%s, %s, %g×", l.name, c.name, times), b.only) {
				return ""
			}
			share, cell := b.loadReal(c, l.name, times)
			lines = append(lines, []string{c.name, l.name, strconv.FormatFloat(times, 'g', 3, 64), strconv.FormatFloat(share, 'f', 3, 64)})
			return cell
		})
	}
	harness.WriteCSV(b.realCSV, lines)
}

// loadReal returns which share a server serves of what it could: of the requests, or of its capacity if they are more
// than that. It is the median of several turns. The capacity is measured before each turn and after it.
func (b *bench) loadReal(c realCase, limiter string, times float64) (share float64, cell string) {
	turn, runs, shares, mean := harness.Scale(b.Run, b.realTurn, time.Second), b.Size(3, 1), []float64{}, summary{}
	capacity := b.capacityOf(c.config, turn/5)
	c.config.Limiter = limiter
	for run := range runs {
		rate := capacity * times
		if limiter == refuseAll { // those beyond the capacity
			rate = max(rate-capacity, 1)
		}
		server := startServer(b.under, c.config)
		g := newGenerator(server.url, nil)
		g.run(simserver.Steady(rate), turn, run+1)
		computed := server.stop() // or else it would work on what clients have given up
		one := g.summary(turn*2/5, turn, c.deadline, false)
		one.good += computed / time.Since(g.begin).Seconds()
		before := capacity
		capacity = b.capacityOf(c.config, turn/5)
		shares = append(shares, max(one.share, 2*one.good/(before+capacity)))
		mean.add(one, runs)
	}
	slices.Sort(shares)
	share = shares[runs/2]
	cell = fmt.Sprintf("%.2f (%.2f–%.2f)", share, shares[0], shares[runs-1])
	if limiter != refuseAll {
		cell += fmt.Sprintf(", %d ms, %.0f %%", mean.p99.Milliseconds(), 100*mean.refused)
	}
	return share, cell
}

// capacityOf is what a server without limiter serves to a few clients, each of which waits for its
// answer. They are enough to keep all workers busy. All requests take equally long, or else the capacity
// would differ by chance.
func (b *bench) capacityOf(c serverConfig, length time.Duration) float64 {
	c.Limiter, c.Equal = noLimiter, true
	s := startServer(b.under, c)
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
