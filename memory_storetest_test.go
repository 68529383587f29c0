package penstock_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

func TestMemoryPassesStoretest(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
	})
}
