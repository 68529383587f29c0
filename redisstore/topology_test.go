package redisstore_test

import "github.com/penstock-io/penstock/internal/redistest"

// Servers, what is done to them and the ways there are redistest's.
var (
	startServer = redistest.StartForTest
	mustCommand = redistest.MustCommand
	waitFor     = redistest.WaitFor
	infoField   = redistest.InfoField
	infoCounter = redistest.InfoCounter
	checkExpiry = redistest.CheckExpiry
	freePort    = redistest.FreePort
	startProxy  = redistest.StartProxy
)

const shards = redistest.Shards

// A cluster is one that the tests of this package know their way around.
type cluster struct{ *redistest.Cluster }
