package redistest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A Cluster has three shards, with or without replicas.
type Cluster struct {
	Nodes []*Server // three initial primaries, then their replicas
	IDs   []string  // node IDs
}

// Shards is the number of shards of a Cluster.
const Shards = 3

// StartCluster starts a Cluster with replicas. They do not take over before
// AllowFailover, however long the machine suspends a primary. The loss of one shard
// does not stop the others, as it would by default.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := startCluster(t, 2*Shards, Options{Args: []string{
		"--cluster-node-timeout", "1000", // nodes find each other faster than with a longer one
		"--cluster-replica-no-failover", "yes",
		"--cluster-replica-validity-factor", "0", // a replica may have lost its primary long ago
	}})
	c.configure(t, "cluster-node-timeout", "3600000")
	return c
}

// AllowFailover lets replicas take over from primaries that do not answer for a second.
func (c *Cluster) AllowFailover(t testing.TB) {
	t.Helper()
	c.configure(t, "cluster-replica-no-failover", "no")
	c.configure(t, "cluster-node-timeout", "1000")
}

// configure sets a parameter of all nodes that were not killed.
func (c *Cluster) configure(t testing.TB, name, value string) {
	t.Helper()
	for _, node := range c.Nodes {
		if node.running() {
			MustCommand(t, node, "CONFIG", "SET", name, value)
		}
	}
}

// StartFakeClockCluster starts a Cluster without replicas, whose clocks the test
// sets. Its nodes never consider each other failed, however far the clock steps.
func StartFakeClockCluster(t testing.TB) *Cluster {
	const never = "1000000000000000"
	return startCluster(t, Shards, Options{FakeClock: true, Args: []string{"--cluster-node-timeout", never}})
}

func startCluster(t testing.TB, nodes int, o Options) *Cluster {
	t.Helper()
	o.bus = true
	o.Args = append([]string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"}, o.Args...)
	c := &Cluster{Nodes: startAll(t, nodes, func(int) Options { return o })}
	c.join(t)
	return c
}

// join connects the nodes to one Cluster.
func (c *Cluster) join(t testing.TB) {
	t.Helper()
	const slots = 16384
	for i, node := range c.Nodes {
		c.IDs = append(c.IDs, MustCommand(t, node, "CLUSTER", "MYID"))
		MustCommand(t, node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < Shards {
			MustCommand(t, node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots*i/Shards), strconv.Itoa(slots*(i+1)/Shards-1))
		}
	}
	WaitFor(t, "all nodes know the first, and it knows them", func() bool { return c.meet(t) })
	for i := Shards; i < len(c.Nodes); i++ {
		WaitFor(t, "replica knows its primary", func() bool {
			_, err := c.Nodes[i].Command("CLUSTER", "REPLICATE", c.IDs[i-Shards])
			return err == nil
		})
	}
	WaitFor(t, "Cluster is complete", func() bool { return c.Complete(t) })
}

// meet introduces to the first node those that it does not know, or that do not know it, and reports
// whether there were none. It is repeated: a node gives up a handshake after a second, for which a
// busy machine may suspend the other node.
func (c *Cluster) meet(t testing.TB) (met bool) {
	t.Helper()
	first := c.Nodes[0]
	known := MustCommand(t, first, "CLUSTER", "NODES")
	met = true
	for i, node := range c.Nodes[1:] {
		if strings.Contains(known, c.IDs[i+1]) && strings.Contains(MustCommand(t, node, "CLUSTER", "NODES"), c.IDs[0]) {
			continue
		}
		met = false
		MustCommand(t, node, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(first.Port), strconv.Itoa(first.bus))
	}
	return met
}

// Complete reports whether every node knows all nodes and all slots, and every
// replica has its primary's data.
func (c *Cluster) Complete(t testing.TB) bool {
	t.Helper()
	for _, node := range c.Nodes {
		if node.Clock != nil {
			node.Clock.Set(time.Now().Add(time.Minute)) // a node waits before it serves slots
		}
		info := MustCommand(t, node, "CLUSTER", "INFO")
		if strings.Count(MustCommand(t, node, "CLUSTER", "NODES"), " connected") != len(c.Nodes) ||
			!strings.Contains(info, "cluster_slots_ok:16384") || !strings.Contains(info, "cluster_state:ok") {
			return false
		}
		if InfoField(t, node, "role") == "slave" && InfoField(t, node, "master_link_status") != "up" {
			return false
		}
	}
	return true
}

// URL returns the URL of all nodes.
func (c *Cluster) URL() string { return "redis-cluster://" + addresses(c.Nodes) }

// Slot returns the slot of a key.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	slot, err := strconv.Atoi(MustCommand(t, c.Nodes[0], "CLUSTER", "KEYSLOT", key))
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// Owner returns the index of the primary that owns a slot.
func (c *Cluster) Owner(t testing.TB, slot int) int {
	t.Helper()
	for i, node := range c.Nodes {
		for line := range strings.Lines(MustCommand(t, node, "CLUSTER", "NODES")) {
			if strings.Contains(line, "myself,master") && ownsSlot(line, slot) {
				return i
			}
		}
	}
	t.Fatalf("no node owns slot %d", slot)
	return 0
}

// ownsSlot reports whether a line of CLUSTER NODES lists a slot.
func ownsSlot(line string, slot int) bool {
	fields := strings.Fields(line)
	return slices.ContainsFunc(fields[8:], func(r string) bool {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		return err1 == nil && err2 == nil && from <= slot && slot <= to
	})
}

// MigrateSlot moves a slot to another node as redis-cli reshard does, one key at a
// time so that callers meet a half-moved slot. It returns the number of moved keys.
func (c *Cluster) MigrateSlot(t testing.TB, slot, to int) (keys int) {
	t.Helper()
	from, number := c.Owner(t, slot), strconv.Itoa(slot)
	if from == to {
		return 0
	}
	MustCommand(t, c.Nodes[to], "CLUSTER", "SETSLOT", number, "IMPORTING", c.IDs[from])
	MustCommand(t, c.Nodes[from], "CLUSTER", "SETSLOT", number, "MIGRATING", c.IDs[to])
	for {
		name := MustCommand(t, c.Nodes[from], "CLUSTER", "GETKEYSINSLOT", number, "1")
		if name == "" {
			break
		}
		MustCommand(t, c.Nodes[from], "MIGRATE", "127.0.0.1", strconv.Itoa(c.Nodes[to].Port), name, "0", strconv.FormatInt(waitLimit.Milliseconds(), 10))
		keys++
	}
	for _, i := range []int{to, from} {
		MustCommand(t, c.Nodes[i], "CLUSTER", "SETSLOT", number, "NODE", c.IDs[to])
	}
	// Moving the next slot before all nodes know this one can leave two nodes that
	// consider each other the owner, permanently.
	WaitFor(t, "all nodes know the owner of the slot", func() bool { return c.agree(t, slot, c.IDs[to]) })
	return keys
}

// agree reports whether all nodes consider the node with this ID the slot's owner.
func (c *Cluster) agree(t testing.TB, slot int, id string) bool {
	t.Helper()
	for _, node := range c.Nodes {
		for line := range strings.Lines(MustCommand(t, node, "CLUSTER", "NODES")) {
			if ownsSlot(line, slot) != strings.HasPrefix(line, id) {
				return false
			}
		}
	}
	return true
}
