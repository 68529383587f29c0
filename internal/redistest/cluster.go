package redistest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A Cluster is three shards, each with a replica or without.
type Cluster struct {
	Nodes []*Server // three that own slots at first, and their replicas
	IDs   []string  // by which they know each other
	bus   []int     // ports on which they talk to each other
}

// Shards is how many shards a Cluster has.
const Shards = 3

// StartCluster starts a Cluster whose shards do without each other, because by
// default all of it stops when one shard is lost.
func StartCluster(t testing.TB) *Cluster {
	return launchCluster(t, 2*Shards, Options{Args: []string{"--cluster-node-timeout", "1000"}})
}

// StartFakeClockCluster starts a Cluster whose clock the test holds. Nobody is ever
// missed there, however far that clock is set.
func StartFakeClockCluster(t testing.TB) *Cluster {
	const ages = "1000000000000000"
	return launchCluster(t, Shards, Options{FakeClock: true, Args: []string{"--cluster-node-timeout", ages}})
}

func launchCluster(t testing.TB, nodes int, o Options) *Cluster {
	t.Helper()
	c := &Cluster{}
	for i := range nodes {
		c.bus = append(c.bus, 0)
		node, err := startSomewhere(func() Options {
			c.bus[i] = FreePort(t)
			with := o
			with.Args = append([]string{
				"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(c.bus[i]), "--cluster-require-full-coverage", "no",
			}, o.Args...)
			return with
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.Stop)
		c.Nodes = append(c.Nodes, node)
	}
	c.join(t)
	return c
}

// join makes one Cluster of the nodes.
func (c *Cluster) join(t testing.TB) {
	t.Helper()
	const slots = 16384
	for i, node := range c.Nodes {
		c.IDs = append(c.IDs, MustCommand(t, node, "CLUSTER", "MYID"))
		MustCommand(t, node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		MustCommand(t, node, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(c.Nodes[0].Port), strconv.Itoa(c.bus[0]))
		if i < Shards {
			MustCommand(t, node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots*i/Shards), strconv.Itoa(slots*(i+1)/Shards-1))
		}
	}
	for i := Shards; i < len(c.Nodes); i++ {
		WaitFor(t, "a node knows its primary", func() bool {
			_, err := c.Nodes[i].Command("CLUSTER", "REPLICATE", c.IDs[i-Shards])
			return err == nil
		})
	}
	WaitFor(t, "the cluster is complete", func() bool { return c.Complete(t) })
}

// Complete reports whether every node knows all others and all slots, and every
// replica has its primary's data.
func (c *Cluster) Complete(t testing.TB) bool {
	t.Helper()
	for _, node := range c.Nodes {
		if node.Clock != nil {
			node.Clock.Set(time.Now().Add(time.Minute)) // a node waits for a while before it takes part
		}
		info := MustCommand(t, node, "CLUSTER", "INFO")
		if strings.Count(MustCommand(t, node, "CLUSTER", "NODES"), "connected") != len(c.Nodes) ||
			!strings.Contains(info, "cluster_slots_ok:16384") || !strings.Contains(info, "cluster_state:ok") {
			return false
		}
		if InfoField(t, node, "role") == "slave" && InfoField(t, node, "master_link_status") != "up" {
			return false
		}
	}
	return true
}

// URL returns what to open a store with.
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

// Owner returns which node is asked about a slot.
func (c *Cluster) Owner(t testing.TB, slot int) int {
	t.Helper()
	for i, node := range c.Nodes {
		for line := range strings.Lines(MustCommand(t, node, "CLUSTER", "NODES")) {
			if strings.Contains(line, "myself,master") && ownsSlot(line, slot) {
				return i
			}
		}
	}
	t.Fatalf("nobody owns slot %d", slot)
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

// MigrateSlot moves a slot to another node, as redis-cli's reshard does it, with a
// pause of one key at a time so that callers meet a slot that is half moved.
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
		MustCommand(t, c.Nodes[from], "MIGRATE", "127.0.0.1", strconv.Itoa(c.Nodes[to].Port), name, "0", "5000")
		keys++
	}
	for _, i := range []int{to, from} {
		MustCommand(t, c.Nodes[i], "CLUSTER", "SETSLOT", number, "NODE", c.IDs[to])
	}
	// Who moves the next slot before all have heard of this one may leave two nodes
	// that take each other for its owner, for ever.
	WaitFor(t, "all nodes know the slot's owner", func() bool { return c.agree(t, slot, c.IDs[to]) })
	return keys
}

// agree reports whether all nodes take the same for a slot's owner.
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
