package redisstore_test

import "github.com/penstock-io/penstock/internal/redistest"

// Servers, what is done to them and the ways there are redistest's.
var (
	launch     = redistest.StartForTest
	tell       = redistest.MustCommand
	await      = redistest.WaitFor
	field      = redistest.InfoField
	stat       = redistest.InfoCounter
	mortal     = redistest.CheckExpiry
	freePort   = redistest.FreePort
	startProxy = redistest.StartProxy
)

const shards = redistest.Shards

// A cluster is one that the tests of this package know their way around.
type cluster struct{ *redistest.Cluster }
