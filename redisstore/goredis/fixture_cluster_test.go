package goredis_test

import (
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// newCluster starts a Cluster of three primaries, each with a replica, and returns the
// primaries.
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
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addressesOf(nodes), ContextTimeoutEnabled: true, DialTimeout: longTimeout, ReadTimeout: longTimeout, WriteTimeout: longTimeout,
	})
}
