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
	"strconv"
	"sync/atomic"
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
		{Name: "saturated", Run: func() { b.denySaturated(1); b.denySaturated(10); b.denySaturated(100) }},
		{Name: "healthy", Run: b.healthyPath},
		{Name: "hang", Run: b.hang},
		{Name: "sentinel", Run: b.sentinelFailover},
		{Name: "cluster", Run: b.clusterFailover},
		{Name: "outage", Run: b.outage},
	})
}

// The timeouts of a call: long if nothing is to fail, or the default.
const patient, usual = 10 * time.Second, 50 * time.Millisecond

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

// leaseHotKey takes one key below its rate, with a lease and without, in turns.
func (b *bench) leaseHotKey() {
	server, store := b.StartStore(patient)
	lease := penstock.WithLease(store, nil)
	defer func() { _ = lease.Close(context.Background()) }()
	const limit = "20000000/1s burst=15000"
	without := b.contender("without", server, allow(limiter(store, limit+" name=bare"), "hot"))
	with := b.contender("with", server, allow(limiter(lease, limit+" name=leased"), "hot"))
	harness.TakeTurns(b.Rounds, without, with)
	decisions := sum(with, "decisions")
	if denied := decisions - sum(with, "admitted"); denied*100 > decisions {
		b.Fatalf("%.0f of %.0f were denied: the load was not below the rate of the key", denied, decisions)
	}
	times, trips := with.To(without, "rate"), 100*sum(with, "calls")/decisions
	b.Find("hot key with a lease, 64 callers, B = 15,000, load below its rate",
		"≥ 20× without, ≤ 1.5 calls per 100 decisions", times.Median >= 20 && trips <= 1.5,
		"%s, %.2f calls per 100; %.0f and %.0f thousand a second", times, trips, with.Median("rate")/1000, without.Median("rate")/1000)
}

// leaseAboveRate runs eight nodes, each with its own client, with far more load than the
// limit.
func (b *bench) leaseAboveRate() {
	server, _ := b.StartStore(patient)
	const nodes, burst, perSecond = 8, 6000, 6000
	var lims []*penstock.Limiter
	for range nodes {
		lease := penstock.WithLease(b.OpenStore("redis://"+server.Addr, patient), &penstock.LeaseOptions{Nodes: nodes})
		defer func() { _ = lease.Close(context.Background()) }()
		lims = append(lims, limiter(lease, fmt.Sprintf("%d/1s burst=%d", perSecond, burst)))
	}
	var next atomic.Int64
	var t counts
	calls := scripts(server, func() {
		t = callPaced(func(at time.Duration) bool { return at < 2*b.span }, 5*perSecond, 2*nodes, func(*rand.Rand) (penstock.Decision, error) {
			return lims[next.Add(1)%nodes].Allow(context.Background(), "hot")
		})
	})
	harness.Check(t.First)
	trips := 100 * float64(calls) / float64(t.Calls)
	admitted := t.admitted() / (burst + perSecond*t.took.Seconds())
	b.Find("hot key with a lease, eight nodes, B = 6,000, load five times its rate",
		"≤ 1.5 calls per 100 decisions, ≥ 97 % of what the limit allows", trips <= 1.5 && admitted >= 0.97 && admitted <= 1.1,
		"%.2f calls per 100, %.1f %%", trips, 100*admitted)
}

// mixedTraffic takes nine times in ten from a few spent keys, and otherwise from one of
// many that are not.
func mixedTraffic(store penstock.Store) takeFunc {
	good, spent := limiter(store, "1000/1s name=good"), limiter(store, "1/10s name=spent")
	return func(rng *rand.Rand) (penstock.Decision, error) {
		if rng.IntN(10) == 0 {
			return good.Allow(context.Background(), "good"+strconv.Itoa(rng.IntN(10_000)))
		}
		return spent.Allow(context.Background(), "bad"+strconv.Itoa(rng.IntN(100)))
	}
}

// denyAbusers compares a store with and without a deny cache, in turns.
func (b *bench) denyAbusers() {
	server, store := b.StartStore(patient)
	without := b.contender("without", server, mixedTraffic(store))
	with := b.contender("with", server, mixedTraffic(penstock.WithDenyCache(store, nil)))
	harness.TakeTurns(b.Rounds, without, with)
	times, part := with.To(without, "rate"), sum(with, "calls")/sum(with, "decisions")
	b.Find("deny cache, 90 % spent keys, 64 callers",
		"≥ 5× without, calls ≤ 15 % of decisions", times.Median >= 5 && part <= 0.15, "%s, %.1f %%", times, 100*part)
}

// denySaturated takes ten times the limit of a few keys, at a steady pace, with a deny
// cache and without.
func (b *bench) denySaturated(keys int) {
	server, store := b.StartStore(patient)
	const perSecond = 10_000
	each := perSecond / 10 / keys
	burst := max(each/4, 5)
	run := func(store penstock.Store, name string) (t counts, calls int) {
		lim := limiter(store, fmt.Sprintf("%d/1s burst=%d name=%s", each, burst, name))
		calls = scripts(server, func() {
			t = callPaced(func(at time.Duration) bool { return at < b.span }, perSecond, 32, func(rng *rand.Rand) (penstock.Decision, error) {
				return lim.Allow(context.Background(), strconv.Itoa(rng.IntN(keys)))
			})
		})
		harness.Check(t.First)
		return t, calls
	}
	bare, _ := run(store, "bare")
	cached, calls := run(penstock.WithDenyCache(store, nil), "cached")
	part := float64(calls) / float64(cached.Calls)
	// The runs differ slightly in length.
	share := func(t counts) float64 {
		return t.admitted() / (float64(keys) * (float64(burst) + float64(each)*t.took.Seconds()))
	}
	ratio := share(cached) / share(bare)
	kept := min(bare.rate(), cached.rate()) >= 0.9*perSecond
	if !kept {
		b.Logf("%d keys: the machine is too busy for %d decisions a second", keys, perSecond)
	}
	b.Find(fmt.Sprintf("deny cache, %d saturated keys, 90 %% denied, 10,000 decisions a second", keys),
		"calls ≤ 15 % of decisions, admitted within 1 % of without", kept && part <= 0.15 && ratio >= 0.99 && ratio <= 1.01,
		"%.1f %%, admitted %.2f %% of without, which was %.1f %% of what the limit allows", 100*part, 100*ratio, 100*share(bare))
}

// healthyPath compares a store with each wrapper and without, in turns.
func (b *bench) healthyPath() {
	server, store := b.StartStore(patient)
	contender := func(name string, store penstock.Store) *harness.Contender {
		lim := limiter(store, "1000000/1s")
		return b.contender(name, server, func(rng *rand.Rand) (penstock.Decision, error) {
			return lim.Allow(context.Background(), strconv.Itoa(rng.IntN(10_000)))
		})
	}
	bare := contender("bare", store)
	fallback := contender("fallback", penstock.WithFallback(store, nil, &penstock.FallbackOptions{Timeout: patient}))
	cached := contender("deny cache", penstock.WithDenyCache(store, nil))
	all := []*harness.Contender{bare, fallback, cached}
	for range b.Rounds { // in another order each time: the first meets an idle server
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		harness.TakeTurns(1, all...)
	}
	find := func(c *harness.Contender, most float64) {
		kept := c.To(bare, "rate")
		b.Find(c.Name+" on a healthy path, 64 callers", fmt.Sprintf("costs ≤ %.0f %% of throughput", most),
			kept.Median >= 1-most/100, "%s of the throughput without", kept)
	}
	find(fallback, 10)
	find(cached, 5)
}
