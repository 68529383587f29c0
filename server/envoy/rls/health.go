package rls

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
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

	mu       sync.Mutex
	watchers map[string]int // Watch calls, by the address of their connection
}

// maxWatchers is how many Watch calls a connection may have. They last as long as the
// connection does, and a client has one for each service.
const maxWatchers = 8

var errTooManyWatchers = status.Error(codes.ResourceExhausted, "too many Watch calls on one connection")

func newHealthService() *healthService {
	h := &healthService{Server: health.NewServer(), watchers: map[string]int{}}
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
	from := connectionOf(ctx)
	if !h.addWatcher(from) {
		return errTooManyWatchers
	}
	defer h.removeWatcher(from)
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

// addWatcher counts a Watch call of a connection, and reports whether there may be another.
// Unix sockets have no addresses that tell connections apart, and only local clients.
func (h *healthService) addWatcher(from string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from != "" && h.watchers[from] >= maxWatchers {
		return false
	}
	h.watchers[from]++
	return true
}

func (h *healthService) removeWatcher(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers[from]--; h.watchers[from] == 0 {
		delete(h.watchers, from)
	}
}

// connectionOf returns the address at the other end of a call's TCP connection, or "".
func connectionOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() == "tcp" {
		return p.Addr.String()
	}
	return ""
}

// A watchStream is the stream of a Watch call with another context.
type watchStream struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w watchStream) Context() context.Context { return w.ctx }
