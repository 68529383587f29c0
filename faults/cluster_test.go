package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// These faults befall a Cluster.

const cluster = "Cluster"

// loseNode is F8: the owner of a third of all keys is killed. Those are away until
// its replica has taken over, and no others are.
func loseNode(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	l.answers(r.few(1000))
	const victim = 1
	store := r.open(c.URL(), generous)
	r.counted = func(key int) bool { return ownedByVictim(store, r.request(key, 1).Key, victim) }
	killed := time.Since(r.history.began)
	c.Nodes[victim].Kill()
	r.history.loses()
	l.misses(50)
	r.recovers(l, c.Nodes[victim+redistest.Shards])
	redistest.WaitFor(r, "a key of the lost shard is decided", func() bool {
		_, err := store.Take(context.Background(), r.request(r.keyOf(store, victim), 0))
		return err == nil
	})
	l.answers(r.few(500))
	l.end()
	r.othersGoOn(killed)
	r.servers = append(r.servers, c.Nodes[victim+redistest.Shards])
	r.happened("calls about keys of a node that was lost", r.history.count(&r.history.missed))
}

// ownedByVictim reports whether a key was in the slots of one node. The store's
// shards are stretches of slots, of which a few are on two nodes: those are
// neither's.
func ownedByVictim(store *redisstore.Store, key string, victim int) bool {
	perNode := float64(store.Shards()) / redistest.Shards
	shard := float64(store.ShardOf(key))
	return shard >= perNode*float64(victim) && shard+1 <= perNode*float64(victim+1)
}

// keyOf returns a key that was in the slots of one node.
func (r *run) keyOf(store *redisstore.Store, victim int) (key int) {
	for !ownedByVictim(store, r.request(key, 1).Key, victim) {
		key++
	}
	return key
}

// othersGoOn fails if keys of other nodes were away for as long as those of the
// one that was lost.
func (r *run) othersGoOn(since time.Duration) {
	r.Helper()
	answered := 0
	for _, e := range r.history.events {
		if e.begin > since && e.answered() && !r.counted(e.key) {
			answered++
		}
	}
	lost := r.history.downtime(r.counted)
	kept := r.history.downtime(func(key int) bool { return !r.counted(key) })
	r.Logf("keys of the lost node were away for %v, others for %v at most, %d calls of which were answered", lost, kept, answered)
	if answered == 0 || kept > lost/2 {
		r.Errorf("keys of other nodes were away for %v, those of the lost node for %v", kept, lost)
	}
}

// moveSlots is F9: keys move to other nodes while they are asked for.
func moveSlots(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	moved := 0
	for round := range r.few(1) {
		l.answers(300)
		for i := range int64(8) {
			slot := c.Slot(r, fmt.Sprintf("k%d", max(l.newest.Load()-i, 0)))
			moved += c.MigrateSlot(r, slot, (c.Owner(r, slot)+1+round%2)%redistest.Shards)
		}
	}
	l.answers(300)
	r.servers = append(r.servers, c.Nodes[:redistest.Shards]...)
	r.happened("keys that were moved", moved)
	r.happened("calls that were sent elsewhere", redistest.InfoCounter(r, "errorstat_ASK", c.Nodes...)+redistest.InfoCounter(r, "errorstat_MOVED", c.Nodes...))
}

// forgetScriptsOfAll is F10 in a Cluster.
func forgetScriptsOfAll(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	for range r.few(5) {
		l.answers(100)
		for _, node := range c.Nodes[:redistest.Shards] {
			redistest.MustCommand(r, node, "SCRIPT", "FLUSH")
		}
	}
	l.answers(100)
	r.servers = append(r.servers, c.Nodes[:redistest.Shards]...)
	r.happened("calls of a script that was forgotten", redistest.InfoCounter(r, "errorstat_NOSCRIPT", c.Nodes...))
}
