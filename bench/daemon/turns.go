package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// callers is the number of concurrent calls, as of a busy proxy.
const callers = 64

// keyCount is the number of keys that are used in turn.
const keyCount = 10_000

// A contender is a server under load.
type contender struct {
	server  *process
	backend *process // the server's own server, such as redis-server; or nil
	// load makes calls until the time is up, and returns how long each took, or an error if a
	// response is wrong.
	load func(until time.Time) ([]time.Duration, error)

	result
}

// takeTurns runs the contenders in turns.
func (b *bench) takeTurns(title string, cs ...*contender) error {
	for _, c := range cs {
		c.title = title
		if c.name == "" {
			c.name = c.server.name
		}
		if err := c.runTurn(b.turn / 4); err != nil { // warm up
			return fmt.Errorf("%s: %w", c.server.name, err)
		}
		c.rates, c.p99, c.serverCPU, c.backendCPU, c.loadCPU = nil, nil, nil, nil, nil
	}
	for range b.pairs {
		for _, c := range cs {
			if err := c.runTurn(b.turn); err != nil {
				return fmt.Errorf("%s: %w", c.server.name, err)
			}
		}
	}
	for _, c := range cs {
		c.toFloor = c.ratioTo(cs[0])
		b.results = append(b.results, c.result)
	}
	return nil
}

func (c *contender) ratioTo(other *contender) measure.Spread {
	return measure.SpreadOf(measure.Ratios(c.rates, other.rates))
}

// cheaperThan returns how many times as much processor time a call costs the other. Unlike a
// ratio of rates, it depends little on what else runs on the machine.
func (c *contender) cheaperThan(other *contender) measure.Spread {
	return measure.SpreadOf(measure.Ratios(other.totalCPU(), c.totalCPU()))
}

// totalCPU returns the processor time of a call in each turn, of load, server and backend.
func (c *contender) totalCPU() []float64 {
	all := slices.Clone(c.serverCPU)
	for i := range all {
		all[i] += c.loadCPU[i]
		if c.backend != nil {
			all[i] += c.backendCPU[i]
		}
	}
	return all
}

// runTurn runs all callers for a while.
func (c *contender) runTurn(length time.Duration) error {
	before, err := c.cpuTimes()
	if err != nil {
		return err
	}
	begin := time.Now()
	latencies, err := c.load(begin.Add(length))
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := c.cpuTimes()
	c.record(latencies, took, after.since(before))
	return err
}

// cpuTimes is the processor time of the load, the server and its backend.
type cpuTimes struct{ load, server, backend time.Duration }

func (b cpuTimes) since(a cpuTimes) cpuTimes {
	return cpuTimes{load: b.load - a.load, server: b.server - a.server, backend: b.backend - a.backend}
}

func (c *contender) cpuTimes() (b cpuTimes, err error) {
	if b.load, err = ownProcessor(); err != nil {
		return b, err
	}
	if c.backend != nil {
		if b.backend, err = c.backend.processor(); err != nil {
			return b, err
		}
	}
	b.server, err = c.server.processor()
	return b, err
}

// loadByCallers returns a load of concurrent callers, each of which makes one call after the other.
// send makes the n-th call.
func loadByCallers(send func(n int) error) func(until time.Time) ([]time.Duration, error) {
	var sent atomic.Int64
	return func(until time.Time) ([]time.Duration, error) {
		latencies, errs := make([][]time.Duration, callers), make([]error, callers)
		var running sync.WaitGroup
		for i := range callers {
			running.Go(func() { latencies[i], errs[i] = sendUntil(until, &sent, send) })
		}
		running.Wait()
		return slices.Concat(latencies...), errors.Join(errs...)
	}
}

// sendUntil makes calls until the time is up, at least one.
func sendUntil(until time.Time, sent *atomic.Int64, send func(n int) error) ([]time.Duration, error) {
	var latencies []time.Duration
	for at := time.Now(); len(latencies) == 0 || at.Before(until); {
		if err := send(int(sent.Add(1))); err != nil {
			return nil, err
		}
		now := time.Now()
		latencies = append(latencies, now.Sub(at))
		at = now
	}
	return latencies, nil
}

func (c *contender) record(latencies []time.Duration, took time.Duration, spent cpuTimes) {
	slices.Sort(latencies)
	calls := float64(len(latencies))
	c.rates = append(c.rates, calls/took.Seconds())
	c.p99 = append(c.p99, float64(latencies[len(latencies)*99/100])/1e6)
	c.serverCPU = append(c.serverCPU, float64(spent.server)/1e3/calls)
	c.loadCPU = append(c.loadCPU, float64(spent.load)/1e3/calls)
	if c.backend != nil {
		c.backendCPU = append(c.backendCPU, float64(spent.backend)/1e3/calls)
	}
}
