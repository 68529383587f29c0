package respapi

import (
	"testing"
)

// Limits in the same slot of the cache are distinguished.
func TestLimiterCacheDistinguishesLimits(t *testing.T) {
	s := newServerWithClock(newFakeClock())
	for i := range int64(2000) {
		for _, p := range []throttleParams{{i, 1, 60}, {5, i + 1, 60}, {5, 1, i + 1}} {
			cached := must(s.limiters.get(p))
			if got, want := cached.limiter.Limit(), must(p.limit()); got != want {
				t.Fatalf("%+v: got %v, want %v", p, got, want)
			}
		}
	}
}
