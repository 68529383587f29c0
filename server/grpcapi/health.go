package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthServiceName is the name of the service in health checks, the same as in
// envoyproxy/ratelimit. The empty name stands for the whole server.
const healthServiceName = "ratelimit"

// A healthService answers health checks. Unlike the embedded server, it ends Watch calls
// when the server shuts down: they would block a graceful stop.
type healthService struct {
	*health.Server
	stopping context.Context
	stop     context.CancelFunc
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

// Watch streams the status of a service and its changes.
func (h *healthService) Watch(in *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.stopping, cancel)()
	err := h.Server.Watch(in, watchStream{stream, ctx})
	if h.stopping.Err() == nil {
		return err
	}
	// The embedded server may have stopped before it sent NOT_SERVING.
	if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the server is shutting down")
}

// A watchStream is the stream of a Watch call with another context.
type watchStream struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w watchStream) Context() context.Context { return w.ctx }
