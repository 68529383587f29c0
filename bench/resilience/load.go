package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// callers is the number of concurrent callers.
const callers = 64

// A takeFunc makes one request.
type takeFunc func(rng *rand.Rand) (penstock.Decision, error)

func allow(lim *penstock.Limiter, key string) takeFunc {
	return func(*rand.Rand) (penstock.Decision, error) { return lim.Allow(context.Background(), key) }
}

// A counts is the results of a load.
type counts struct {
	decisions, admitted, errors atomic.Int64
	first                       atomic.Pointer[error]
	took                        time.Duration
}

func (t *counts) record(d penstock.Decision, err error) {
	t.decisions.Add(1)
	switch {
	case err != nil:
		t.errors.Add(1)
		t.first.CompareAndSwap(nil, &err)
	case d.Allowed:
		t.admitted.Add(d.Granted)
	}
}

// failed returns the first error of a caller.
func (t *counts) failed() error {
	if err := t.first.Load(); err != nil {
		return *err
	}
	return nil
}

func (t *counts) rate() float64 { return float64(t.decisions.Load()) / t.took.Seconds() }

// add adds the results of another caller.
func (t *counts) add(other *counts) {
	t.decisions.Add(other.decisions.Load())
	t.admitted.Add(other.admitted.Load())
	t.errors.Add(other.errors.Load())
	t.first.CompareAndSwap(nil, other.first.Load())
}

// atATime is how many calls a caller makes between readings of the clock, which cost a
// part of a decision.
const atATime = 8

// callFreely runs all callers as fast as they can, and each at least once. Each counts for itself,
// to avoid contention.
func callFreely(length time.Duration, take takeFunc) *counts {
	t := &counts{}
	t.run(callers, func(caller int, begin time.Time) {
		rng, own := rand.New(rand.NewPCG(uint64(caller), 1)), &counts{}
		for first := true; first || time.Since(begin) < length; first = false {
			for range atATime {
				own.record(take(rng))
			}
		}
		t.add(own)
	})
	return t
}

// callPaced runs a few callers with so many calls a second in total, for as long as a condition holds,
// which gets the time since the begin. Late callers catch up.
func callPaced(on func(at time.Duration) bool, perSecond float64, callers int, take takeFunc) *counts {
	t := &counts{}
	t.run(callers, func(caller int, begin time.Time) {
		rng := rand.New(rand.NewPCG(uint64(caller), 2))
		decisions := 0
		for at := time.Duration(0); on(at); at = time.Since(begin) {
			due := int(at.Seconds() * perSecond / float64(callers))
			for ; decisions < due; decisions++ {
				t.record(take(rng))
			}
			<-time.After(time.Millisecond)
		}
	})
	return t
}

// lasting is the condition of a load of a given length.
func lasting(length time.Duration) func(at time.Duration) bool {
	return func(at time.Duration) bool { return at < length }
}

func (t *counts) run(callers int, call func(caller int, begin time.Time)) {
	begin := time.Now()
	t.took, _ = harness.Concurrently(callers, func(i int) error {
		call(i, begin)
		return nil
	})
}

// scripts returns how many scripts a server runs meanwhile.
func scripts(server *redistest.Server, load func()) int {
	before, _ := harness.InfoOf(server).Scripts()
	load()
	after, _ := harness.InfoOf(server).Scripts()
	return after - before
}

// contender returns calls that are made freely. Its figures are the rate, decisions, what of them was
// admitted, and the calls of Redis.
func (b *bench) contender(name string, server *redistest.Server, take takeFunc) *harness.Contender {
	return &harness.Contender{Name: name, Measure: func(c *harness.Contender) {
		var t *counts
		c.Add("calls", float64(scripts(server, func() { t = callFreely(b.Turn, take) })))
		harness.Check(t.failed())
		c.Add("rate", t.rate())
		c.Add("decisions", float64(t.decisions.Load()))
		c.Add("admitted", float64(t.admitted.Load()))
	}}
}

// sum returns the sum of a figure over all turns.
func sum(c *harness.Contender, figure string) (total float64) {
	for _, x := range c.Of(figure) {
		total += x
	}
	return total
}
