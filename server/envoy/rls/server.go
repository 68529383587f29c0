// Package rls serves Envoy's rate limit service, version 3: over gRPC, with gRPC's
// health checks and reflection, and in JSON.
//
// A call takes this path: should_rate_limit.go receives its bytes, request.go decodes
// them, service.go turns the request into descriptors and asks the engine, and response.go
// builds and encodes the response. json.go does the same for a JSON request.
//
// A descriptor has four forms on its way to the store: protobuf, [Descriptor],
// engine.Descriptor (built in service.go), and the penstock.Request that the engine derives
// from a rule or an override. The result goes back as engine.Status, [Status] (built in
// response.go), and protobuf.
package rls

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/server/engine"
)

// Options configure a [Server]. The zero value has all defaults.
type Options struct {
	ServiceOptions

	// TLS encrypts connections. Default: clear text.
	TLS *tls.Config

	// MaxMessageBytes is the longest accepted request. Envoy lets traffic pass whose
	// rate limit request fails, so a client that can choose the length of a header in
	// a descriptor could evade its limit with a longer one. Envoy accepts headers of
	// 60 KiB by default, and may put one into several descriptors. Default: 256 KiB.
	MaxMessageBytes int

	// MaxStreams is the number of calls in flight on one connection. Default: 256.
	MaxStreams int

	// MaxConnectionAge is the age at which the server asks a client to reconnect, which
	// distributes clients over servers. Default: 24 hours.
	MaxConnectionAge time.Duration

	// MaxConnectionAgeGrace is how long calls may continue after MaxConnectionAge.
	// Default: one hour.
	MaxConnectionAgeGrace time.Duration

	// MaxConnectionIdle is the time without calls after which the server asks a client
	// to reconnect. Default: 10 minutes.
	MaxConnectionIdle time.Duration

	// Services are served on the same listener. Default: none.
	Services []OtherService
}

// An OtherService is a gRPC service besides Envoy's rate limit service.
type OtherService interface {
	Register(grpc.ServiceRegistrar)
	Stop() // ends streams that would otherwise go on, and refuses new ones
}

const (
	maxHeaderBytes = 16 << 10

	// numWorkers is the number of goroutines kept for calls. A call that waits for the
	// store occupies one. A call without a free one starts a new goroutine, whose stack
	// has to grow, which costs more than the decision.
	numWorkers = 128

	// handshakeTimeout bounds the time until a connection speaks HTTP/2.
	handshakeTimeout = 5 * time.Second

	// A connection that is silent for keepaliveTime is pinged, and closed if it does
	// not respond within keepaliveTimeout. A client that pings more often than
	// minPingInterval is disconnected.
	keepaliveTime    = 2 * time.Minute
	keepaliveTimeout = 20 * time.Second
	minPingInterval  = 10 * time.Second
)

// A Server serves Envoy's rate limit service. It is safe for concurrent use.
type Server struct {
	*Service
	grpc     *grpc.Server
	health   *healthService
	services []OtherService
}

// New returns a server for an engine. Nil options are all defaults.
func New(e *engine.Engine, o *Options) (*Server, error) {
	if e == nil {
		return nil, errors.New("rls: no engine")
	}
	o = cmp.Or(o, &Options{})
	s := &Server{
		Service:  NewService(e, &o.ServiceOptions),
		grpc:     grpc.NewServer(o.serverOptions()...),
		health:   newHealthService(),
		services: o.Services,
	}
	s.grpc.RegisterService(&serviceDesc, s)
	for _, service := range s.services {
		service.Register(s.grpc)
	}
	s.health.register(s.grpc)
	reflection.Register(s.grpc)
	return s, nil
}

func (o *Options) serverOptions() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(numWorkers),
		grpc.MaxRecvMsgSize(defaults.Or(o.MaxMessageBytes, 256<<10)),
		grpc.MaxConcurrentStreams(uint32(defaults.Or(o.MaxStreams, 256))),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.InTapHandle(o.beginCall),
		grpc.StreamInterceptor(boundFirstMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      defaults.Or(o.MaxConnectionAge, 24*time.Hour),
			MaxConnectionAgeGrace: defaults.Or(o.MaxConnectionAgeGrace, time.Hour),
			MaxConnectionIdle:     defaults.Or(o.MaxConnectionIdle, 10*time.Minute),
			Time:                  keepaliveTime,
			Timeout:               keepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	return options
}

// Serve accepts connections until Shutdown, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// SetServing sets the result of health checks of the service. They succeed until then,
// and fail from Shutdown on.
func (s *Server) SetServing(serving bool) { s.health.setServing(serving) }

// Shutdown fails health checks, stops accepting, answers the calls that connections have
// sent, and returns. When ctx ends first, it aborts them and returns ctx's error.
//
// gRPC closes accepted connections that it has not begun to read from. A listener that
// is drained first, as connlimit.Listener.Drain does, leaves none.
func (s *Server) Shutdown(ctx context.Context) error {
	s.health.shutdown()
	for _, service := range s.services {
		service.Stop()
	}
	finished := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(finished)
	}()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		return ctx.Err()
	}
}
