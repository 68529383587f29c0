package redisstore

import (
	"testing"
	"testing/synctest"
	"time"
)

// The silence after one call does not end early that after another, which was abandoned later.
func TestInflightLimiterKeepsEachAbandonedSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silence = 3 * time.Second
		l := newInflightLimiter(2, time.Second, silence)
		abandonOne := func() {
			l.slots <- struct{}{}
			l.abandon(1)
		}
		abandonOne()
		l.releaseAbandoned()
		if l.held() != 0 {
			t.Error("Redis answers, and a slot is held")
		}
		time.Sleep(silence - time.Millisecond)
		abandonOne()
		time.Sleep(silence - time.Millisecond)
		synctest.Wait()
		if l.held() != 1 || l.abandoned.Load() != 1 {
			t.Errorf("%d slots of %d abandoned calls are held, want 1 of 1", l.held(), l.abandoned.Load())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if l.held() != 0 || l.abandoned.Load() != 0 {
			t.Errorf("after the silence, %d slots of %d abandoned calls are held", l.held(), l.abandoned.Load())
		}
	})
}
