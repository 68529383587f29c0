package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

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
	var all []*harness.Contender
	var keys []int
	for _, p := range b.places() {
		for _, n := range splitKeys {
			all, keys = append(all, b.splitContender(p, n, b.Size(10_000, 200))), append(keys, n)
		}
	}
	b.Logf("split: %d rounds of %s for each of %d kinds of calls", b.Rounds, 5*b.Turn, len(all))
	harness.TakeTurns(b.Rounds, all...)
	t := b.Table(fmt.Sprintf("Processor time of a call by one program with %d goroutines: medians of the rounds", goroutines),
		"where", "keys of a call", "thousand calls a second", "client µs a call", "kernel, for the client", "primaries", "replicas", "in all")
	for i, c := range all {
		row := []any{c.Name, keys[i], harness.Decimals(0)(c.Median("rate") / 1000)}
		for _, figure := range append(splitFigures, "in all") {
			row = append(row, harness.Decimals(1)(c.Median(figure)))
		}
		t.Row(row...)
	}
	b.findSplits(all)
}

// findSplits compares the contenders, which are three of each place.
func (b *bench) findSplits(all []*harness.Contender) {
	title := fmt.Sprintf("TakeAll of three keys, %d goroutines", goroutines)
	b.FindAtLeast(title, all[1].To(all[0], "rate"), 0.5, "the rate of single takes")
	batched, alone := all[1].Median("primaries"), all[4].Median("primaries")
	b.Find(title+", redis-server", "≤ 14 µs a call in batches, ≤ 30 µs alone", batched <= 14 && alone <= 30,
		"%.1f µs in batches, %.1f µs alone", batched, alone)
	cpu := all[6].To(all[3], "in all")
	b.Find("a take in a Cluster of three shards with replicas, processor time of client and servers",
		"≤ 1.3× that of a take on a server, sent alone", cpu.Median <= 1.3, "%s, and %s if that server has a replica, too", cpu, all[6].To(all[9], "in all"))
}

// places returns the places. Without the right to read INFO there are no batches.
func (b *bench) places() []place {
	cluster := redistest.StartCluster(b)
	primary := redistest.StartForTest(b, redistest.Options{})
	replica := redistest.StartForTest(b, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(primary.Port)}})
	redistest.WaitFor(b, "the replica follows its primary", func() bool { return redistest.MustCommand(b, primary, "WAIT", "1", "1000") == "1" })
	single := b.server.Server
	for _, s := range []*redistest.Server{single, primary} {
		redistest.MustCommand(b, s, "ACL", "SETUSER", "alone", "on", "nopass", "~*", "&*", "+@all", "-info")
	}
	return []place{
		{name: "a server, in batches", url: "redis://" + single.Addr, nodes: []*redistest.Server{single}},
		{name: "a server, alone", url: "redis://alone:any@" + single.Addr, nodes: []*redistest.Server{single}},
		{name: "a Cluster", url: cluster.URL(), nodes: cluster.Nodes[:redistest.Shards], copies: cluster.Nodes[redistest.Shards:]},
		{
			name: "a server with a replica, alone", url: "redis://alone:any@" + primary.Addr,
			nodes: []*redistest.Server{primary}, copies: []*redistest.Server{replica},
		},
	}
}

// A splitCaller takes from one or more keys at once.
type splitCaller struct {
	store *redisstore.Store
	calls [][]penstock.Request
	sent  atomic.Int64
}

// splitContender opens a store at a place and takes from each key once.
func (b *bench) splitContender(p place, keys, calls int) *harness.Contender {
	o := &redisstore.Options{Timeout: callTimeout, Prefix: fmt.Sprintf("s%d-%d", keys, len(p.name))}
	r := &splitCaller{store: harness.Must(redisstore.Open(context.Background(), p.url, o)), calls: make([][]penstock.Request, calls)}
	b.Cleanup(r.store.Close)
	for i := range r.calls {
		for k := range keys {
			r.calls[i] = append(r.calls[i], penstock.Request{
				Key: fmt.Sprintf("key%d:%014d", k, i), Cost: 1,
				Limit: penstock.Limit{Count: 1, Period: ample.every, Burst: ample.burst, Name: strconv.Itoa(k)},
			})
		}
		harness.Check(r.take(context.Background(), i))
	}
	return &harness.Contender{Name: p.name, Measure: func(c *harness.Contender) {
		before, sent := p.spent(), r.sent.Load()
		took := harness.Must(r.send(5 * b.Turn))
		after, n := p.spent(), float64(r.sent.Load()-sent)
		c.Add("rate", n/took.Seconds())
		total := 0.0
		for i, figure := range splitFigures {
			micros := 1e6 * (after[i] - before[i]) / n
			c.Add(figure, micros)
			total += micros
		}
		c.Add("in all", total)
	}}
}

// take makes the i-th call, which must be granted.
func (r *splitCaller) take(ctx context.Context, i int) (err error) {
	var room [8]penstock.Decision
	rs := r.calls[i%len(r.calls)]
	ds := room[:len(rs)]
	if len(rs) == 1 {
		ds[0], err = r.store.Take(ctx, rs[0])
	} else {
		err = r.store.TakeAll(ctx, rs, ds)
	}
	if err == nil && !penstock.Tightest(ds).Allowed {
		err = fmt.Errorf("call %d was denied: %v", i, ds)
	}
	return err
}

// send makes calls from all goroutines for a while, at least one from each.
func (r *splitCaller) send(length time.Duration) (time.Duration, error) {
	began := time.Now()
	return harness.Concurrently(goroutines, func(int) (err error) {
		for first := true; err == nil && (first || time.Since(began) < length); first = false {
			err = r.take(context.Background(), int(r.sent.Add(1)))
		}
		return err
	})
}

// splitFigures are where processor time is spent: in this process and in the kernel on its behalf, in
// primaries, and in replicas.
var splitFigures = []string{"client", "kernel", "primaries", "replicas"}

// spent returns the processor time so far, in seconds, in the order of splitFigures.
func (p place) spent() (s [4]float64) {
	var u syscall.Rusage
	harness.Check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	s[0], s[1] = time.Duration(u.Utime.Nano()).Seconds(), time.Duration(u.Stime.Nano()).Seconds()
	for i, servers := range [][]*redistest.Server{p.nodes, p.copies} {
		for _, server := range servers {
			s[2+i] += harness.Must(harness.ParseInfo(harness.Must(server.Command("INFO", "cpu")))).CPU
		}
	}
	return s
}
