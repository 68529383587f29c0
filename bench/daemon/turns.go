package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// callers is how many ask at once, as a proxy with many requests does.
const callers = 64

// keyCount is how many keys are asked about in turn.
const keyCount = 10_000

// A contender is a server under load.
type contender struct {
	server *process
	behind *process // what the server asks in turn, such as redis-server; or nil
	// ask makes the n-th call of a caller and returns an error unless the answer
	// is what it should be.
	ask func(caller, n int) error

	result
	asked atomic.Int64
}

// takeTurns presses the contenders one after the other, again and again.
func (b *bench) takeTurns(title string, cs ...*contender) error {
	for _, c := range cs {
		c.title, c.who = title, c.server.name
		if err := c.press(b.turn / 4); err != nil { // to warm up
			return fmt.Errorf("%s: %w", c.server.name, err)
		}
		c.rates, c.p99, c.processor, c.beyond, c.load = nil, nil, nil, nil, nil
	}
	for range b.pairs {
		for _, c := range cs {
			if err := c.press(b.turn); err != nil {
				return fmt.Errorf("%s: %w", c.server.name, err)
			}
		}
	}
	for _, c := range cs {
		c.toFloor = c.against(cs[0])
		b.results = append(b.results, c.result)
	}
	return nil
}

func (c *contender) against(other *contender) measure.Spread {
	return measure.SpreadOf(measure.Ratios(c.rates, other.rates))
}

// press lets all callers ask for a while.
func (c *contender) press(length time.Duration) error {
	before, err := c.spent()
	if err != nil {
		return err
	}
	latencies, errs := make([][]time.Duration, callers), make([]error, callers)
	begin := time.Now()
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() { latencies[i], errs[i] = c.call(i, begin.Add(length)) })
	}
	running.Wait()
	took := time.Since(begin)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	after, err := c.spent()
	c.note(slices.Concat(latencies...), took, after.since(before))
	return err
}

// A bill is the processor time that all who share the machine have used.
type bill struct{ load, server, behind time.Duration }

func (b bill) since(a bill) bill {
	return bill{load: b.load - a.load, server: b.server - a.server, behind: b.behind - a.behind}
}

func (c *contender) spent() (b bill, err error) {
	if b.load, err = ownProcessor(); err != nil {
		return b, err
	}
	if c.behind != nil {
		if b.behind, err = c.behind.processor(); err != nil {
			return b, err
		}
	}
	b.server, err = c.server.processor()
	return b, err
}

// call asks until the time is up.
func (c *contender) call(caller int, until time.Time) ([]time.Duration, error) {
	var latencies []time.Duration
	for at := time.Now(); at.Before(until); {
		if err := c.ask(caller, int(c.asked.Add(1))); err != nil {
			return nil, err
		}
		now := time.Now()
		latencies = append(latencies, now.Sub(at))
		at = now
	}
	return latencies, nil
}

func (c *contender) note(latencies []time.Duration, took time.Duration, spent bill) {
	slices.Sort(latencies)
	calls := float64(len(latencies))
	c.rates = append(c.rates, calls/took.Seconds())
	c.p99 = append(c.p99, float64(latencies[len(latencies)*99/100])/1e6)
	c.processor = append(c.processor, float64(spent.server)/1e3/calls)
	c.load = append(c.load, float64(spent.load)/1e3/calls)
	if c.behind != nil {
		c.beyond = append(c.beyond, float64(spent.behind)/1e3/calls)
	}
}
