package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/grpcapi"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/respapi"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// A apiServer speaks one protocol with whoever comes by a listener.
type apiServer interface {
	Serve(l net.Listener) error         // until Shutdown; then it returns nil
	Shutdown(ctx context.Context) error // after what is under way, or by force when ctx ends
}

// An listener is a door and where it listens.
type listener struct {
	name        string
	api         apiServer
	socket      *connlimit.Listener
	listener    net.Listener // the entrance, or TLS on top of it
	certificate *certificate // nil in clear text
	lastError   string       // what was last wrong with a new one
}

func (o *listener) serve() error {
	if err := o.api.Serve(o.listener); err != nil {
		return fmt.Errorf("door %s: %w", o.name, err)
	}
	return nil
}

func (o *listener) shutdown(ctx context.Context) error {
	o.socket.Drain(ctx)
	if err := o.api.Shutdown(ctx); err != nil {
		return fmt.Errorf("door %s: not all requests were finished: %w", o.name, err)
	}
	return nil
}

// openListeners listens at every door that has an address.
func (s *Server) openListeners(ctx context.Context) error {
	for _, l := range s.config.listenConfigs() {
		if l.Addr == "" {
			continue
		}
		if err := s.openListener(ctx, l.name, l.ListenConfig); err != nil {
			return fmt.Errorf("door %s: %w", l.name, err)
		}
	}
	s.metrics.registry.MustRegister(listenerCollector{s.listeners})
	return nil
}

func (s *Server) openListener(ctx context.Context, name string, l ListenConfig) (err error) {
	o := &listener{name: name}
	var encrypted *tls.Config
	if l.Cert != "" {
		if o.certificate, err = newCertificate(l, protocols[name]...); err != nil {
			return fmt.Errorf("TLS cannot be used: %w", err)
		}
		encrypted = o.certificate.config()
	}
	var tcp net.ListenConfig
	plain, err := tcp.Listen(ctx, "tcp", l.Addr)
	if err != nil {
		return err
	}
	o.socket = connlimit.New(plain, s.connLimits(name, encrypted != nil))
	o.listener = o.socket
	if encrypted != nil && name != "grpc" { // which does it by itself
		o.listener = tls.NewListener(o.socket, encrypted)
	}
	s.listeners = append(s.listeners, o)
	if o.api, err = s.newAPI(o, encrypted); err != nil {
		return err
	}
	s.log.Info("listening", "door", name, "addr", plain.Addr().String(), "tls", encrypted != nil)
	return nil
}

// protocols are what the doors offer in TLS's negotiation.
var protocols = map[string][]string{"grpc": {"h2"}, "http": {"h2", "http/1.1"}, "admin": {"h2", "http/1.1"}}

// connLimits says whom a door lets in. Redis clients are told when there is no room, unless
// they would have to shake hands first.
func (s *Server) connLimits(door string, encrypted bool) connlimit.Options {
	o := connlimit.Options{
		Max: s.config.MaxConnections, MaxPerClient: s.config.MaxConnectionsPerAddress, Log: s.log.With("door", door),
	}
	if door == "resp" && !encrypted {
		o.Refuse = respapi.WriteMaxClients
	}
	return o
}

func (s *Server) newAPI(o *listener, encrypted *tls.Config) (apiServer, error) {
	c, envoy := s.config, s.config.envoyOptions()
	switch o.name {
	case "grpc":
		return grpcapi.New(s.engine, &grpcapi.Options{Response: envoy, TLS: encrypted, ObserveLatency: s.metrics.observeLatency(o.name)})
	case "http":
		return httpapi.New(s.engine, &httpapi.Options{
			Headers: c.Headers, Envoy: &envoy, Ready: s.ready, ObserveLatency: s.metrics.observeLatency(o.name), Log: s.log,
		})
	case "resp":
		return respapi.New(s.engine, &respapi.Options{
			RequireAuth:    c.RESPAuth,
			Listener:       o.socket,
			ObserveLatency: s.metrics.observeLatency(o.name),
		})
	}
	return adminapi.New(s.engine, &adminapi.Options{
		Loopback: auth.IsLoopback(o.socket.Addr()),
		Metrics:  s.metrics.handler(),
		Ready:    s.ready,
		Degraded: s.degraded,
		Version:  Version(),
		Profiles: c.Profiles,
		Log:      s.log,
	})
}

// envoyOptions says what Envoy is told besides the codes.
func (c *Config) envoyOptions() rlsproto.Options {
	return rlsproto.Options{
		Headers:         c.EnvoyHeaders,
		LimitHeader:     c.EnvoyHeaderNames[0],
		RemainingHeader: c.EnvoyHeaderNames[1],
		ResetHeader:     c.EnvoyHeaderNames[2],
		DynamicMetadata: c.EnvoyMetadata,
	}
}
