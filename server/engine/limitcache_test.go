package engine

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock"
)

// The cache has a fixed number of slots, and parses an evicted limit again.
func TestLimitCacheIsBounded(t *testing.T) {
	if _, err := newLimitCache(nil, newRequestPolicy(RequestLimits{}), nil).get("1/s"); err == nil {
		t.Error("without a store: want an error")
	}
	e := New(penstock.NewMemory(nil), nil)
	for i := range 5000 {
		text := fmt.Sprintf("10/1s burst=%d name=n%d", 1+i%9, i)
		r, err := e.RequestUnder(text, nil)
		if err != nil || r.Limit.Count != 10 || r.Cost != 1 || r.Limit.Name != fmt.Sprintf("n%d", i) {
			t.Fatalf("%s: got %+v, %v", text, r, err)
		}
	}
	if n := len(e.limits.slots); n != 1024 {
		t.Errorf("got %d slots, want 1024", n)
	}
}
