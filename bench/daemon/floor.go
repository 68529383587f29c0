package main

import (
	"context"
	"net"
	"net/http"
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
	switch kind {
	case "grpc1":
		harness.Check(serveConstantRLS(l, 1))
	case "grpc3":
		harness.Check(serveConstantRLS(l, 3))
	default:
		harness.Check(serveConstantJSON(l))
	}
}

// constantRLS is a rate limit service with the generated stubs that always responds OK.
type constantRLS struct {
	rlspb.UnimplementedRateLimitServiceServer
	response *rlspb.RateLimitResponse
}

func (c *constantRLS) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return c.response, nil
}

func serveConstantRLS(l net.Listener, descriptors int) error {
	response := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	for range descriptors {
		response.Statuses = append(response.Statuses, &rlspb.RateLimitResponse_DescriptorStatus{
			Code:           rlspb.RateLimitResponse_OK,
			CurrentLimit:   &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1000, Unit: rlspb.RateLimitResponse_RateLimit_HOUR},
			LimitRemaining: 999,
		})
	}
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, &constantRLS{response: response})
	return s.Serve(l)
}

// constantJSON resembles a decision.
const constantJSON = `{"allowed":true,"granted":1,"limit":1000,"remaining":999,"reset_after":3.6}` + "\n"

func serveConstantJSON(l net.Listener) error {
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // on loopback, for seconds
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(constantJSON))
	}))
}
