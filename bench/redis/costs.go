package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// compareCalls measures kinds of calls in turns, after one to fill caches. Before each round it lets the caller
// prepare. Besides the time of a call there is that of its scripts in the server, if it is on Redis.
func (b *bench) compareCalls(rounds, callers, calls int, prepare func(), kinds ...func(caller, i int) error) (all []*harness.Load) {
	scripts := func() map[string]float64 {
		_, micros := b.server.info().Scripts()
		return map[string]float64{"µs": float64(micros)}
	}
	for _, call := range kinds {
		s := newLoad("", callers, scripts, func(i int) (bool, error) {
			err := call(i%calls*callers/calls, i%calls)
			return err == nil, err
		})
		s.Calls = calls
		all = append(all, s)
	}
	all[0].Before = prepare
	harness.WarmUp(all...)
	harness.TakeTurns(rounds, all...)
	for _, s := range all {
		harness.Check(s.Total.Verify("calls with IDs", calls, false))
	}
	return all
}

// take makes a request, which must be granted in full.
func take(store penstock.Store, r penstock.Request) error {
	d, err := store.Take(context.Background(), r)
	if err == nil && d.Granted != r.Cost {
		err = fmt.Errorf("not granted in full: %+v: %s", r, d)
	}
	return err
}

// permits is what permits cost: taking and releasing one, beside two takes from a token bucket, by the
// server's time and by the rate of many callers, and the bytes of a key that holds a hundred.
func (b *bench) permits() {
	const than = "two token-bucket takes"
	for _, held := range []int{0, 10, 100} {
		pairs, takes := b.comparePermits(b.Size(40, 3), 1, b.Size(200, 5), held)
		ratio := pairs.To(takes, "µs")
		b.Table("Permits on Redis: the server's time, the median of the rounds, µs", "permits held", "acquire and release", "two takes from a token bucket", "ratio").
			Row(held, harness.Decimals(1)(pairs.Median("µs")), harness.Decimals(1)(takes.Median("µs")), ratio)
		b.FindAtMost(fmt.Sprintf("acquire and release on Redis, %d held", held), ratio, 1.2, than)
	}
	for _, held := range []int{0, 10} {
		pairs, takes := b.comparePermits(b.Size(20, 1), goroutines, goroutines*b.Size(200, 5), held)
		ratio := pairs.To(takes, "ns")
		b.Table(fmt.Sprintf("Permits on Redis, %d callers: pairs a second, the median of the rounds", goroutines),
			"permits held", "acquire and release", "two takes from a token bucket", "ratio of the times").
			Row(held, harness.Decimals(0)(pairs.Median("rate")), harness.Decimals(0)(takes.Median("rate")), ratio)
		b.FindAtMost(fmt.Sprintf("acquire and release on Redis, %d callers, %d held", goroutines, held), ratio, 1.2, than)
	}
	most := 0
	for _, key := range strings.Fields(harness.Must(b.server.Command("KEYS", "*held100*"))) {
		most = max(most, harness.Must(strconv.Atoi(strings.TrimSpace(harness.Must(b.server.Command("MEMORY", "USAGE", key))))))
	}
	b.Find("100 permits of a key on Redis", "≤ 3,200 bytes", most > 1200 && most <= 3200, "%s bytes", harness.Thousands(most))
}

// comparePermits compares pairs of calls by callers each of which has a key that holds some permits.
// Those of a limit share scripts.
func (b *bench) comparePermits(rounds, callers, calls, held int) (pairs, takes *harness.Load) {
	store := b.OpenStore("redis://"+b.server.Addr, callTimeout)
	permit := func(caller int, id string, cost int64) penstock.Request {
		limit := penstock.Limit{Count: 1000, Period: 24 * time.Hour, Algorithm: penstock.Concurrent}
		return penstock.Request{Key: fmt.Sprintf("held%d-%d-%d", held, callers, caller), ID: id, Cost: cost, Limit: limit}
	}
	for caller := range callers {
		for i := range held {
			harness.Check(take(store, permit(caller, "holder"+strconv.Itoa(i), 1)))
		}
	}
	round := 0
	acquireAndRelease := func(caller, i int) error {
		id := fmt.Sprintf("call%d-%d", round, i)
		return cmp.Or(take(store, permit(caller, id, 1)), take(store, permit(caller, id, -1)))
	}
	takeTwice := func(caller, _ int) error {
		r := penstock.Request{Key: permit(caller, "", 1).Key, Cost: 1, Limit: penstock.PerHour(1 << 30)}
		return cmp.Or(take(store, r), take(store, r))
	}
	all := b.compareCalls(rounds, callers, calls, func() { round++ }, acquireAndRelease, takeTwice)
	return all[0], all[1]
}

// settlements are what IDs and settlements cost, in memory and on Redis: a take under an ID beside one
// without, and a settlement beside a take under an ID. On Redis one caller waits for each answer, and
// many do at once.
func (b *bench) settlements() {
	clock := time.Now()
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return clock }})
	b.compareSettlements("memory", memory, 1, 2*settledKeys, func() string {
		clock = clock.Add(2 * settledLimit.Period) // by then the IDs of the last round are forgotten
		return "call"
	})
	store := b.OpenStore("unix://"+b.server.Socket, callTimeout)
	round := 0
	for _, callers := range []int{1, goroutines} {
		b.compareSettlements("Redis", store, callers, max(settledKeys/4, 64*callers), func() string {
			round++
			return fmt.Sprintf("%d-%d", callers, round)
		})
	}
}

// settledLimit is never used up.
var settledLimit = penstock.Limit{Count: 1_000_000_000, Period: time.Hour}

// settledKeys is how many keys the calls are about.
const settledKeys = 1000

// compareSettlements compares takes, takes under new IDs, and settlements of these, in rounds each of
// which begins its IDs with a new prefix. Settlements are to more and to less by turns.
func (b *bench) compareSettlements(title string, store penstock.Store, callers, calls int, prefix func() string) {
	var requests [3][]penstock.Request // by kind
	for kind := range requests {
		requests[kind] = make([]penstock.Request, calls)
	}
	prepare := func() {
		begin := prefix()
		for i := range calls {
			r := penstock.Request{Key: "key-" + strconv.Itoa(i%settledKeys), Limit: settledLimit, Cost: 2}
			requests[0][i] = r
			r.ID = begin + "-" + strconv.Itoa(i)
			requests[1][i] = r
			r.Cost, r.Settle = int64(1+i%2*2), true
			requests[2][i] = r
		}
	}
	kinds := make([]func(caller, i int) error, len(requests))
	for n := range kinds {
		kinds[n] = func(_, i int) error { return take(store, requests[n][i]) }
	}
	all := b.compareCalls(b.Size(100, 3), callers, calls, prepare, kinds...)
	withID, settled := all[1].To(all[0], "ns"), all[2].To(all[1], "ns")
	b.Table("Takes under IDs and settlements: medians of the rounds", "store", "callers", "take, ns", "under an ID", "settle").
		Row(title, callers, harness.Decimals(0)(all[0].Median("ns")), withID, settled)
	begin := fmt.Sprintf("%s, %d callers: a ", title, callers)
	b.FindAtMost(begin+"take under an ID", withID, 1.6, "a take without")
	b.FindAtMost(begin+"settlement", settled, 1.3, "a take under an ID")
}

// largeCount is above the integers that Redis shares between keys.
const largeCount = 20_000

// weigh fills the keys of a shape at so many times, and returns the memory of a key.
func (b *bench) weigh(srv *server, where string, s *shape, n, times int) float64 {
	b.Logf("weight of %s keys, %s, %s", harness.Thousands(n), s.name, where)
	d := s.fillFresh(srv, n, times)
	if times > 1 { // the first take of a key may be another command
		harness.Check(s.verifyGrants(d, n*times))
	}
	return b.addWeight(s.name, where, n, d)
}

// addWeight adds a row to the table, and returns the memory of a key.
func (b *bench) addWeight(name, where string, keys int, d harness.Info) float64 {
	bytes := d["used_memory"] / float64(keys)
	b.Table("Memory: used_memory of the server, every key live", "shape", "where", "keys", "bytes a key").
		Row(name, where, harness.Thousands(keys), harness.Decimals(1)(bytes))
	return bytes
}

// weights measures the memory of keys of 20 bytes, on one server and in a Cluster.
func (b *bench) weights() {
	b.weighOn(b.server, "standalone", 140)
	for _, s := range append(designShapes(), incrShape()) {
		b.server.empty()
		b.weigh(b.server, "standalone", s, b.Size(200_000, 2_000), 1)
	}
	b.weighOn(b.startClusterNode(), "Cluster", 156)
}

// weighOn measures each algorithm twice: with a count that Redis shares, and with one
// that it does not. The larger counts.
func (b *bench) weighOn(srv *server, where string, atMost float64) {
	large := ourShapes(largeCount)
	for i, small := range ourShapes(1) {
		large[i].name = fmt.Sprintf("%s, %s units used", small.name, harness.Thousands(largeCount))
		heavier := 0.0
		for _, s := range []*shape{small, large[i]} {
			srv.empty()
			heavier = max(heavier, b.weigh(srv, where, s, b.Size(200_000, 2_000), 1))
		}
		b.Find(fmt.Sprintf("memory a key, %s keys of 20 bytes, %s, %s", harness.Thousands(b.Size(200_000, 2_000)), small.name, where),
			fmt.Sprintf("≤ %.0f B", atMost), heavier <= atMost, "%.1f B", heavier)
	}
}

// logWeights measures the memory of full logs: penstock's, each of which one take fills, and the
// sorted set's, which merges two requests of the same time and so is filled entry by entry.
func (b *bench) logWeights() {
	for _, log := range []struct {
		entries int
		atMost  float64
	}{{100, 640}, {1000, 4400}} {
		entries, atMost := log.entries, log.atMost
		limit, n := penstock.PerHour(int64(entries)).WithAlgorithm(penstock.SlidingLog), max(b.Size(200_000, 4_000)/entries, 2)
		log, zset := ourShape(keyOf("pen"), limit, int64(entries)), designShapes()[1]
		log.name, zset.name = fmt.Sprintf("%s, %d entries", log.name, entries), fmt.Sprintf("%s, %d entries", zset.name, entries)
		b.server.empty()
		ours := b.weigh(b.server, "standalone", log, n, 1)
		b.verifySpent(limit, n)
		b.server.empty()
		theirs := b.weigh(b.server, "standalone", zset, n, entries)
		b.Find(fmt.Sprintf("memory a key, sliding log with %d entries", entries), fmt.Sprintf("≤ %.0f B", atMost), ours <= atMost,
			"%.0f B (zset log: %.0f B)", ours, theirs)
	}
}

// verifySpent ends the case unless the limit is used up on every key.
func (b *bench) verifySpent(limit penstock.Limit, n int) {
	store := b.OpenStore("redis://"+b.server.Addr, callTimeout)
	for _, key := range keyNames("user:pen", n) {
		d := harness.Must(store.Take(context.Background(), penstock.Request{Key: key, Limit: limit}))
		if d.Remaining != 0 {
			b.Fatalf("%s on %s: %d left of %d, want none", limit, key, d.Remaining, d.Limit)
		}
	}
}
