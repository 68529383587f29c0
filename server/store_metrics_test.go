package server

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

func TestTimedStoreIsAStore(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
		return newTimedStore(memory, "memory", newMetrics())
	})
}
