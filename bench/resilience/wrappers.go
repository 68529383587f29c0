package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

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
		t = callPaced(lasting(2*b.span), 5*perSecond, 2*nodes, func(*rand.Rand) (penstock.Decision, error) {
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
func (b *bench) denySaturated() {
	server, store := b.StartStore(patient)
	for _, keys := range []int{1, 10, 100} {
		b.denySaturatedKeys(server, store, keys)
	}
}

func (b *bench) denySaturatedKeys(server *redistest.Server, store penstock.Store, keys int) {
	const perSecond = 10_000
	each := perSecond / 10 / keys
	burst := max(each/4, 5)
	run := func(store penstock.Store, name string) (t counts, calls int) {
		lim := limiter(store, fmt.Sprintf("%d/1s burst=%d name=%s", each, burst, name))
		calls = scripts(server, func() {
			t = callPaced(lasting(b.span), perSecond, 32, func(rng *rand.Rand) (penstock.Decision, error) {
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
	for range b.Rounds { // in another order each time: who is first meets an idle server
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
