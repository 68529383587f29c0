package goredis_test

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// newCluster starts a Cluster of three primaries, each with a replica.
func newCluster(t *testing.T) []*redistest.Server {
	t.Helper()
	return redistest.StartCluster(t).Nodes[:redistest.Shards]
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

// moveSlot gives the empty slot of a key to another node and returns the old owner.
func moveSlot(t *testing.T, nodes []*redistest.Server, key string) (from *redistest.Server) {
	t.Helper()
	i := slices.IndexFunc(nodes, func(node *redistest.Server) bool {
		_, err := node.Command("EXISTS", key)
		return err == nil
	})
	slot, to := redistest.MustCommand(t, nodes[i], "CLUSTER", "KEYSLOT", key), nodes[(i+1)%len(nodes)]
	for _, node := range []*redistest.Server{to, nodes[i], nodes[(i+2)%len(nodes)]} {
		redistest.MustCommand(t, node, "CLUSTER", "SETSLOT", slot, "NODE", redistest.MustCommand(t, to, "CLUSTER", "MYID"))
	}
	return nodes[i]
}
