package main

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

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
