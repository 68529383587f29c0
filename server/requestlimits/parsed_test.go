package requestlimits

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock"
)

// The cache has a fixed number of slots, and parses an evicted limit again.
func TestParsedLimitsAreBounded(t *testing.T) {
	if _, err := New(nil, Options{}).ParseLimit("1/s"); err == nil {
		t.Error("without a store: want an error")
	}
	p := New(penstock.NewMemory(nil), Options{})
	for i := range 5000 {
		text := fmt.Sprintf("10/1s burst=%d name=n%d", 1+i%9, i)
		r, err := p.RequestUnder(text, nil)
		if err != nil || r.Limit.Count != 10 || r.Cost != 1 || r.Limit.Name != fmt.Sprintf("n%d", i) {
			t.Fatalf("%s: got %+v, %v", text, r, err)
		}
	}
	if n := len(p.parsed.slots); n != 1024 {
		t.Errorf("got %d slots, want 1024", n)
	}
}
