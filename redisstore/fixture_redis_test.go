package redisstore_test

import (
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

var (
	mustCommand = redistest.MustCommand
	waitFor     = redistest.WaitFor
	infoField   = redistest.InfoField
	infoCounter = redistest.InfoCounter
	checkExpiry = redistest.CheckExpiry
	freePort    = redistest.FreePort
	startProxy  = redistest.StartProxy
)

// startServer starts a server for one test, with further redis-server arguments.
func startServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	return redistest.StartForTest(t, redistest.Options{Args: args})
}

const shards = redistest.Shards

// A cluster is a Redis Cluster with the helpers of these tests.
type cluster struct{ *redistest.Cluster }

// isProbe reports whether calls are those by which a store finds out what a server does with scripts.
func isProbe(calls []redisstore.Call) bool { return len(calls) > 0 && calls[0].Script.Name == "probe" }
