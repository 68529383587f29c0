package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A load is how redis-benchmark is to press a server.
type load struct {
	connections, pipeline int
	requests              int
	keys                  int // of which each request takes one at random
}

// press sends the shape and returns the rate, in requests a second.
func (l load) press(srv *server, s *shape) (rate float64, err error) {
	words := append([]string{
		"-p", strconv.Itoa(srv.Port), "--csv",
		"-c", strconv.Itoa(l.connections), "-P", strconv.Itoa(l.pipeline),
		"-n", strconv.Itoa(l.requests), "-r", strconv.Itoa(l.keys),
	}, s.open()...)
	var complaint bytes.Buffer
	cmd := exec.Command("redis-benchmark", words...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark with %s: %w: %s", s.name, err, &complaint)
	}
	return measure.BenchmarkRate(out)
}

// A press is one shape in a race by redis-benchmark, and what was measured of it,
// round by round.
type press struct {
	shape  *shape
	rates  []float64 // requests a second
	server []float64 // microseconds of the server's processor a request
	inside []float64 // microseconds inside the command a request
}

// pressInTurns lets the shapes take turns under a load, and proves after each
// that every request was granted and that no key has come or gone.
func pressInTurns(srv *server, l load, rounds int, shapes []*shape) ([]*press, error) {
	presses := make([]*press, len(shapes))
	for i, s := range shapes {
		presses[i] = &press{shape: s}
	}
	for range rounds {
		for _, p := range presses {
			l := l.fitted(p.shape)
			d, err := p.turn(srv, l)
			if err == nil {
				err = p.shape.proveGrants(d, l.rounded())
			}
			if err == nil && (d.keys != 0 || d.expires != 0) {
				err = fmt.Errorf("%s: %d keys came while the load was on, want none", p.shape.name, d.keys)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return presses, nil
}

// fitted returns the load with more requests for a command without a script, so
// that its turn is about as long. What redis-benchmark needs to begin would
// otherwise weigh more on it, and flatter the scripts.
func (l load) fitted(s *shape) load {
	if s.text == "" {
		l.requests *= 4
	}
	return l
}

// rounded returns how many requests are really sent: whole pipelines.
func (l load) rounded() int { return (l.requests + l.pipeline - 1) / l.pipeline * l.pipeline }

func (p *press) turn(srv *server, l load) (census, error) {
	before, err := srv.census()
	if err != nil {
		return census{}, err
	}
	rate, err := l.press(srv, p.shape)
	if err != nil {
		return census{}, err
	}
	after, err := srv.census()
	if err != nil {
		return census{}, err
	}
	d := after.since(before)
	sent := float64(l.rounded())
	p.rates = append(p.rates, rate)
	p.server = append(p.server, 1e6*d.cpu/sent)
	p.inside = append(p.inside, float64(d.commands[p.shape.command()].micros)/sent)
	return d, nil
}
