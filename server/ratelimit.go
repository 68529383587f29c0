package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/server/envoy/ratelimit"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/internal/tracing"
)

// LoadRatelimitConfig is [LoadConfig] for a server in place of envoyproxy/ratelimit: the
// variables of that service set what flags, variables and the config file of this one do not.
func LoadRatelimitConfig(flags map[string]string, environ []string) (*Config, error) {
	role, err := ratelimit.ReadEnvironment(environ)
	if err != nil {
		return nil, err
	}
	defaults := values{}
	for name, s := range role.Settings {
		defaults[name] = value{s.Text, s.From}
	}
	c, err := mergeSettings(flags, environ, defaults)
	if err != nil {
		return nil, err
	}
	if role.UseTLS && c.GRPC.Cert == "" {
		return nil, errors.New("GRPC_SERVER_USE_TLS: want GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY with it")
	}
	if names := role.RequestHeaders; names != [3]string{} {
		if _, err := parseHeaderNames(strings.Join(names[:], ",")); err != nil {
			return nil, fmt.Errorf("LIMIT_REQUEST_LIMIT_HEADER, LIMIT_REQUEST_REMAINING_HEADER, LIMIT_REQUEST_RESET_HEADER: %w", err)
		}
	}
	if c.Traces, err = tracing.ReadEnvironment(environ); err != nil {
		return nil, err
	}
	c.Ratelimit, c.GRPC.ClientSAN = role, role.ClientSAN
	return c, c.check()
}

// RatelimitVariables returns those variables of an environment that envoyproxy/ratelimit often has, and
// whether the environment is meant for it: many machines have a REDIS_URL for other programs.
func RatelimitVariables(environ []string) (names []string, isMeant bool) {
	return ratelimit.TellingVariables(environ)
}

// HasOwnSource reports whether the settings name rules or a store, also [Config.Store]'s default if a
// variable or the config file does.
func (c *Config) HasOwnSource() bool {
	return c.hasRules() || c.Store != memoryURL || c.Origins["store"] != ""
}

// role returns the role of envoyproxy/ratelimit, or an empty one.
func (c *Config) role() *ratelimit.Role {
	if c.Ratelimit == nil {
		return &ratelimit.Role{}
	}
	return c.Ratelimit
}

// newStatistics returns the statistics of envoyproxy/ratelimit, or nil if there are none.
func (s *Server) newStatistics() *ratelimit.Statistics {
	if !s.config.role().Stats.IsOn() {
		return nil
	}
	m := s.metrics
	source := ratelimit.Source{
		Engine:      s.engine,
		RedisErrors: m.storeErrors.WithLabelValues(redisLabel),
		Loads:       m.configLoads.WithLabelValues("success"), FailedLoads: m.configLoads.WithLabelValues("failure"),
	}
	for _, reason := range []requestlog.Reason{requestlog.NoRules, requestlog.Descriptors, requestlog.Malformed} {
		source.ServiceErrors = append(source.ServiceErrors, m.invalidRequests.WithLabelValues("grpc", string(reason)))
	}
	return ratelimit.NewStatistics(s.config.Ratelimit, source)
}

// observeRPC records the time of a call, for both kinds of statistics.
func (s *Server) observeRPC(listener string) func(context.Context, time.Duration) {
	own := s.observeTraced(listener)
	if s.statistics == nil {
		return own
	}
	return func(ctx context.Context, d time.Duration) {
		own(ctx, d)
		s.statistics.ObserveCall(d)
	}
}

// openStatistics serves or sends the statistics of envoyproxy/ratelimit: to Prometheus without a
// token, as its scrapers expect.
func (s *Server) openStatistics(ctx context.Context) error {
	settings := &s.config.role().Stats
	if settings.StatsdAddr != "" {
		s.background = append(s.background, func(ctx context.Context) { s.statistics.SendStatsd(ctx, s.log) })
	}
	if settings.PrometheusAddr == "" {
		return nil
	}
	var tcp net.ListenConfig
	socket, err := tcp.Listen(ctx, "tcp", settings.PrometheusAddr)
	if err != nil {
		return fmt.Errorf("PROMETHEUS_ADDR: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(settings.PrometheusPath, s.statistics.Handler())
	l := &listener{name: "prometheus", socket: connlimit.New(socket, s.connLimits("prometheus", false)), api: httpserver.New(mux, httpserver.Options{Log: s.log})}
	l.listener = l.socket
	s.listeners = append(s.listeners, l)
	s.log.Info("listening", "listener", l.name, "addr", socket.Addr().String(), "tls", false)
	return nil
}

// warnOfMetricValues is the engine's OnMetricValues.
func (s *Server) warnOfMetricValues(rule string) {
	s.log.Warn("metrics tell no further values: hits with other values are those of the rule",
		"rule", rule, "values", hitcount.MaxValues)
}
