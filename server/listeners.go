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

// A door speaks one protocol with whoever comes by a listener.
type door interface {
	Serve(l net.Listener) error         // until Shutdown; then it returns nil
	Shutdown(ctx context.Context) error // after what is under way, or by force when ctx ends
}

// An opening is a door and where it listens.
type opening struct {
	name        string
	door        door
	entrance    *connlimit.Listener
	listener    net.Listener // the entrance, or TLS on top of it
	certificate *certificate // nil in clear text
	complaint   string       // what was last wrong with a new one
}

func (o *opening) serve() error {
	if err := o.door.Serve(o.listener); err != nil {
		return fmt.Errorf("door %s: %w", o.name, err)
	}
	return nil
}

func (o *opening) shutdown(ctx context.Context) error {
	if err := o.door.Shutdown(ctx); err != nil {
		return fmt.Errorf("door %s: not all requests were finished: %w", o.name, err)
	}
	return nil
}

// openDoors listens at every door that has an address.
func (s *Server) openDoors(ctx context.Context) error {
	for _, l := range s.config.listens() {
		if l.Addr == "" {
			continue
		}
		if err := s.openDoor(ctx, l.name, l.Listen); err != nil {
			return fmt.Errorf("door %s: %w", l.name, err)
		}
	}
	s.metrics.registry.MustRegister(doorStats{s.doors})
	return nil
}

func (s *Server) openDoor(ctx context.Context, name string, l Listen) (err error) {
	o := &opening{name: name}
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
	o.entrance = connlimit.New(plain, s.room(name, encrypted != nil))
	o.listener = o.entrance
	if encrypted != nil && name != "grpc" { // which does it by itself
		o.listener = tls.NewListener(o.entrance, encrypted)
	}
	s.doors = append(s.doors, o)
	if o.door, err = s.makeDoor(o, encrypted); err != nil {
		return err
	}
	s.log.Info("listening", "door", name, "addr", plain.Addr().String(), "tls", encrypted != nil)
	return nil
}

// protocols are what the doors offer in TLS's negotiation.
var protocols = map[string][]string{"grpc": {"h2"}, "http": {"h2", "http/1.1"}, "admin": {"h2", "http/1.1"}}

// room says whom a door lets in. Redis clients are told when there is no room, unless
// they would have to shake hands first.
func (s *Server) room(door string, encrypted bool) connlimit.Options {
	o := connlimit.Options{
		Max: s.config.MaxConnections, MaxPerClient: s.config.MaxConnectionsPerAddress, Log: s.log.With("door", door),
	}
	if door == "resp" && !encrypted {
		o.Refuse = respapi.WriteMaxClients
	}
	return o
}

func (s *Server) makeDoor(o *opening, encrypted *tls.Config) (door, error) {
	c, envoy := s.config, s.config.envoyAnswers()
	switch o.name {
	case "grpc":
		return grpcapi.New(s.judge, &grpcapi.Options{Response: envoy, TLS: encrypted, ObserveLatency: s.metrics.took(o.name)})
	case "http":
		return httpapi.New(s.judge, &httpapi.Options{
			Form: c.Headers, Envoy: &envoy, Ready: s.ready, ObserveLatency: s.metrics.took(o.name), Log: s.log,
		})
	case "resp":
		return respapi.New(s.judge, &respapi.Options{
			RequireAuth:    c.RESPAuth,
			Listener:       o.entrance,
			ObserveLatency: s.metrics.took(o.name),
		})
	}
	return adminapi.New(s.judge, &adminapi.Options{
		Loopback: auth.IsLoopback(o.entrance.Addr()),
		Metrics:  s.metrics.handler(),
		Ready:    s.ready,
		Degraded: s.degraded,
		Version:  Version(),
		Profiles: c.Profiles,
		Log:      s.log,
	})
}

// envoyAnswers says what Envoy is told besides the codes.
func (c *Config) envoyAnswers() rlsproto.Options {
	return rlsproto.Options{
		Headers:         c.EnvoyHeaders,
		LimitHeader:     c.EnvoyHeaderNames[0],
		RemainingHeader: c.EnvoyHeaderNames[1],
		ResetHeader:     c.EnvoyHeaderNames[2],
		DynamicMetadata: c.EnvoyMetadata,
	}
}
