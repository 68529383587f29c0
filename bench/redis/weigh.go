package main

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/redisstore"
)

// A weight is the memory of a shape's keys in Redis.
type weight struct {
	name, where string
	keys        int
	bytes       float64 // a key
}

// largeCount is above the integers that Redis shares between keys.
const largeCount = 20_000

// weigh fills the keys of a shape on a server and returns the memory of one.
func weigh(srv *server, where string, s *shape, n int) (weight, error) {
	if err := s.load(srv); err != nil {
		return weight{}, err
	}
	d, err := fillFresh(srv, s, n)
	return weight{name: s.name, where: where, keys: n, bytes: float64(d.memory) / float64(n)}, err
}

// weights measures the memory of keys of 20 bytes, on one server and in a Cluster.
func (b *bench) weights() error {
	if err := b.weighOn(b.server, "standalone", 140); err != nil {
		return err
	}
	node, err := startClusterNode()
	if err != nil {
		return err
	}
	defer node.stop()
	return b.weighOn(node, "Cluster", 156)
}

// weighOn measures each algorithm twice: with a count that Redis shares, and with one
// that it does not. The larger counts.
func (b *bench) weighOn(srv *server, where string, atMost float64) error {
	small, err := ourShapes(1)
	if err != nil {
		return err
	}
	large, err := ourShapes(largeCount)
	if err != nil {
		return err
	}
	for _, s := range large {
		s.name = fmt.Sprintf("%s, %s units used", s.name, measure.Thousands(largeCount))
	}
	for i, s := range small {
		heavier := 0.0
		for _, s := range []*shape{s, large[i]} {
			w, err := b.weighAlone(srv, where, s)
			if err != nil {
				return err
			}
			heavier = max(heavier, w.bytes)
		}
		b.report.Add(fmt.Sprintf("memory a key, %s keys of 20 bytes, %s, %s", measure.Thousands(b.sizes.weighed), s.name, where),
			fmt.Sprintf("≤ %.0f B", atMost), heavier <= atMost, "%.1f B", heavier)
	}
	if where != "standalone" {
		return nil
	}
	for _, s := range append(designShapes(), incrShape()) {
		if _, err := b.weighAlone(srv, where, s); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) weighAlone(srv *server, where string, s *shape) (weight, error) {
	b.logf("weight of %s keys, %s, %s", measure.Thousands(b.sizes.weighed), s.name, where)
	if _, err := srv.command("FLUSHALL", "SYNC"); err != nil {
		return weight{}, err
	}
	w, err := weigh(srv, where, s, b.sizes.weighed)
	b.report.weights = append(b.report.weights, w)
	return w, err
}

// logWeights measures the memory of full logs, penstock's and the sorted set's.
func (b *bench) logWeights() error {
	for _, log := range []struct {
		entries int
		atMost  float64
	}{{100, 640}, {1000, 4400}} {
		entries, atMost := log.entries, log.atMost
		ours, err := b.weighOurLog(entries)
		if err != nil {
			return err
		}
		theirs, err := b.weighZset(entries)
		if err != nil {
			return err
		}
		b.report.weights = append(b.report.weights, ours, theirs)
		b.report.Add(fmt.Sprintf("memory a key, sliding log with %d entries", entries),
			fmt.Sprintf("≤ %.0f B", atMost), ours.bytes <= atMost,
			"%.0f B (zset log: %.0f B)", ours.bytes, theirs.bytes)
	}
	return nil
}

// weighOurLog fills each log with one take.
func (b *bench) weighOurLog(entries int) (weight, error) {
	if err := b.empty(); err != nil {
		return weight{}, err
	}
	limit := penstock.PerHour(int64(entries)).WithAlgorithm(penstock.SlidingLog)
	s, err := ourShape(keyOf("pen"), limit, int64(entries))
	if err != nil {
		return weight{}, err
	}
	w, err := weigh(b.server, "standalone", s, b.logs(entries))
	if err != nil {
		return w, err
	}
	w.name = fmt.Sprintf("%s, %d entries", s.name, entries)
	return w, b.verifySpent(limit, w.keys)
}

// logs is the number of logs with so many entries.
func (b *bench) logs(entries int) int { return max(b.sizes.entries/entries, 2) }

// verifySpent returns an error unless the limit is used up on every key.
func (b *bench) verifySpent(limit penstock.Limit, n int) error {
	store, err := redisstore.Open(context.Background(), "redis://"+b.server.Addr, &redisstore.Options{Timeout: callTimeout})
	if err != nil {
		return err
	}
	defer store.Close()
	for i := range n {
		key := fmt.Sprintf("user:pen%012d", i)
		d, err := store.Take(context.Background(), penstock.Request{Key: key, Limit: limit})
		if err != nil {
			return err
		}
		if d.Remaining != 0 {
			return fmt.Errorf("%s on %s: %d left of %d, want none", limit, key, d.Remaining, d.Limit)
		}
	}
	return nil
}

// weighZset fills each log entry by entry, because it merges two requests of the same
// time.
func (b *bench) weighZset(entries int) (weight, error) {
	if err := b.empty(); err != nil {
		return weight{}, err
	}
	zset, n := designShapes()[1], b.logs(entries)
	if err := zset.load(b.server); err != nil {
		return weight{}, err
	}
	before, err := b.server.stats()
	if err != nil {
		return weight{}, err
	}
	for at := range entries {
		if err := fillAt(b.server, zset, n, at); err != nil {
			return weight{}, err
		}
	}
	after, err := b.server.stats()
	if err != nil {
		return weight{}, err
	}
	d := after.since(before)
	if err := zset.verifyKeys(d, n); err != nil {
		return weight{}, err
	}
	w := weight{name: fmt.Sprintf("zset log, %d entries", entries), where: "standalone", keys: n, bytes: float64(d.memory) / float64(n)}
	return w, zset.verifyGrants(d, n*entries)
}
