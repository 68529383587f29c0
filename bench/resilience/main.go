// Command resilience measures the wrappers of a Redis store: leases for hot keys, the
// deny cache for spent keys, the fallback while Redis hangs, fails over, or is killed and
// comes back empty, and their cost on a healthy path. It starts its own servers and prints Markdown.
//
//	go run ./resilience                 # some minutes
//	go run ./resilience -run 'lease'    # some cases
//	go run ./resilience -quick          # a few seconds, to see that it runs
//	go run ./resilience -run outage -csv results/outage.csv
//
// Calls to Redis are counted by Redis. Ratios are medians over rounds in which the
// contenders take turns.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct {
	*harness.Run
	span time.Duration // of a case under paced load
	csv  string        // where the samples of the outage go
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("resilience", stdout, stderr)}
	b.TurnFlags("rounds", "turn", harness.Turns{Rounds: 20, Turn: 250 * time.Millisecond}, harness.Turns{Rounds: 2, Turn: 50 * time.Millisecond})
	b.Flags.DurationVar(&b.span, "span", 5*time.Second, "length of a case with paced load")
	b.Flags.StringVar(&b.csv, "csv", "", "write the samples of the outage to this `file`, for bench/plots")
	b.Settings = func() string { return fmt.Sprintf("%d rounds of %s, paced load for %s", b.Rounds, b.Turn, b.span) }
	b.Prepare = func() {
		if b.Quick {
			b.span = 600 * time.Millisecond
		}
	}
	return b.Main(args, []harness.Case{
		{Name: "lease", Run: b.leaseHotKey},
		{Name: "overasked", Run: b.leaseAboveRate},
		{Name: "abusers", Run: b.denyAbusers},
		{Name: "saturated", Run: b.denySaturated},
		{Name: "healthy", Run: b.healthyPath},
		{Name: "hang", Run: b.hang},
		{Name: "sentinel", Run: b.sentinelFailover},
		{Name: "cluster", Run: b.clusterFailover},
		{Name: "outage", Run: b.outage},
	})
}

// The timeouts of a call: long if nothing is to fail, or the default.
const (
	patient = 10 * time.Second
	usual   = 50 * time.Millisecond
)

func limiter(store penstock.Store, text string) *penstock.Limiter {
	return harness.Must(penstock.New(store, harness.Must(penstock.ParseLimit(text))))
}

// callers is the number of concurrent callers.
const callers = 64

// A takeFunc makes one request.
type takeFunc func(rng *rand.Rand) (penstock.Decision, error)

func allow(lim *penstock.Limiter, key string) takeFunc {
	return func(*rand.Rand) (penstock.Decision, error) { return lim.Allow(context.Background(), key) }
}

// counts are the results of a load.
type counts struct {
	harness.Counts
	took time.Duration
}

func (t *counts) record(d penstock.Decision, err error) { t.Count(err == nil && d.Allowed, err) }

func (t *counts) admitted() float64 { return float64(t.Calls - t.Denied - t.Failed) }

func (t *counts) rate() float64 { return float64(t.Calls) / t.took.Seconds() }

// load runs callers, each of which counts for itself, to avoid contention.
func load(callers int, call func(own *counts, rng *rand.Rand, begin time.Time)) (t counts) {
	all, begin := make([]counts, callers), time.Now()
	t.took, _ = harness.Concurrently(callers, func(i int) error {
		call(&all[i], rand.New(rand.NewPCG(uint64(i), 1)), begin)
		return nil
	})
	for _, own := range all {
		t.Add(own.Counts)
	}
	return t
}

// atATime is how many calls a caller makes between readings of the clock, which cost a
// part of a decision.
const atATime = 8

// callFreely runs all callers as fast as they can, and each at least once.
func callFreely(length time.Duration, take takeFunc) counts {
	return load(callers, func(own *counts, rng *rand.Rand, begin time.Time) {
		for first := true; first || time.Since(begin) < length; first = false {
			for range atATime {
				own.record(take(rng))
			}
		}
	})
}

// callPaced runs a few callers with so many calls a second in total, for as long as a condition holds,
// which gets the time since the begin. Late callers catch up.
func callPaced(on func(at time.Duration) bool, perSecond float64, callers int, take takeFunc) counts {
	return load(callers, func(own *counts, rng *rand.Rand, begin time.Time) {
		for at := time.Duration(0); on(at); at = time.Since(begin) {
			due := int(at.Seconds() * perSecond / float64(callers))
			for own.Calls < due {
				own.record(take(rng))
			}
			<-time.After(time.Millisecond)
		}
	})
}

// inBackground is the same until it is stopped.
func inBackground(perSecond float64, callers int, take takeFunc) (stop func() counts) {
	return harness.Background(func(stopped func() bool) counts {
		return callPaced(func(time.Duration) bool { return !stopped() }, perSecond, callers, take)
	})
}

// lasting is the condition of a load of a given length.
func lasting(length time.Duration) func(at time.Duration) bool {
	return func(at time.Duration) bool { return at < length }
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
		var t counts
		c.Add("calls", float64(scripts(server, func() { t = callFreely(b.Turn, take) })))
		harness.Check(t.First)
		c.Add("rate", t.rate())
		c.Add("decisions", float64(t.Calls))
		c.Add("admitted", t.admitted())
	}}
}

// sum returns the sum of a figure over all turns.
func sum(c *harness.Contender, figure string) (total float64) {
	for _, x := range c.Of(figure) {
		total += x
	}
	return total
}
