package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A place is where keys are: a server, or a Cluster.
type place struct {
	name          string
	url           string
	nodes, copies []*redistest.Server // primaries, and their replicas
}

// splitKeys are the numbers of keys of a call.
var splitKeys = []int{1, 3, 5}

// split measures where the time of a call goes: in a server with batches, in one to which
// every call is a script of its own, in a Cluster of three shards with replicas, and in a
// server with a replica, because a write costs a primary more that has one.
func (b *bench) split() {
	var all []*harness.Load
	var keys []int
	for _, p := range b.places() {
		for _, n := range splitKeys {
			all, keys = append(all, b.splitSubject(p, n, b.Size(10_000, 200))), append(keys, n)
		}
	}
	b.Logf("split: %d rounds of %s for each of %d kinds of calls", b.Rounds, 5*b.Turn, len(all))
	harness.TakeTurns(b.Rounds, all...)
	for _, s := range all {
		harness.Check(s.Total.Verify(s.Name, 1, false))
	}
	t := b.Table(fmt.Sprintf("Processor time of a call by one program with %d goroutines: medians of the rounds", goroutines),
		"where", "keys of a call", "thousand calls a second", "client µs a call", "kernel, for the client", "primaries", "replicas", "in all")
	for i, c := range all {
		row := []any{c.Name, keys[i], harness.Decimals(0)(c.Median("rate") / 1000)}
		t.Row(append(row, c.Medians(1, "client", "kernel", "primaries", "replicas", "in all")...)...)
	}
	b.findSplits(all)
}

// findSplits compares the contenders, which are three of each place.
func (b *bench) findSplits(all []*harness.Load) {
	title := fmt.Sprintf("TakeAll of three keys, %d goroutines", goroutines)
	b.FindAtLeast(title, all[1].To(all[0], "rate"), 0.5, "the rate of single takes")
	batched := all[1].Median("primaries")
	b.Find(title+", redis-server", "≤ 14 µs a call", batched <= 14, "%.1f µs", batched)
}

// places returns the places. A server decides in batches, a Cluster does not.
func (b *bench) places() []place {
	cluster := redistest.StartCluster(b)
	primary := redistest.StartForTest(b, redistest.Options{})
	replica := redistest.StartForTest(b, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(primary.Port)}})
	redistest.WaitFor(b, "the replica follows its primary", func() bool { return redistest.MustCommand(b, primary, "WAIT", "1", "1000") == "1" })
	single := b.server.Server
	return []place{
		{name: "a server, in batches", url: "redis://" + single.Addr, nodes: []*redistest.Server{single}},
		{name: "a Cluster", url: cluster.URL(), nodes: cluster.Nodes[:redistest.Shards], copies: cluster.Nodes[redistest.Shards:]},
		{
			name: "a server with a replica, in batches", url: "redis://" + primary.Addr,
			nodes: []*redistest.Server{primary}, copies: []*redistest.Server{replica},
		},
	}
}

// splitSubject opens a store at a place, takes from each key once, and returns calls that take from one or
// more keys at once for about as long as a turn.
func (b *bench) splitSubject(p place, keys, calls int) *harness.Load {
	o := &redisstore.Options{Timeout: callTimeout, Prefix: fmt.Sprintf("s%d-%d", keys, len(p.name))}
	store := harness.Must(redisstore.Open(context.Background(), p.url, o))
	b.Cleanup(store.Close)
	requests := make([][]penstock.Request, calls)
	for i := range requests {
		for k := range keys {
			requests[i] = append(requests[i], penstock.Request{
				Key: fmt.Sprintf("key%d:%014d", k, i), Cost: 1,
				Limit: penstock.Limit{Count: 1, Period: ample.every, Burst: ample.burst, Name: strconv.Itoa(k)},
			})
		}
	}
	s := newLoad(p.name, goroutines, p.spent, func(i int) (bool, error) { return takeAll(store, requests[i%calls]) })
	s.Run(calls)
	s.Calibrate(5*b.Turn, goroutines)
	return s
}

// takeAll takes from one key, or from some at once.
func takeAll(store *redisstore.Store, rs []penstock.Request) (allowed bool, err error) {
	var room [8]penstock.Decision
	ds := room[:len(rs)]
	if len(rs) == 1 {
		ds[0], err = store.Take(context.Background(), rs[0])
	} else {
		err = store.TakeAll(context.Background(), rs, ds)
	}
	return err == nil && penstock.Tightest(ds).Allowed, err
}

// spent returns the processor time so far, in microseconds: in this process and in the kernel on its
// behalf, in primaries, and in replicas.
func (p place) spent() map[string]float64 {
	user, system := harness.Processor()
	s := map[string]float64{"client": user, "kernel": system, "primaries": 0, "replicas": 0}
	for figure, servers := range map[string][]*redistest.Server{"primaries": p.nodes, "replicas": p.copies} {
		for _, server := range servers {
			s[figure] += 1e6 * harness.Must(harness.ParseInfo(harness.Must(server.Command("INFO", "cpu")))).CPU
		}
	}
	return s
}
