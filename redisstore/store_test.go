package redisstore_test

import (
	"context"
	"slices"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/storetest"
)

func TestStoreConformance(t *testing.T) {
	storetest.Run(t, openShared(openFakeClock(t, redisstore.Options{}), fakeClockServer))
}

// runAgain runs the tests of a store for another way to it. A short run leaves the transcripts, which take most of
// the time, to TestStoreConformance, and concurrent calls to the tests of each way.
func runAgain(t *testing.T, run func(*testing.T, storetest.Open), open storetest.Open) {
	if testing.Short() && !*allProxies && *twemproxy == "" {
		run = storetest.RunRandom
	}
	run(t, open)
}

// In a Cluster keys are on three servers. A TakeAll across slots is not atomic, but
// decides as if it were.
func TestStoreClusterConformance(t *testing.T) {
	t.Parallel()
	c := redistest.StartFakeClockCluster(t)
	one := openURL(t, c.URL(), longTimeout)
	t.Run("keys of all slots", func(t *testing.T) { runAgain(t, storetest.RunSequential, openShared(one, c.Nodes...)) })
	t.Run("keys of one slot", func(t *testing.T) {
		runAgain(t, storetest.Run, func(t testing.TB, clock *storetest.Clock) penstock.Store {
			return tagged{openShared(one, c.Nodes...)(t, clock).(*redisstore.Store)}
		})
	})
	checkExpiry(t, c.Nodes...)
}

// A tagged store keeps all keys in one slot.
type tagged struct{ store *redisstore.Store }

func (s tagged) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	return s.store.Take(ctx, s.tag(r)[0])
}

func (s tagged) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.store.TakeEach(ctx, s.tag(rs...), ds)
}

func (s tagged) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.store.TakeAll(ctx, s.tag(rs...), ds)
}

func (s tagged) tag(rs ...penstock.Request) []penstock.Request {
	rs = slices.Clone(rs)
	for i := range rs {
		if rs[i].Key != "" { // an empty key must stay an error
			rs[i].Key = "{one}" + rs[i].Key
		}
	}
	return rs
}

func TestStoreSentinelConformance(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{FakeClock: true})
	runAgain(t, storetest.Run, openShared(openURL(t, redistest.StartSentinel(t, server.Addr), longTimeout), server))
	checkExpiry(t, server)
}
