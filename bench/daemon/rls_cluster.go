package main

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/bench/internal/rediscluster"
)

// clusterCases compare the gRPC API on a Redis Cluster with envoyproxy/ratelimit.
var clusterCases = []redisCase{
	{title: "RLS on a Redis Cluster of 3 shards with replicas, 1 descriptor", load: oneDescriptor, atLeast: 2},
	{title: "RLS on a Redis Cluster of 3 shards with replicas, 3 descriptors", load: threeDescriptors, atLeast: 1.5},
	{title: "penstock ratelimit on a Redis Cluster of 3 shards with replicas, 3 descriptors", load: threeDescriptors, dropIn: true, atLeast: 1.5},
}

// rlsOnCluster compares the gRPC API on a Redis Cluster with envoyproxy/ratelimit on the same
// Cluster. By itself the daemon decides the descriptors of a request as one; as penstock
// ratelimit it counts each by itself, as the rival does.
func (b *bench) rlsOnCluster() error {
	c, stop, err := rediscluster.Start()
	if err != nil {
		return err
	}
	defer stop()
	backend := &process{name: "redis-cluster"}
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
		backend.pids = append(backend.pids, node.PID())
	}
	backend.addr = strings.Join(addrs, ",")
	var rival *process
	if !b.quick {
		if rival, err = b.startRatelimit(backend); err != nil {
			return err
		}
		defer rival.stop()
	}
	for _, k := range clusterCases {
		if err := b.runClusterCase(k, rival, backend); err != nil {
			return fmt.Errorf("%s: %w", k.title, err)
		}
	}
	return nil
}

func (b *bench) runClusterCase(c redisCase, rival, backend *process) error {
	b.logf("%s: %d pairs of %s", c.title, b.pairs, b.turn)
	daemon, done, err := b.serveRLS(c, backend)
	if err != nil {
		return err
	}
	defer done()
	if rival == nil {
		_, err := b.measureRLS(c, daemon, backend)
		return err
	}
	theirs, ours, err := b.compareRLS(c.title, c.load, rival, daemon, backend)
	if err != nil {
		return err
	}
	ratio := ours.ratioTo(theirs)
	b.findings.Add(c.title, fmt.Sprintf("≥ %.1f× envoyproxy/ratelimit on the same Cluster", c.atLeast), ratio.Median >= c.atLeast,
		"%s, by processor time %s; p99 %.2f ms to %.2f", measure.TimesWithSpread(ratio), measure.TimesWithSpread(ours.cheaperThan(theirs)), measure.SpreadOf(ours.p99).Median, measure.SpreadOf(theirs.p99).Median)
	return nil
}
