package hitcount

import (
	"fmt"
	"testing"
)

// The figures are those of envoyproxy/ratelimit for a limit of ten.
func TestAddCountsPartsOfHits(t *testing.T) {
	for _, c := range []struct {
		d    Decision
		want string
	}{
		{Decision{Hits: 7}, "total=7 over=0 near=0 within=7 cached=0 shadow=0"},
		{Decision{Hits: 2, Before: 7}, "total=2 over=0 near=1 within=2 cached=0 shadow=0"},
		{Decision{Hits: 4, Before: 9, Denied: true}, "total=4 over=3 near=1 within=0 cached=0 shadow=0"},
		{Decision{Hits: 4, Before: 13, Denied: true, Shadow: true}, "total=4 over=4 near=0 within=0 cached=0 shadow=4"},
		{Decision{Hits: 4, Denied: true, Cached: true}, "total=4 over=4 near=0 within=0 cached=4 shadow=0"},
		// Hits that were not added: nine, of which three or six hundred are taken to be the last.
		{Decision{Hits: 3, Before: 6}, "total=3 over=0 near=1 within=3 cached=0 shadow=0"},
		{Decision{Hits: 600, Before: 9 - 600}, "total=600 over=0 near=600 within=600 cached=0 shadow=0"},
		{Decision{Hits: 600, Before: 8 - 600}, "total=600 over=0 near=0 within=600 cached=0 shadow=0"},
	} {
		c.d.Limit, c.d.NearLimitRatio = 10, 0.8
		var h Hits
		h.Add(&c.d)
		got := fmt.Sprintf("total=%d over=%d near=%d within=%d cached=%d shadow=%d", h.Total.Load(), h.OverLimit.Load(),
			h.NearLimit.Load(), h.WithinLimit.Load(), h.OverLimitCached.Load(), h.Shadow.Load())
		if got != c.want {
			t.Errorf("%+v: got %s, want %s", c.d, got, c.want)
		}
	}
}
