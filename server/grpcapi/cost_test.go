// The race detector makes pools forget at random, so that nothing can be counted.

//go:build !race

package grpcapi

import (
	"context"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// Of what gRPC asks for, only the answer is new each time: its bytes, and three
// small things to hand them over in.
func TestCallAllocatesOnlyResponse(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(
		"domain: house\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n")})
	if err != nil {
		t.Fatal(err)
	}
	j := engine.New(penstock.NewMemory(nil), nil)
	j.SetRules(set)
	d, err := New(j, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCodec()
	request := mem.BufferSlice{mem.SliceBuffer("\x0a\x05house\x12\x0d\x0a\x0b\x0a\x04user\x12\x03ada")}
	decode := func(v any) error { return c.Unmarshal(request, v) }
	var answer mem.BufferSlice
	allocs := testing.AllocsPerRun(500, func() {
		v, err := shouldRateLimit(d, context.Background(), decode, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err = c.Marshal(v); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 4 {
		t.Errorf("a call allocates %v times, want at most 4", allocs)
	}
	if answer.Len() == 0 {
		t.Error("the answer is empty")
	}
}
