// The race detector empties pools at random, so allocations cannot be counted.

//go:build !race

package rls

import (
	"context"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

func TestCallAllocatesNothing(t *testing.T) {
	s := newService(t, &ServiceOptions{})
	data := marshal(t, &pb.RateLimitRequest{Domain: "api", Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}}},
	}})
	var c Call
	var out []byte
	allocs := testing.AllocsPerRun(500, func() {
		if err := c.Request.Unmarshal(data, 64, 16); err != nil {
			t.Fatal(err)
		}
		if err := s.Handle(context.Background(), &c, Caller{}); err != nil {
			t.Fatal(err)
		}
		out = c.Response.Append(out[:0])
	})
	if allocs > 0 {
		t.Errorf("decoding, deciding and encoding allocate %v times, want 0", allocs)
	}
	if len(out) == 0 {
		t.Error("the encoded response is empty")
	}
}
