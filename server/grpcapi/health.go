package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthServiceName is what health checks call the service, as they do with Envoy's own.
// The server itself goes by the empty name.
const healthServiceName = "ratelimit"

// A healthService answers health checks. Unlike the one that it is made of, it
// ends the calls of those who watch when the server shuts down, or else they
// would keep it from doing so.
type healthService struct {
	*health.Server
	stopping context.Context
	stop    context.CancelFunc
}

func newHealthService() *healthService {
	h := &healthService{Server: health.NewServer()}
	h.stopping, h.stop = context.WithCancel(context.Background())
	h.setServing(true)
	return h
}

func (h *healthService) register(s *grpc.Server) { healthpb.RegisterHealthServer(s, h) }

func (h *healthService) setServing(serving bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthpb.HealthCheckResponse_SERVING
	}
	h.SetServingStatus(healthServiceName, state)
}

// shutdown fails all checks from now on.
func (h *healthService) shutdown() {
	h.Shutdown()
	h.stop()
}

// Watch tells how a service is, and whenever that changes.
func (h *healthService) Watch(in *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.stopping, cancel)()
	err := h.Server.Watch(in, watchStream{stream, ctx})
	if h.stopping.Err() == nil {
		return err
	}
	// It may have been ended before it could say so.
	if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the server is shutting down")
}

// A watchStream is the stream of somebody who watches, with a context of its own.
type watchStream struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w watchStream) Context() context.Context { return w.ctx }
