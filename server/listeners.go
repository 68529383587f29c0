package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/envoy/rlqs"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/respapi"
)

// An apiServer serves one API.
type apiServer interface {
	Serve(l net.Listener) error         // until Shutdown; then it returns nil
	Shutdown(ctx context.Context) error // answers the requests in flight, until ctx ends
}

// A listener is a socket and the API that it serves.
type listener struct {
	name        string
	api         apiServer
	socket      *connlimit.Listener
	listener    net.Listener // socket, or TLS on top of it
	certificate *certificate // nil for plaintext
	lastError   string       // of the last certificate reload, to log it once
}

func (l *listener) serve() error {
	if err := l.api.Serve(l.listener); err != nil {
		return fmt.Errorf("listener %s: %w", l.name, err)
	}
	return nil
}

func (l *listener) shutdown(ctx context.Context) error {
	l.socket.Drain(ctx)
	if err := l.api.Shutdown(ctx); err != nil {
		return fmt.Errorf("listener %s: requests in flight were cut off: %w", l.name, err)
	}
	return nil
}

// openListeners opens every listener that has an address.
func (s *Server) openListeners(ctx context.Context) error {
	for _, c := range s.config.listenConfigs() {
		if c.Addr == "" {
			continue
		}
		if err := s.openListener(ctx, c.name, c.ListenConfig); err != nil {
			return fmt.Errorf("listener %s: %w", c.name, err)
		}
	}
	s.metrics.registry.MustRegister(listenerCollector(s.listeners))
	return nil
}

func (s *Server) openListener(ctx context.Context, name string, c ListenConfig) (err error) {
	l := &listener{name: name}
	var tlsConfig *tls.Config
	if c.Cert != "" {
		if l.certificate, err = newCertificate(c, protocols[name]...); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		tlsConfig = l.certificate.config()
	}
	var tcp net.ListenConfig
	network, addr := "tcp", c.Addr
	if path, ok := strings.CutPrefix(addr, unixScheme); ok {
		network, addr = "unix", path
		removeSocket(ctx, path)
	}
	socket, err := tcp.Listen(ctx, network, addr)
	if err != nil {
		return s.config.listenError(name, c.Addr, err)
	}
	l.socket = connlimit.New(socket, s.connLimits(name, tlsConfig != nil))
	l.listener = l.socket
	if tlsConfig != nil && name != "grpc" { // gRPC does TLS itself
		l.listener = tls.NewListener(l.socket, tlsConfig)
	}
	s.listeners = append(s.listeners, l)
	if l.api, err = s.newAPI(l, tlsConfig); err != nil {
		return err
	}
	s.log.Info("listening", "listener", name, "addr", socket.Addr().String(), "tls", tlsConfig != nil)
	return nil
}

// removeSocket removes the socket that a process left behind which ended without closing it.
// Anything else at that path stays, and is an error: also a socket on which a process listens.
// Without it, that process would go on without being reached by any client.
func removeSocket(ctx context.Context, path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED): // no process listens
		_ = os.Remove(path)
	}
}

// listenError adds to the error of a port in use where the port is set, and how to
// choose another.
func (c *Config) listenError(name, addr string, err error) error {
	host, text, _ := net.SplitHostPort(addr)
	port, number := strconv.Atoi(text)
	if !errors.Is(err, syscall.EADDRINUSE) || number != nil {
		return err
	}
	const step = 10
	other := net.JoinHostPort(host, strconv.Itoa((port+step)%(1<<16)))
	if origin := c.origin(name); origin != "--"+name {
		err = fmt.Errorf("%s: %w", origin, err)
	}
	return fmt.Errorf("%w: choose another port, as in --%s %s", err, name, other)
}

// protocols are the ALPN protocols of the listeners.
var protocols = map[string][]string{"grpc": {"h2"}, "http": {"h2", "http/1.1"}, "admin": {"h2", "http/1.1"}}

// connLimits returns the connection limits of a listener. Refused Redis clients receive an
// error reply, except over TLS, where that would need a handshake.
func (s *Server) connLimits(listener string, secure bool) connlimit.Options {
	o := connlimit.Options{
		Max: s.config.MaxConnections, MaxPerClient: s.config.MaxConnectionsPerAddress, Log: s.log.With("listener", listener),
	}
	if listener == "resp" && !secure {
		o.Refuse = respapi.WriteMaxClients
	}
	return o
}

func (s *Server) newAPI(l *listener, tlsConfig *tls.Config) (apiServer, error) {
	c := s.config
	requests, err := s.newRequestLog(l.name)
	if err != nil {
		return nil, err
	}
	switch l.name {
	case "grpc":
		services, err := s.newServices(requests)
		if err != nil {
			return nil, err
		}
		return rls.New(s.engine, &rls.Options{
			ServiceOptions: s.envoyOptions(s.observeRPC(l.name), requests), Services: services, TLS: tlsConfig,
			MaxConnectionAge: c.role().ConnectionAge, MaxConnectionAgeGrace: c.role().ConnectionAgeGrace,
		})
	case "http":
		observe := s.observeTraced(l.name)
		envoy := s.envoyOptions(observe, requests)
		return httpapi.New(s.engine, &httpapi.Options{
			Headers: c.Headers, TrustedProxies: c.TrustedProxies, Ready: s.ready, ObserveLatency: observe, Log: s.log, Requests: requests, Audit: s.audit,
			DecisionTime: c.storeTimeout(), EnvoyJSON: rls.NewService(s.engine, &envoy), Tracer: s.tracer,
		})
	case "resp":
		return respapi.New(s.engine, &respapi.Options{
			RequireAuth:    c.RESPAuth,
			Listener:       l.socket,
			ObserveLatency: s.metrics.observeLatency(l.name),
			Requests:       requests,
			Audit:          s.audit,
		})
	}
	return s.newAdmin(l)
}

func (s *Server) newAdmin(l *listener) (apiServer, error) {
	api, err := adminapi.New(s.engine, &adminapi.Options{
		Loopback: auth.IsLoopback(l.socket.Addr()),
		Metrics:  s.metrics.handler(),
		Ready:    s.ready,
		Degraded: s.degraded,
		Observer: s.observer,
		Reload:   s.reload,
		Version:  Version(),
		Pprof:    s.config.Pprof,
		Audit:    s.audit,
		ReadOnly: !s.config.AdminActions,

		DescribeRegions: s.describeRegions,

		RatelimitPages: s.config.Ratelimit != nil,
		DecisionTime:   s.config.storeTimeout(),
		Log:            s.log,
	})
	if errors.Is(err, adminapi.ErrNoToken) {
		err = fmt.Errorf("%w: set --token-file, or listen on 127.0.0.1", err)
	}
	return api, err
}

// newServices returns the services of the gRPC listener besides Envoy's rate limit service.
func (s *Server) newServices(requests *requestlog.Log) ([]rls.OtherService, error) {
	if !s.config.RLQS {
		return nil, nil
	}
	quotas, err := rlqs.New(s.engine, &rlqs.Options{Requests: requests})
	if err != nil {
		return nil, err
	}
	s.background = append(s.background, quotas.Run)
	s.metrics.registry.MustRegister(quotaCollector(quotas))
	return []rls.OtherService{quotas}, nil
}

// newRequestLog returns the log of requests to an API, or nil for the admin API, whose
// callers see their mistakes themselves.
func (s *Server) newRequestLog(api string) (*requestlog.Log, error) {
	if api == "admin" {
		return nil, nil
	}
	return requestlog.New(requestlog.Options{
		API: api, Log: s.log, Denials: s.config.LogDenials, OnInvalid: s.metrics.countInvalid(api),
	})
}

// envoyOptions returns the options of Envoy's rate limit service on a listener.
func (s *Server) envoyOptions(observe func(context.Context, time.Duration), requests *requestlog.Log) rls.ServiceOptions {
	names := s.config.EnvoyHeaderNames
	return rls.ServiceOptions{
		Headers: s.config.EnvoyHeaders, LimitHeader: names[0], RemainingHeader: names[1], ResetHeader: names[2],
		RequestHeaders:  s.config.role().RequestHeaders,
		DynamicMetadata: s.config.EnvoyMetadata, AsRatelimit: s.config.Ratelimit != nil, CalendarMonth: s.config.role().CalendarMonth,
		ObserveLatency: observe, Tracer: s.tracer, Requests: requests, Audit: s.audit,
	}
}
