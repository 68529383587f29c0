package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// Faults of a Cluster.

const cluster = "Cluster"

// killNode is F8: the owner of a third of all keys is killed. Only those are
// unavailable, until its replica has taken over.
func killNode(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	l.awaitAnswers(r.scale(1000))
	const victim = 1
	store := r.open(c.URL(), longTimeout)
	r.affected = func(key int) bool { return ownedByNode(store, r.request(key, 1).Key, victim) }
	killed := time.Since(r.history.start)
	c.Nodes[victim].Kill()
	c.AllowFailover(r)
	r.history.recordLoss()
	l.awaitMisses(50)
	r.awaitFailover(l, c.Nodes[victim+redistest.Shards])
	redistest.WaitFor(r, "a key of the lost node is decided", func() bool {
		_, err := store.Take(context.Background(), r.request(r.keyOnNode(store, victim), 0))
		return err == nil
	})
	l.awaitAnswers(r.scale(500))
	l.end()
	r.checkOtherNodes(killed)
	r.servers = append(r.servers, c.Nodes[victim+redistest.Shards])
	r.prove("calls for keys of a lost node", r.history.count(&r.history.missed))
}

// ownedByNode reports whether a key was in the slots of one node. The store's
// shards are ranges of slots; one that spans two nodes belongs to neither.
func ownedByNode(store *redisstore.Store, key string, victim int) bool {
	perNode := float64(store.Shards()) / redistest.Shards
	shard := float64(store.ShardOf(key))
	return shard >= perNode*float64(victim) && shard+1 <= perNode*float64(victim+1)
}

// keyOnNode returns a key that was in the slots of one node.
func (r *run) keyOnNode(store *redisstore.Store, victim int) (key int) {
	for !ownedByNode(store, r.request(key, 1).Key, victim) {
		key++
	}
	return key
}

// checkOtherNodes fails if keys of other nodes were unavailable for as long as those
// of the lost node.
func (r *run) checkOtherNodes(since time.Duration) {
	r.Helper()
	answered := 0
	for _, e := range r.history.events {
		if e.begin > since && e.answered() && !r.affected(e.key) {
			answered++
		}
	}
	lost := r.history.downtime(r.affected)
	kept := r.history.downtime(func(key int) bool { return !r.affected(key) })
	r.Logf("keys of the lost node were unavailable for %v, others for %v at most, with %d calls answered", lost, kept, answered)
	if answered == 0 || kept > lost/2 {
		r.Errorf("keys of other nodes were unavailable for %v, those of the lost node for %v", kept, lost)
	}
}

// moveSlots is F9: keys move to other nodes while they are in use.
func moveSlots(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	moved := 0
	for round := range r.scale(1) {
		l.awaitAnswers(300)
		for i := range int64(8) {
			slot := c.Slot(r, fmt.Sprintf("k%d", max(l.newestKey.Load()-i, 0)))
			moved += c.MigrateSlot(r, slot, (c.Owner(r, slot)+1+round%2)%redistest.Shards)
		}
	}
	l.awaitAnswers(300)
	r.servers = append(r.servers, c.Nodes[:redistest.Shards]...)
	r.prove("moved keys", moved)
	r.prove("redirected calls", redistest.InfoCounter(r, "errorstat_ASK", c.Nodes...)+redistest.InfoCounter(r, "errorstat_MOVED", c.Nodes...))
}

// flushClusterScripts is F10 in a Cluster.
func flushClusterScripts(r *run) {
	c := redistest.StartCluster(r)
	l := r.start(c.URL())
	for range r.scale(5) {
		l.awaitAnswers(100)
		for _, node := range c.Nodes[:redistest.Shards] {
			redistest.MustCommand(r, node, "SCRIPT", "FLUSH")
		}
	}
	l.awaitAnswers(100)
	r.servers = append(r.servers, c.Nodes[:redistest.Shards]...)
	r.prove("calls of a flushed script", redistest.InfoCounter(r, "errorstat_NOSCRIPT", c.Nodes...))
}
