package goredis_test

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// newCluster starts a Cluster of three nodes, each with a third of the slots.
func newCluster(t *testing.T) []*redistest.Server {
	t.Helper()
	var nodes []*redistest.Server
	for i := range 3 {
		// The bus is reached at the port and 10000 by default, where there
		// may be none.
		node := newServer(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(freePort(t)))
		command(t, node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		command(t, node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(16384*i/3), strconv.Itoa(16384*(i+1)/3-1))
		nodes = append(nodes, node)
	}
	for _, node := range nodes[1:] {
		_, port, _ := strings.Cut(command(t, nodes[0], "CONFIG", "GET", "cluster-port"), "\n")
		command(t, node, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(nodes[0].Port), port)
	}
	for _, node := range nodes {
		waitFor(t, func() bool {
			info := command(t, node, "CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return nodes
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the Cluster does not come together")
		}
	}
}

func addressesOf(nodes []*redistest.Server) (list []string) {
	for _, node := range nodes {
		list = append(list, node.Addr)
	}
	return list
}

func newClusterClient(nodes []*redistest.Server) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addressesOf(nodes), ContextTimeoutEnabled: true})
}

// moveSlot gives the slot of a key, in which there is nothing yet, to another
// node, and returns the node that had it.
func moveSlot(t *testing.T, nodes []*redistest.Server, key string) (from *redistest.Server) {
	t.Helper()
	i := slices.IndexFunc(nodes, func(node *redistest.Server) bool {
		_, err := node.Command("EXISTS", key)
		return err == nil
	})
	slot, to := command(t, nodes[i], "CLUSTER", "KEYSLOT", key), nodes[(i+1)%len(nodes)]
	for _, node := range []*redistest.Server{to, nodes[i], nodes[(i+2)%len(nodes)]} {
		command(t, node, "CLUSTER", "SETSLOT", slot, "NODE", command(t, to, "CLUSTER", "MYID"))
	}
	return nodes[i]
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
