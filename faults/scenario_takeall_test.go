package faults

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A TakeAll over several shards of a Cluster reserves all units in one round trip and refunds
// them in another if it is denied. These faults hit processes and shards between the two.

// takerURL is set in the environment of a taker: a worker that makes TakeAlls over three
// shards and prints their decisions. It holds the Cluster's URL and then the keys.
const takerURL = "PENSTOCK_FAULTS_TAKER"

const (
	takers       = 2
	takerCallers = 4 // in each taker

	// takerTimeout is longer than anything that a run waits for.
	takerTimeout = 10 * time.Minute
)

// runTaker returns at once in a test, and in a taker only if it fails.
func runTaker() error {
	words := strings.Fields(os.Getenv(takerURL))
	if len(words) == 0 {
		return nil
	}
	store, err := redisstore.Open(context.Background(), words[0], &redisstore.Options{Timeout: takerTimeout})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range takerCallers {
		go func() { failed <- takeAllForever(store, words[1:]) }()
	}
	return <-failed
}

// takeAllForever takes a unit of all keys without end, and prints each decision.
func takeAllForever(store penstock.Store, keys []string) error {
	rs, ds := make([]penstock.Request, len(keys)), make([]penstock.Decision, len(keys))
	for i, key := range keys {
		rs[i] = penstock.Request{Key: key, Limit: workerLimit, Cost: 1}
	}
	for {
		start := time.Now().UnixNano()
		err := penstock.TakeAll(context.Background(), store, rs, ds)
		line := fmt.Sprintf("%d %d %t", start, time.Now().UnixNano(), err == nil)
		for _, d := range ds {
			line += fmt.Sprintf(" %t %d %d", d.Allowed, d.Granted, d.RetryAfter)
		}
		if _, err := os.Stdout.WriteString(line + "\n"); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // or else the output is long
	}
}

// A takeAllRun is a Cluster with a key on each shard, and takers.
type takeAllRun struct {
	*run
	cluster *redistest.Cluster
	store   *redisstore.Store
	keys    [redistest.Shards]int // by shard
	takers  []*worker
}

// startTakers starts a Cluster and takers, and waits until they are granted units.
func startTakers(r *run) *takeAllRun {
	r.Helper()
	a := &takeAllRun{run: r, cluster: redistest.StartCluster(r)}
	a.store = r.open(a.cluster.URL(), takerTimeout)
	for shard := range a.keys {
		for a.cluster.Owner(r, a.cluster.Slot(r, a.name(shard))) != shard {
			a.keys[shard]++
		}
	}
	for range takers {
		a.start()
	}
	return a
}

// name returns the name of a shard's key.
func (a *takeAllRun) name(shard int) string { return a.request(a.keys[shard], 0).Key }

// start starts a taker and waits until it is granted units.
func (a *takeAllRun) start() {
	a.Helper()
	variable, node := takerURL+"="+a.cluster.URL(), len(a.takers)%takers
	for shard := range a.keys {
		variable += " " + a.name(shard)
	}
	w := a.startProcess(variable, func(w *worker, line string) { a.readCall(w, node, line) })
	a.takers = append(a.takers, w)
	redistest.WaitFor(a, "a taker is granted units", func() bool { return w.granted.Load() > 50 })
}

// readCall reads a line that takeAllForever has written.
func (a *takeAllRun) readCall(w *worker, node int, line string) {
	words := strings.Fields(line)
	if len(words) != 3+3*len(a.keys) {
		return
	}
	start, _ := strconv.ParseInt(words[0], 10, 64)
	ended, _ := strconv.ParseInt(words[1], 10, 64)
	e := event{begin: a.history.since(start), end: a.history.since(ended), node: node, cost: 1}
	if words[2] == "false" {
		e.err = penstock.ErrUnavailable
	}
	for shard, key := range a.keys {
		e.key = key
		d := words[3+3*shard:]
		_, _ = fmt.Sscan(strings.Join(d[:3], " "), &e.decision.Allowed, &e.decision.Granted, &e.decision.RetryAfter)
		a.history.add(e)
	}
	if e.granted() > 0 {
		w.granted.Add(1)
	} else if e.err == nil {
		w.denied.Add(1)
	}
}

// granted returns how many calls of all takers were granted.
func (a *takeAllRun) granted() (n int64) {
	for _, w := range a.takers {
		n += w.granted.Load()
	}
	return n
}

// charged returns what Redis has charged of a shard's key. A connection to a killed node may
// have to be found closed first.
func (a *takeAllRun) charged(shard int) (units int64) {
	a.Helper()
	redistest.WaitFor(a, "a shard answers", func() bool {
		d, err := a.store.Take(context.Background(), a.request(a.keys[shard], 0))
		if err != nil {
			a.Log(err)
		}
		units = workerBurst - d.Remaining
		return err == nil
	})
	return units
}

const (
	reservedShard = 0 // whose key every call has reserved
	victimShard   = 1 // the same; its node may be killed
	pendingShard  = 2 // whose key no call can reserve yet
)

// stopBetweenRounds half-moves the slot of one shard's key, which lets calls for its state and
// their record wait, until every call of the takers has reserved the other keys. It proves that
// they have: Redis has charged the units, and no call was granted them.
func (a *takeAllRun) stopBetweenRounds() (settle func()) {
	a.Helper()
	c, slot := a.cluster, strconv.Itoa(a.cluster.Slot(a, a.name(pendingShard)))
	const to = reservedShard
	redistest.MustCommand(a, c.Nodes[to], "CLUSTER", "SETSLOT", slot, "IMPORTING", c.IDs[pendingShard])
	redistest.MustCommand(a, c.Nodes[pendingShard], "CLUSTER", "SETSLOT", slot, "MIGRATING", c.IDs[to])
	redistest.WaitFor(a, "every call has reserved two keys of three", func() bool {
		granted := a.charged(pendingShard)
		return a.charged(reservedShard) == granted+takers*takerCallers && a.charged(victimShard) == granted+takers*takerCallers &&
			a.granted() == granted
	})
	a.prove("calls between their rounds", takers*takerCallers)
	a.prove("calls that wait for the last shard", redistest.InfoCounter(a, "errorstat_TRYAGAIN", c.Nodes[pendingShard]))
	return func() {
		for _, node := range []int{to, pendingShard} {
			redistest.MustCommand(a, c.Nodes[node], "CLUSTER", "SETSLOT", slot, "STABLE")
		}
	}
}

// takeRest takes what is left of a shard's key. An ID lets the store repeat it on a
// connection that a killed node closed, but does not work while the key's slot moves.
func (a *takeAllRun) takeRest(shard int, id string) {
	a.Helper()
	q := a.request(a.keys[shard], workerBurst)
	q.AtMost, q.ID = true, id
	e := a.history.record(0, a.keys[shard], q.Cost, func() (penstock.Decision, error) { return a.store.Take(context.Background(), q) })
	if e.err != nil {
		a.Fatal(e.err)
	}
}

// kill kills takers.
func (a *takeAllRun) kill(takers ...*worker) {
	for _, w := range takers {
		w.kill()
		a.prove("processes killed by a signal", -w.process.ProcessState.ExitCode())
	}
}

// finish ends the takers, and takes the rest of all keys.
func (a *takeAllRun) finish() {
	for _, w := range a.takers {
		w.kill()
	}
	for shard := range a.keys {
		a.takeRest(shard, "rest")
	}
}

// awaitRefunds waits until the calls of takers were denied, and no more units are reserved
// than those of some killed calls.
func (a *takeAllRun) awaitRefunds(calls int64, takers ...*worker) {
	a.Helper()
	for _, w := range takers {
		redistest.WaitFor(a, "calls are denied", func() bool { return w.denied.Load() >= takerCallers })
	}
	for _, shard := range []int{reservedShard, victimShard} {
		redistest.WaitFor(a, "denied calls refund what they reserved", func() bool { return a.charged(shard) <= a.granted()+calls })
	}
}

// killTaker is F32: a process is killed whose calls have reserved units. They stay charged; the
// calls of another process are denied and refund theirs.
func killTaker(r *run) {
	a := startTakers(r)
	settle := a.stopBetweenRounds()
	a.kill(a.takers[0])
	a.takeRest(pendingShard, "") // the waiting calls will be denied
	settle()
	a.awaitRefunds(takerCallers, a.takers[1])
	for _, shard := range []int{reservedShard, victimShard} {
		r.prove("units that stay reserved", int(a.charged(shard)-a.granted()))
	}
	a.finish()
	r.servers = append(r.servers, a.cluster.Nodes[:redistest.Shards]...)
}

// killShardWithinTakeAll is F32: a shard is killed of which calls have reserved units. They are
// denied, and refund the units as soon as its replica has taken over.
func killShardWithinTakeAll(r *run) {
	a := startTakers(r)
	settle := a.stopBetweenRounds()
	a.cluster.Nodes[victimShard].Kill()
	a.takeRest(pendingShard, "") // the waiting calls will be denied
	settle()
	a.cluster.AllowFailover(r)
	heir := a.cluster.Nodes[victimShard+redistest.Shards]
	redistest.WaitFor(r, "a replica takes over", func() bool { return redistest.InfoField(r, heir, "role") == "master" })
	a.awaitRefunds(0, a.takers...)
	r.prove("refunds on the new primary", redistest.InfoCounter(r, "cmdstat_evalsha", heir)+redistest.InfoCounter(r, "cmdstat_eval", heir))
	a.finish()
	r.servers = append(r.servers, a.cluster.Nodes[reservedShard], a.cluster.Nodes[pendingShard], heir)
}

// killAllWithinTakeAll is F32: all processes and all shards are killed, and the shards come
// back empty, with nothing reserved.
func killAllWithinTakeAll(r *run) {
	a := startTakers(r)
	settle := a.stopBetweenRounds()
	a.kill(a.takers...)
	for _, node := range a.cluster.Nodes[:redistest.Shards] {
		node.Kill()
	}
	for _, node := range a.cluster.Nodes[:redistest.Shards] {
		r.restart(node)
	}
	redistest.WaitFor(r, "the Cluster is complete", func() bool { return a.cluster.Complete(r) })
	settle()
	for shard := range a.keys {
		if n := a.charged(shard); n != 0 {
			r.Errorf("shard %d came back with %d units charged, want none", shard, n)
		}
	}
	a.start()
	a.finish()
	r.servers = append(r.servers, a.cluster.Nodes[:redistest.Shards]...)
}
