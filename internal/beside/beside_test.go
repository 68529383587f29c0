package beside_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/beside"
)

func TestPoolRunsBesideItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which ends only if all goroutines do
		c, running, ended := beside.NewPool(), make(chan struct{}), atomic.Int64{}
		for range 3 {
			waits := make([]func(), 4)
			for i := range waits {
				waits[i] = c.Start(func() {
					running <- struct{}{}
					ended.Add(1)
				})
			}
			for range waits {
				<-running // all run at once
			}
			for _, wait := range waits {
				wait()
			}
		}
		if n := ended.Load(); n != 12 {
			t.Errorf("%d calls have ended, want 12", n)
		}
		time.Sleep(2 * time.Second)
	})
}
