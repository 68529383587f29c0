package server

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/wraptest"
	"github.com/penstock-io/penstock/storetest"
)

// farMemory is a store in memory in the place of one on the network.
type farMemory struct{ *penstock.Memory }

func (farMemory) Shards() int            { return 1 }
func (farMemory) ShardOf(string) int     { return 0 }
func (farMemory) Timeout() time.Duration { return 0 }

func TestTimedStoreIsAStore(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
		return newTimedStore(farMemory{memory}, "memory", newMetrics(), nil)
	})
}

func TestStoreMetricsChangeNoDecision(t *testing.T) {
	wraptest.CheckWatcher(t.Context(), t, wraptest.Wrapper{Name: "timedStore", Wrap: func(s penstock.Store) penstock.Store {
		return newTimedStore(s, "redis", newMetrics(), nil)
	}})
	wraptest.CheckWatcher(t.Context(), t, wraptest.Wrapper{Name: "sourceCounter", Wrap: func(s penstock.Store) penstock.Store {
		return countSources(s, newMetrics())
	}})
}
