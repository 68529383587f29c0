package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// floor starts a server with a constant response: this program itself.
func (b *bench) floor(kind string) *process {
	addr := freeAddr()
	return b.start("constant", addr, harness.Child(kind+"@"+addr))
}

// serveFloor is that server, of kind@address.
func serveFloor(floor string) {
	kind, addr, _ := strings.Cut(floor, "@")
	l := harness.Must(net.Listen("tcp", addr))
	if descriptors, isGRPC := map[string]int{"grpc1": 1, "grpc3": 3}[kind]; isGRPC {
		harness.Check(serveConstantRLS(l, descriptors))
	}
	harness.Check(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // on loopback, for seconds
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, constantJSON)
	})))
}

// constantJSON resembles a decision.
const constantJSON = `{"allowed":true,"granted":1,"limit":1000,"remaining":999,"reset_after":3.6}` + "\n"

// constantRLS is a rate limit service with the generated stubs that always responds OK.
type constantRLS struct {
	rlspb.UnimplementedRateLimitServiceServer
	response *rlspb.RateLimitResponse
}

func (c *constantRLS) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return c.response, nil
}

func serveConstantRLS(l net.Listener, descriptors int) error {
	status := &rlspb.RateLimitResponse_DescriptorStatus{
		Code:           rlspb.RateLimitResponse_OK,
		CurrentLimit:   &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1000, Unit: rlspb.RateLimitResponse_RateLimit_HOUR},
		LimitRemaining: 999,
	}
	response := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	response.Statuses = slices.Repeat([]*rlspb.RateLimitResponse_DescriptorStatus{status}, descriptors)
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, &constantRLS{response: response})
	return s.Serve(l)
}
