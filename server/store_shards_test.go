package server_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// keysOf returns a key in the slots of every node of a Cluster, away from those that
// share a shard with another's.
func keysOf(t *testing.T, c *redistest.Cluster) (keys [redistest.Shards]string) {
	t.Helper()
	store, err := redisstore.Open(t.Context(), c.URL(), nil)
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

// When one node of a Cluster is lost for good, its keys are decided without it, and
// all others as ever.
func TestOneShardIsDecidedWithoutIt(t *testing.T) {
	c := redistest.StartCluster(t)
	keys := keysOf(t, c)
	d := start(t, map[string]string{"store": c.URL(), "redis-timeout": "1s", "deny-cache": "false", "nodes": "2"})
	for _, key := range keys {
		if source, allowed := d.takes(key, quota, "2"); source != "store" || !allowed {
			t.Errorf("with all nodes: %s, %v", source, allowed)
		}
	}
	const victim = 1
	c.Nodes[victim+redistest.Shards].Kill()
	c.Nodes[victim].Kill()
	d.await("known to be degraded", func() bool {
		source, _ := d.takes(keys[victim], "1000000/1h name=noticing", "1")
		return source == "fallback" && d.isDegraded()
	})
	for i, key := range keys {
		want, share := "store", "8"
		if i == victim {
			want, share = "fallback", "5"
		}
		if source, allowed := d.takes(key, quota, share); source != want || !allowed {
			t.Errorf("of node %d, while node %d is away: %s, %v, want it allowed by the %s", i, victim, source, allowed, want)
		}
		if _, allowed := d.takes(key, quota, "1"); allowed {
			t.Errorf("of node %d: more than there is", i)
		}
	}
	if err := c.Nodes[victim].Restart(); err != nil {
		t.Fatal(err)
	}
	d.await("by all nodes again", func() bool { return !d.isDegraded() && d.log.has("deciding by Redis again") })
	d.await("settled", func() bool { return d.remains(keys[victim], quota) == "5" }) // what was before is lost
	d.await("known to have lost something", func() bool { return d.log.has("Redis has lost what it counted") })
	if !strings.Contains(d.log.String(), " of=64") || strings.Contains(d.log.String(), "shards=64 ") {
		t.Errorf("what was lost is not what one node had:\n%s", d.log)
	}
}

// A server starts without a Cluster, and goes by it as soon as it is there.
func TestStartsWithoutACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	keys := keysOf(t, c)
	for _, node := range c.Nodes {
		node.Kill()
	}
	d := start(t, map[string]string{"store": c.URL(), "redis-timeout": "1s", "deny-cache": "false"})
	if !d.isDegraded() {
		t.Error("not said to be degraded")
	}
	for _, key := range keys {
		if source, allowed := d.takes(key, quota, "4"); source != "fallback" || !allowed {
			t.Errorf("without the Cluster: %s, %v", source, allowed)
		}
	}
	for _, node := range c.Nodes {
		if err := node.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		d.await("by the Cluster", func() bool {
			source, _ := d.takes(key, "1000000/1h", "1")
			return source == "store" && !d.isDegraded()
		})
		d.await("settled", func() bool { return d.remains(key, quota) == "6" })
	}
}

// When the primary is lost, the server decides without it until the sentinels have
// another, and goes on with what that has.
func TestDecidesUntilThereIsAnotherPrimary(t *testing.T) {
	w := redistest.StartSentinelGroup(t)
	d := start(t, map[string]string{"store": w.URL(), "redis-timeout": "100ms", "deny-cache": "false"})
	d.await("decided by the primary", func() bool {
		source, _ := d.takes("other", "1000000/1h", "1")
		return source == "store"
	})
	d.takes("k", quota, "2")
	written := redistest.InfoField(t, w.Servers[0], "master_repl_offset")
	for _, replica := range w.Servers[1:] {
		redistest.WaitFor(t, "a replica has it", func() bool { return !isBefore(redistest.InfoField(t, replica, "slave_repl_offset"), written) })
	}
	w.Servers[0].Kill()
	if source, allowed := d.takes("k", quota, "3"); source != "fallback" || !allowed {
		t.Errorf("without a primary: %s, %v", source, allowed)
	}
	redistest.WaitFor(t, "the sentinels choose another primary", func() bool { return w.Primary(t) != w.Servers[0] })
	d.await("decided by the new primary", func() bool {
		source, _ := d.takes("other", "1000000/1h", "1")
		return source == "store" && !d.isDegraded()
	})
	d.await("settled", func() bool { return d.remains("k", quota) == "5" })
	d.await("known to be another", func() bool { return d.log.has("started again or replaced") })
	if d.log.has("Redis has lost what it counted") {
		t.Errorf("nothing was lost:\n%s", d.log)
	}
}

// isBefore compares two positions in the stream of what a primary has written.
func isBefore(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
