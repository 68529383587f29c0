package server_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// keyPerNode returns a key of every node of a Cluster, in a shard that the node does not share
// with another.
func keyPerNode(t *testing.T, c *redistest.Cluster) (keys [redistest.Shards]string) {
	t.Helper()
	store, err := redisstore.Open(t.Context(), c.URL(), &redisstore.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for i := range keys {
		middle := store.Shards() * (2*i + 1) / (2 * redistest.Shards)
		for n := 0; keys[i] == ""; n++ {
			if key := "key" + strconv.Itoa(n); store.ShardOf(key) == middle {
				keys[i] = key
			}
		}
	}
	return keys
}

// While one node of a Cluster is down, only its keys are decided by the fallback.
func TestServerDecidesShardsIndependently(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	keys := keyPerNode(t, c)
	d := start(t, map[string]string{"store": c.URL(), "redis-timeout": "10s", "deny-cache": "false", "nodes": "2"})
	for _, key := range keys {
		if source, allowed := d.take(key, quota, "2"); source != "store" || !allowed {
			t.Errorf("with all nodes: %s, %v", source, allowed)
		}
	}
	const victim = 1
	c.Nodes[victim+redistest.Shards].Kill()
	c.Nodes[victim].Kill()
	d.takeAtOnce(5, keys[victim], "1000000/1h name=probe") // which open the breaker
	d.await("degraded", func() bool {
		source, _ := d.take(keys[victim], "1000000/1h name=probe", "1")
		return source == "fallback" && d.isDegraded()
	})
	for i, key := range keys {
		want, share := "store", "8"
		if i == victim {
			want, share = "fallback", "5"
		}
		if source, allowed := d.take(key, quota, share); source != want || !allowed {
			t.Errorf("key of node %d, while node %d is down: %s, %v, want allowed by the %s", i, victim, source, allowed, want)
		}
		if _, allowed := d.take(key, quota, "1"); allowed {
			t.Errorf("key of node %d: allowed beyond the limit", i)
		}
	}
	if err := c.Nodes[victim].Restart(); err != nil {
		t.Fatal(err)
	}
	d.await("decided by all nodes again", func() bool { return !d.isDegraded() && d.log.has("Redis available again") })
	d.await("settled", func() bool { return d.remaining(keys[victim], quota) == "5" }) // the earlier units are lost
	d.await("loss of state logged", func() bool { return d.log.has("Redis lost state") })
	if !strings.Contains(d.log.String(), " of=64") || strings.Contains(d.log.String(), "shards=64 ") {
		t.Errorf("the lost shards are not those of one node:\n%s", d.log)
	}
}

func TestServerStartsWhileClusterIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	keys := keyPerNode(t, c)
	for _, node := range c.Nodes {
		node.Kill()
	}
	d := start(t, map[string]string{"store": c.URL(), "redis-timeout": "10s", "deny-cache": "false"})
	if !d.isDegraded() {
		t.Error("not degraded")
	}
	for _, key := range keys {
		if source, allowed := d.take(key, quota, "4"); source != "fallback" || !allowed {
			t.Errorf("without the Cluster: %s, %v", source, allowed)
		}
	}
	for _, node := range c.Nodes {
		if err := node.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		d.await("decided by the Cluster", func() bool {
			source, _ := d.take(key, "1000000/1h", "1")
			return source == "store" && !d.isDegraded()
		})
		d.await("settled", func() bool { return d.remaining(key, quota) == "6" })
	}
}

// While the primary is down, the fallback decides, until the sentinels have promoted a replica.
func TestServerFollowsSentinelFailover(t *testing.T) {
	t.Parallel()
	w := redistest.StartSentinelGroup(t)
	d := start(t, map[string]string{"store": w.URL(), "redis-timeout": "10s", "deny-cache": "false"})
	d.await("decided by the primary", func() bool {
		source, _ := d.take("other", "1000000/1h", "1")
		return source == "store"
	})
	if source, allowed := d.take("k", quota, "2"); source != "store" || !allowed {
		t.Errorf("with the primary: %s, %v", source, allowed)
	}
	written := redistest.InfoField(t, w.Servers[0], "master_repl_offset")
	for _, replica := range w.Servers[1:] {
		redistest.WaitFor(t, "a replica has it", func() bool { return !isBefore(redistest.InfoField(t, replica, "slave_repl_offset"), written) })
	}
	w.Servers[0].Kill()
	if source, allowed := d.take("k", quota, "3"); source != "fallback" || !allowed {
		t.Errorf("without a primary: %s, %v", source, allowed)
	}
	failOver(d, w)
	d.await("decided by the new primary", func() bool {
		source, _ := d.take("other", "1000000/1h", "1")
		return source == "store" && !d.isDegraded()
	})
	d.await("settled", func() bool { return d.remaining("k", quota) == "5" })
	d.await("replacement logged", func() bool { return d.log.has("restarted or replaced") })
	if d.log.has("Redis lost state") {
		t.Errorf("a loss of state is logged, and nothing was lost:\n%s", d.log)
	}
}

// failOver makes a sentinel promote a replica, and tries again if that is given up. What is read first
// is whether a failover is in progress: one that ends meanwhile shows in the primary, and no second
// one follows it.
func failOver(d *daemon, w *redistest.SentinelGroup) {
	d.t.Helper()
	d.await("another primary", func() bool {
		state := redistest.MustCommand(d.t, w.Sentinels[0], "SENTINEL", "MASTER", redistest.MasterName)
		if w.Primary(d.t) != w.Servers[0] {
			return true
		}
		if !strings.Contains(state, "failover_in_progress") {
			_, _ = w.Sentinels[0].Command("SENTINEL", "FAILOVER", redistest.MasterName) // an error if no replica is fit yet
		}
		return false
	})
}

// isBefore compares two replication offsets.
func isBefore(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
