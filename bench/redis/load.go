package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A load is the settings of redis-benchmark.
type load struct {
	connections, pipeline int
	requests              int
	keys                  int // of which each request takes one at random
}

// run sends the shape and returns the rate, in requests a second.
func (l load) run(srv *server, s *shape) (rate float64, err error) {
	words := append([]string{
		"-p", strconv.Itoa(srv.Port), "--csv",
		"-c", strconv.Itoa(l.connections), "-P", strconv.Itoa(l.pipeline),
		"-n", strconv.Itoa(l.requests), "-r", strconv.Itoa(l.keys),
	}, s.open()...)
	var stderr bytes.Buffer
	cmd := exec.Command("redis-benchmark", words...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark with %s: %w: %s", s.name, err, &stderr)
	}
	return measure.BenchmarkRate(out)
}

// A benchmarkRun is one shape under redis-benchmark, and its measurements, round by
// round.
type benchmarkRun struct {
	shape  *shape
	rates  []float64 // requests a second
	server []float64 // microseconds of the server's processor a request
	inside []float64 // microseconds inside the command a request
}

// benchmarkInTurns runs the shapes in turns under a load, and verifies after each that
// every request was granted and that the number of keys is unchanged.
func benchmarkInTurns(srv *server, l load, rounds int, shapes []*shape) ([]*benchmarkRun, error) {
	runs := make([]*benchmarkRun, len(shapes))
	for i, s := range shapes {
		runs[i] = &benchmarkRun{shape: s}
	}
	for range rounds {
		for _, p := range runs {
			l := l.fitted(p.shape)
			d, err := p.turn(srv, l)
			if err == nil {
				err = p.shape.verifyGrants(d, l.rounded())
			}
			if err == nil && (d.keys != 0 || d.expires != 0) {
				err = fmt.Errorf("%s: %d new keys during the load, want none", p.shape.name, d.keys)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return runs, nil
}

// fitted returns the load with more requests for a command without a script, so that its
// turn is about as long. Otherwise the start of redis-benchmark would cost it more, and
// favour the scripts.
func (l load) fitted(s *shape) load {
	if s.text == "" {
		l.requests *= 4
	}
	return l
}

// rounded returns how many requests are sent: whole pipelines.
func (l load) rounded() int { return (l.requests + l.pipeline - 1) / l.pipeline * l.pipeline }

func (p *benchmarkRun) turn(srv *server, l load) (serverStats, error) {
	before, err := srv.stats()
	if err != nil {
		return serverStats{}, err
	}
	rate, err := l.run(srv, p.shape)
	if err != nil {
		return serverStats{}, err
	}
	after, err := srv.stats()
	if err != nil {
		return serverStats{}, err
	}
	d := after.since(before)
	sent := float64(l.rounded())
	p.rates = append(p.rates, rate)
	p.server = append(p.server, 1e6*d.cpu/sent)
	p.inside = append(p.inside, float64(d.commands[p.shape.command()].micros)/sent)
	return d, nil
}
