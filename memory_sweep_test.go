package penstock

import (
	"context"
	"strconv"
	"testing"
	"time"
)

// Sweeps that succeed do not count down: after two billion of them the number would wrap around,
// and as many failed allocations would sweep only one shard each.
func TestMemorySweepsThatSucceedDoNotCountDown(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := NewMemory(&MemoryOptions{Now: func() time.Time { return now }})
	for range 3 {
		for i := range 1000 {
			if _, err := m.Take(context.Background(), Request{Key: strconv.Itoa(i), Limit: PerSecond(1), Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(time.Hour)
		if !m.sweepUntil(trusted, func() bool { return true }) {
			t.Fatal("nothing was swept")
		}
	}
	if got := m.sweepBackoff[trusted].Load(); got != 0 {
		t.Errorf("%d allocations may fail, want 0", got)
	}
}
