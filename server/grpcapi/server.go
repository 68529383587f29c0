// Package grpcapi is Envoy's door: its rate limit service, version 3, over gRPC,
// with gRPC's health checks and reflection.
package grpcapi

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// Options configure a Door. A number that is not above zero means its default.
type Options struct {
	// Response says what verdicts carry besides the codes. Default: nothing.
	Response rlsproto.Options

	// TLS is for connections that are encrypted. Default: they are not.
	TLS *tls.Config

	// MaxMessageBytes is the longest request that is read. Envoy lets pass what
	// is refused for its length, so whoever may choose the length of a header
	// that descriptors hold could escape its limit. Envoy takes headers of 60
	// KiB unless it is told otherwise, and may put one into several descriptors.
	// Default: 256 KiB.
	MaxMessageBytes int

	// MaxStreams is how many calls one connection may have under way. Default:
	// 256.
	MaxStreams int

	// MaxConnectionAge is how long a connection lives before the client is asked
	// to open another, which spreads clients over servers. Default: 24 hours.
	MaxConnectionAge time.Duration

	// MaxConnectionIdle is for how long a connection may have no call under way
	// before the client is asked to open another. Default: 10 minutes.
	MaxConnectionIdle time.Duration

	// ObserveLatency is told how long each call took, and must not keep it waiting.
	// Optional.
	ObserveLatency func(time.Duration)
}

const (
	defaultMaxMessageBytes   = 256 << 10
	defaultMaxStreams        = 256
	defaultMaxConnectionAge  = 24 * time.Hour
	defaultMaxConnectionIdle = 10 * time.Minute

	maxHeaderBytes = 16 << 10

	// numWorkers is how many goroutines are kept for calls. Those that wait for a
	// store keep theirs; for a call that finds none a new one is made, and its
	// stack has to grow, which costs more than the decision.
	numWorkers = 128

	// handshakeTimeout is how long a connection may take until it speaks HTTP/2.
	handshakeTimeout = 5 * time.Second

	// callTimeout is how long a call may take to arrive and to be answered. gRPC has
	// no limit of its own, and holds on to what has come of a request.
	callTimeout = 10 * time.Second

	// A connection that is silent for keepaliveTime is asked whether it lives, and
	// has keepaliveTimeout to say so. A client may ask no more often than minPingInterval.
	keepaliveTime  = 2 * time.Minute
	keepaliveTimeout = 20 * time.Second
	minPingInterval   = 10 * time.Second

	// maxConnectionAgeGrace is how long calls may go on when their connection is too old.
	maxConnectionAgeGrace = time.Hour
)

// A Server is a server of Envoy's rate limit service.
type Server struct {
	engine   *engine.Engine
	service *rlsproto.Service
	server  *grpc.Server
	health  *healthService
	observeLatency    func(time.Duration)
}

// New returns a door that is yet to be opened by Serve. Nil options are all
// defaults.
func New(j *engine.Engine, o *Options) (*Server, error) {
	if j == nil {
		return nil, errors.New("envoyrls: no judge")
	}
	if o == nil {
		o = &Options{}
	}
	d := &Server{engine: j, service: rlsproto.New(j, &o.Response), health: newHealthService(), observeLatency: o.ObserveLatency}
	d.server = grpc.NewServer(o.serverOptions()...)
	d.server.RegisterService(&serviceDesc, d)
	d.health.register(d.server)
	reflection.Register(d.server)
	return d, nil
}

func (o *Options) serverOptions() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(numWorkers),
		grpc.MaxRecvMsgSize(orDefault(o.MaxMessageBytes, defaultMaxMessageBytes)),
		grpc.MaxConcurrentStreams(uint32(orDefault(o.MaxStreams, defaultMaxStreams))),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.InTapHandle(setCallTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      orDefault(o.MaxConnectionAge, defaultMaxConnectionAge),
			MaxConnectionAgeGrace: maxConnectionAgeGrace,
			MaxConnectionIdle:     orDefault(o.MaxConnectionIdle, defaultMaxConnectionIdle),
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

// setCallTimeout gives a call its time. Health checks and reflection go on for as long as
// their clients like.
func setCallTimeout(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != fullMethod {
		return ctx, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	_ = cancel // it is over when the stream's own context is, which gRPC ends with the call
	return ctx, nil
}

const fullMethod = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

func orDefault[T int | time.Duration](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

// Serve answers those who connect to the listener. It returns nil after Shutdown.
func (d *Server) Serve(l net.Listener) error {
	err := d.server.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// SetServing says whether health checks of the service are to succeed. They do
// from the beginning, until Shutdown.
func (d *Server) SetServing(serving bool) { d.health.setServing(serving) }

// Shutdown fails health checks, stops accepting, lets the calls under way finish,
// and returns. When ctx ends before, it breaks them off and returns ctx's error.
func (d *Server) Shutdown(ctx context.Context) error {
	d.health.shutdown()
	finished := make(chan struct{})
	go func() {
		d.server.GracefulStop()
		close(finished)
	}()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		d.server.Stop()
		return ctx.Err()
	}
}
