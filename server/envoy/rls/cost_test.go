// The race detector empties pools at random, so allocations cannot be counted.

//go:build !race

package rls

import (
	"context"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A call allocates the bytes of the response, and three small objects that hand them to
// gRPC.
func TestCallAllocatesOnlyResponse(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(
		"domain: api\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n")})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(set)
	s, err := New(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCodec()
	request := mem.BufferSlice{mem.SliceBuffer("\x0a\x03api\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada")}
	decode := func(v any) error { return c.Unmarshal(request, v) }
	var response mem.BufferSlice
	allocs := testing.AllocsPerRun(500, func() {
		v, err := shouldRateLimit(s, context.Background(), decode, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err = c.Marshal(v); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 4 {
		t.Errorf("a call allocates %v times, want at most 4", allocs)
	}
	if response.Len() == 0 {
		t.Error("the response is empty")
	}
}
