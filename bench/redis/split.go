package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/bench/internal/rediscluster"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A place is where keys are: a server, or a Cluster.
type place struct {
	name          string
	url           string
	nodes, copies []*redistest.Server // primaries, and their replicas
}

// A splitRunner takes from one or more keys at once, and splits the processor time of its
// calls by where it is spent.
type splitRunner struct {
	place
	keys  int
	store *redisstore.Store
	calls [][]penstock.Request
	sent  atomic.Int64

	rates                             []float64 // calls a second
	user, system, primaries, replicas []float64 // microseconds a call
}

// splitKeys are the numbers of keys of a call.
var splitKeys = []int{1, 3, 5}

// split measures where the time of a call goes: in a server with batches, in one to which
// every call is a script of its own, in a Cluster of three shards with replicas, and in a
// server with a replica, because a write costs a primary more that has one.
func (b *bench) split() error {
	c, stop, err := rediscluster.Start()
	if err != nil {
		return err
	}
	defer stop()
	pair, err := startPair()
	if err != nil {
		return err
	}
	defer pair.stop()
	places, err := b.places(c, pair)
	if err != nil {
		return err
	}
	var runners []*splitRunner
	defer func() {
		for _, r := range runners {
			r.store.Close()
		}
	}()
	for _, p := range places {
		for _, keys := range splitKeys {
			r, err := newSplitRunner(p, keys, b.sizes.many)
			if err != nil {
				return fmt.Errorf("%s, %d keys: %w", p.name, keys, err)
			}
			runners = append(runners, r)
		}
	}
	b.logf("split: %d rounds of %s for each of %d kinds of calls", b.rounds, 5*b.length, len(runners))
	for range b.rounds {
		for _, r := range runners {
			if err := r.turn(5 * b.length); err != nil {
				return fmt.Errorf("%s, %d keys: %w", r.name, r.keys, err)
			}
		}
	}
	b.report.splits = runners
	b.findSplits(runners)
	return nil
}

// A pair is a server and its replica.
type pair struct{ primary, replica *redistest.Server }

// startPair starts a server and its replica, and waits until that one follows.
func startPair() (p pair, err error) {
	if p.primary, err = redistest.Start(redistest.Options{}); err != nil {
		return p, err
	}
	_, port, _ := strings.Cut(p.primary.Addr, ":")
	p.replica, err = redistest.Start(redistest.Options{Args: []string{"--replicaof", "127.0.0.1", port}})
	if err == nil {
		err = p.awaitSync()
	}
	if err != nil {
		p.stop()
	}
	return p, err
}

// syncAttempts is how often the replica is asked for, in a second each.
const syncAttempts = 60

func (p pair) awaitSync() error {
	for range syncAttempts {
		if synced, err := p.primary.Command("WAIT", "1", "1000"); err != nil || synced == "1" {
			return err
		}
	}
	return errors.New("the replica does not follow its primary")
}

func (p pair) stop() {
	for _, s := range []*redistest.Server{p.replica, p.primary} {
		if s != nil {
			s.Stop()
		}
	}
}

// places returns the places. Without the right to read INFO there are no batches.
func (b *bench) places(c *redistest.Cluster, p pair) ([]place, error) {
	for _, s := range []*redistest.Server{b.server.Server, p.primary} {
		if _, err := s.Command("ACL", "SETUSER", "alone", "on", "nopass", "~*", "&*", "+@all", "-info"); err != nil {
			return nil, err
		}
	}
	servers := []*redistest.Server{b.server.Server}
	return []place{
		{name: "a server, in batches", url: "redis://" + b.server.Addr, nodes: servers},
		{name: "a server, alone", url: "redis://alone:any@" + b.server.Addr, nodes: servers},
		{name: "a Cluster", url: c.URL(), nodes: c.Nodes[:redistest.Shards], copies: c.Nodes[redistest.Shards:]},
		{
			name: "a server with a replica, alone", url: "redis://alone:any@" + p.primary.Addr,
			nodes: []*redistest.Server{p.primary}, copies: []*redistest.Server{p.replica},
		},
	}, nil
}

// newSplitRunner opens a store and takes from each key once.
func newSplitRunner(p place, keys, calls int) (*splitRunner, error) {
	store, err := redisstore.Open(context.Background(), p.url, &redisstore.Options{Timeout: callTimeout, Prefix: fmt.Sprintf("s%d-%d", keys, len(p.name))})
	if err != nil {
		return nil, err
	}
	r := &splitRunner{place: p, keys: keys, store: store}
	for i := range calls {
		var rs []penstock.Request
		for k := range keys {
			rs = append(rs, penstock.Request{
				Key: fmt.Sprintf("key%d:%014d", k, i), Cost: 1,
				Limit: penstock.Limit{Count: 1, Period: ample.every, Burst: ample.burst, Name: strconv.Itoa(k)},
			})
		}
		r.calls = append(r.calls, rs)
	}
	for i := range calls {
		if err := r.take(context.Background(), i); err != nil {
			store.Close()
			return nil, err
		}
	}
	return r, nil
}

// take makes the i-th call, which must be granted.
func (r *splitRunner) take(ctx context.Context, i int) error {
	var room [8]penstock.Decision
	ds := room[:r.keys]
	rs := r.calls[i%len(r.calls)]
	var err error
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

// turn makes calls from all goroutines for a while, at least one from each.
func (r *splitRunner) turn(length time.Duration) error {
	before, err := r.spent()
	if err != nil {
		return err
	}
	began, calls := time.Now(), r.sent.Load()
	errs := make([]error, goroutines)
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() {
			for first := true; errs[i] == nil && (first || time.Since(began) < length); first = false {
				errs[i] = r.take(context.Background(), int(r.sent.Add(1)))
			}
		})
	}
	running.Wait()
	took := time.Since(began)
	after, err := r.spent()
	if err = errors.Join(append(errs, err)...); err != nil {
		return err
	}
	n := float64(r.sent.Load() - calls)
	r.rates = append(r.rates, n/took.Seconds())
	for i, list := range []*[]float64{&r.user, &r.system, &r.primaries, &r.replicas} {
		*list = append(*list, 1e6*(after[i]-before[i])/n)
	}
	return nil
}

// spent returns the processor time so far, in seconds: of this process and of the kernel on
// its behalf, of primaries, and of replicas.
func (r *splitRunner) spent() (s [4]float64, err error) {
	var u syscall.Rusage
	if err = syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return s, err
	}
	s[0], s[1] = time.Duration(u.Utime.Nano()).Seconds(), time.Duration(u.Stime.Nano()).Seconds()
	for i, servers := range [][]*redistest.Server{r.nodes, r.copies} {
		for _, server := range servers {
			seconds, err := cpuOf(server)
			if err != nil {
				return s, err
			}
			s[2+i] += seconds
		}
	}
	return s, nil
}

// cpuOf returns the processor time of a server so far, in seconds.
func cpuOf(server *redistest.Server) (seconds float64, err error) {
	text, err := server.Command("INFO", "cpu")
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		seconds += n
	}
	return seconds, err
}

// total returns the processor time of each turn, in microseconds a call.
func (r *splitRunner) total() []float64 {
	sums := make([]float64, len(r.user))
	for i := range sums {
		sums[i] = r.user[i] + r.system[i] + r.primaries[i] + r.replicas[i]
	}
	return sums
}

// findSplits compares the runners, which are three of each place.
func (b *bench) findSplits(runners []*splitRunner) {
	one, three := runners[0], runners[1]
	title := fmt.Sprintf("TakeAll of three keys, %d goroutines", goroutines)
	ratio := measure.SpreadOf(measure.Ratios(three.rates, one.rates))
	b.report.Add(title, "≥ 0.5× the rate of single takes", ratio.Median >= 0.5, "%s", measure.TimesWithSpread(ratio))
	batched, alone := measure.SpreadOf(three.primaries).Median, measure.SpreadOf(runners[4].primaries).Median
	b.report.Add(title+", redis-server", "≤ 14 µs a call in batches, ≤ 30 µs alone", batched <= 14 && alone <= 30,
		"%.1f µs in batches, %.1f µs alone", batched, alone)
	cpu := measure.SpreadOf(measure.Ratios(runners[6].total(), runners[3].total()))
	b.report.Add("a take in a Cluster of three shards with replicas, processor time of client and servers",
		"≤ 1.3× that of a take on a server, sent alone", cpu.Median <= 1.3, "%s, and %s if that server has a replica, too",
		measure.TimesWithSpread(cpu), measure.TimesWithSpread(measure.SpreadOf(measure.Ratios(runners[6].total(), runners[9].total()))))
}
