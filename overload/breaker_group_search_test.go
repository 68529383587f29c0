package overload

import (
	"fmt"
	"testing"
)

// A call of a new key does not search a large group for the one breaker that is idle.
func TestBreakerGroupSearchIsBounded(t *testing.T) {
	const busy = 50_000
	g := NewBreakerGroup(&BreakerGroupOptions{MaxKeys: busy + 1})
	for i := range busy {
		g.acquire(fmt.Sprint("busy", i))
	}
	found := 0
	for range 5 {
		g.acquire("idle").inFlight.Store(0)
		if g.evict() {
			found++
		}
	}
	if found == 5 {
		t.Error("the idle breaker was found each time")
	}
}
