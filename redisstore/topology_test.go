package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// launch starts a server for one test.
func launch(t *testing.T, o redistest.Options) *redistest.Server {
	t.Helper()
	server, err := startSomewhere(func() redistest.Options { return o })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// startSomewhere tries a few times, because a port that was free may be taken
// before the server has it.
func startSomewhere(options func() redistest.Options) (server *redistest.Server, err error) {
	for range 5 {
		if server, err = redistest.Start(options()); err == nil {
			return server, nil
		}
	}
	return nil, err
}

// tell gives a server a command that it must carry out.
func tell(t *testing.T, server *redistest.Server, words ...string) string {
	t.Helper()
	answer, err := server.Command(words...)
	if err != nil {
		t.Fatalf("%s on %s: %v", strings.Join(words, " "), server.Addr, err)
	}
	return answer
}

// patience is after what time a test gives up, on the slowest of machines.
const patience = 40 * time.Second

// await waits until something is the case.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// field returns a field of what INFO says.
func field(t *testing.T, server *redistest.Server, name string) string {
	t.Helper()
	for line := range strings.Lines(tell(t, server, "INFO", "everything")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// stat returns a number that INFO counts, as cmdstat_evalsha or errorstat_MOVED.
func stat(t *testing.T, name string, servers ...*redistest.Server) (sum int) {
	t.Helper()
	for _, server := range servers {
		_, count, _ := strings.Cut(field(t, server, name), "=")
		count, _, _ = strings.Cut(count, ",")
		n, _ := strconv.Atoi(count)
		sum += n
	}
	return sum
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// A cluster is three shards, each with a replica or without.
type cluster struct {
	nodes []*redistest.Server // three that own slots at first, and their replicas
	bus   []int               // ports on which nodes talk to each other
	ids   []string
}

const shards = 3

// startCluster starts a Cluster whose shards do without each other, because by
// default all of it stops when one shard is lost.
func startCluster(t *testing.T) *cluster {
	return launchCluster(t, 2*shards, redistest.Options{Args: []string{"--cluster-node-timeout", "1000"}})
}

// startHeldCluster starts a Cluster whose clock the test holds. Nobody is ever
// missed there, however far that clock is set.
func startHeldCluster(t *testing.T) *cluster {
	const ages = "1000000000000000"
	return launchCluster(t, shards, redistest.Options{HeldClock: true, Args: []string{"--cluster-node-timeout", ages}})
}

func launchCluster(t *testing.T, nodes int, o redistest.Options) *cluster {
	t.Helper()
	c := &cluster{}
	for i := range nodes {
		c.bus = append(c.bus, 0)
		node, err := startSomewhere(func() redistest.Options {
			c.bus[i] = freePort(t)
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
		c.nodes = append(c.nodes, node)
	}
	c.join(t)
	return c
}

// join makes one Cluster of the nodes.
func (c *cluster) join(t *testing.T) {
	t.Helper()
	const slots = 16384
	for i, node := range c.nodes {
		c.ids = append(c.ids, tell(t, node, "CLUSTER", "MYID"))
		tell(t, node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		tell(t, node, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(c.nodes[0].Port), strconv.Itoa(c.bus[0]))
		if i < shards {
			tell(t, node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots*i/shards), strconv.Itoa(slots*(i+1)/shards-1))
		}
	}
	for i := shards; i < len(c.nodes); i++ {
		await(t, "a node knows its primary", func() bool {
			_, err := c.nodes[i].Command("CLUSTER", "REPLICATE", c.ids[i-shards])
			return err == nil
		})
	}
	await(t, "the cluster is complete", func() bool { return c.complete(t) })
}

// complete reports whether every node knows all others and all slots, and every
// replica has its primary's data.
func (c *cluster) complete(t *testing.T) bool {
	t.Helper()
	for _, node := range c.nodes {
		if node.Clock != nil {
			node.Clock.Set(time.Now().Add(time.Minute)) // a node waits for a while before it takes part
		}
		info := tell(t, node, "CLUSTER", "INFO")
		if strings.Count(tell(t, node, "CLUSTER", "NODES"), "connected") != len(c.nodes) ||
			!strings.Contains(info, "cluster_slots_ok:16384") || !strings.Contains(info, "cluster_state:ok") {
			return false
		}
		if field(t, node, "role") == "slave" && field(t, node, "master_link_status") != "up" {
			return false
		}
	}
	return true
}

func (c *cluster) url() string { return "redis-cluster://" + addresses(c.nodes) }

// owner returns which node is asked about a slot.
func (c *cluster) owner(t *testing.T, slot int) int {
	t.Helper()
	for i, node := range c.nodes {
		for line := range strings.Lines(tell(t, node, "CLUSTER", "NODES")) {
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

// migrate moves a slot to another node, as redis-cli's reshard does it, with a
// pause of one key at a time so that callers meet a slot that is half moved.
func (c *cluster) migrate(t *testing.T, slot, to int) (keys int) {
	t.Helper()
	from, number := c.owner(t, slot), strconv.Itoa(slot)
	if from == to {
		return 0
	}
	tell(t, c.nodes[to], "CLUSTER", "SETSLOT", number, "IMPORTING", c.ids[from])
	tell(t, c.nodes[from], "CLUSTER", "SETSLOT", number, "MIGRATING", c.ids[to])
	for {
		name := tell(t, c.nodes[from], "CLUSTER", "GETKEYSINSLOT", number, "1")
		if name == "" {
			break
		}
		tell(t, c.nodes[from], "MIGRATE", "127.0.0.1", strconv.Itoa(c.nodes[to].Port), name, "0", "5000")
		keys++
	}
	for _, i := range []int{to, from} {
		tell(t, c.nodes[i], "CLUSTER", "SETSLOT", number, "NODE", c.ids[to])
	}
	// Who moves the next slot before all have heard of this one may leave two nodes
	// that take each other for its owner, for ever.
	await(t, "all nodes know the slot's owner", func() bool { return c.agree(t, slot, c.ids[to]) })
	return keys
}

// agree reports whether all nodes take the same for a slot's owner.
func (c *cluster) agree(t *testing.T, slot int, id string) bool {
	t.Helper()
	for _, node := range c.nodes {
		for line := range strings.Lines(tell(t, node, "CLUSTER", "NODES")) {
			if ownsSlot(line, slot) != strings.HasPrefix(line, id) {
				return false
			}
		}
	}
	return true
}

// A watched is a primary with two replicas, and three sentinels that watch it.
type watched struct {
	servers   []*redistest.Server // the first is the primary at first
	sentinels []*redistest.Server
}

const masterName = "limits"

func startWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{servers: []*redistest.Server{launch(t, redistest.Options{})}}
	primary := strconv.Itoa(w.servers[0].Port)
	for range 2 {
		w.servers = append(w.servers, launch(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1 " + primary}}))
	}
	for _, replica := range w.servers[1:] {
		await(t, "a replica has its primary's data", func() bool { return field(t, replica, "master_link_status") == "up" })
	}
	config := fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s 127.0.0.1 %[2]s 2\n"+
		"sentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 1500\n", masterName, primary)
	for range 3 {
		sentinel := launch(t, redistest.Options{Sentinel: config})
		tell(t, sentinel, "SENTINEL", "DEBUG", "info-period", "200", "publish-period", "200", "ping-period", "100",
			"ask-period", "200") // they look every few seconds by default
		w.sentinels = append(w.sentinels, sentinel)
	}
	for _, sentinel := range w.sentinels {
		await(t, "the sentinels know each other and the replicas", func() bool {
			return strings.Contains(tell(t, sentinel, "INFO", "sentinel"), "slaves=2,sentinels=3")
		})
	}
	return w
}

// watch starts one sentinel that watches an address, and returns the URL of that.
func watch(t *testing.T, address string) (url string) {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	sentinel := launch(t, redistest.Options{Sentinel: fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %s %s %s 1\n", masterName, host, port)})
	return "redis-sentinel://" + sentinel.Addr + "/" + masterName
}

func (w *watched) url() string {
	return "redis-sentinel://" + addresses(w.sentinels) + "/" + masterName
}

// primary returns the server that a sentinel takes for the primary.
func (w *watched) primary(t *testing.T) *redistest.Server {
	t.Helper()
	address := tell(t, w.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	for _, server := range w.servers {
		if address == fmt.Sprintf("127.0.0.1\n%d", server.Port) {
			return server
		}
	}
	t.Fatalf("the sentinels name %q, which nobody started", address)
	return nil
}

func addresses(servers []*redistest.Server) string {
	list := make([]string, len(servers))
	for i, server := range servers {
		list[i] = server.Addr
	}
	return strings.Join(list, ",")
}
