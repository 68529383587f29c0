// Package httpapi is the HTTP API of the daemon:
//
//   - POST /v1/take decides requests under a limit that they carry, or by the rules
//   - /v1/auth answers the authorization subrequests of nginx (auth_request), Caddy
//     (forward_auth) and Traefik (ForwardAuth)
//   - POST /json and GET /healthcheck are compatible with envoyproxy/ratelimit
//
// openapi.yaml describes all endpoints and is served at /openapi.yaml.
package httpapi

import (
	"cmp"
	"context"
	_ "embed" // for openapi.yaml
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/internal/tracing"
)

// Options configure a [Server]. The zero value has all defaults.
type Options struct {
	// Headers selects the rate limit headers of responses.
	// Default: httplimit.IETF.
	Headers httplimit.Form

	// MaxHold is the longest time for which /v1/auth holds a request that was
	// admitted with a delay. A request with a longer delay is denied.
	// Default: 30 s.
	MaxHold time.Duration

	// TrustedProxies are the proxies whose addresses /v1/auth skips at the end of a
	// header that lists addresses. Default: none, so the last address is the client.
	TrustedProxies []netip.Prefix

	// EnvoyJSON answers /json, which has Envoy's messages. Default: there is no such path.
	EnvoyJSON http.Handler

	// Ready returns why the server should receive no traffic, for /healthcheck.
	// Default: always ready.
	Ready func() error

	// ObserveLatency is called with the context and the duration of each decision, without the
	// time for which a request was held. It is called concurrently, and must not
	// block. Default: none.
	ObserveLatency func(context.Context, time.Duration)

	// Tracer traces requests for decisions. Default: none are.
	Tracer *tracing.Tracer

	// DecisionTime is how long a decision may take, such as the timeout of a remote store.
	// Connections that are not answered five seconds later are closed. Default: 0.
	DecisionTime time.Duration

	// Log receives errors of the HTTP server. Default: discarded.
	Log *slog.Logger

	// Requests logs invalid requests and denials. Default: none are.
	Requests *requestlog.Log

	// Audit records refunds and resets, done or refused. Default: none are.
	Audit *audit.Log
}

const defaultMaxHold = 30 * time.Second

// A Server serves the HTTP API. It is safe for concurrent use.
type Server struct {
	http      *httpserver.Server
	engine    *engine.Engine
	options   Options
	addresses *address.Resolver
}

// New returns a server for an engine. Nil options are all defaults.
func New(e *engine.Engine, o *Options) (*Server, error) {
	if e == nil {
		return nil, errors.New("httpapi: no engine")
	}
	o = cmp.Or(o, &Options{})
	if o.Headers > httplimit.NoHeaders {
		return nil, fmt.Errorf("httpapi: unknown headers: %v", o.Headers)
	}
	s := &Server{engine: e, options: *o, addresses: address.NewResolver(o.TrustedProxies, 0)}
	s.options.MaxHold = defaults.Or(o.MaxHold, defaultMaxHold)
	s.http = httpserver.New(s, httpserver.Options{Log: o.Log, HandlerTime: o.DecisionTime})
	return s, nil
}

// Serve accepts connections until Shutdown, and then returns nil.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(l) }

// Shutdown stops accepting, answers the requests that connections have sent, and
// returns. When ctx ends first, it aborts them and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// An endpoint is a path, the methods allowed there, its handler, and whether it decides. Nil methods
// allow all.
type endpoint struct {
	path    string
	methods []string
	handle  func(*Server, http.ResponseWriter, *http.Request)
	decides bool
}

// endpoints lists the whole API, as openapi.yaml does.
var endpoints = [...]endpoint{
	{"/v1/take", []string{http.MethodPost}, (*Server).handleTake, true},
	{"/v1/settle", []string{http.MethodPost}, (*Server).handleSettle, true},
	{"/v1/auth", nil, (*Server).handleAuthRequest, true},
	{envoyPath, nil, func(s *Server, w http.ResponseWriter, r *http.Request) { s.options.EnvoyJSON.ServeHTTP(w, r) }, true},
	{"/healthcheck", readMethods, (*Server).handleHealthcheck, false},
	{"/openapi.yaml", readMethods, (*Server).handleOpenAPI, false},
}

// envoyPath is there only with Options.EnvoyJSON.
const envoyPath = "/json"

var readMethods = []string{http.MethodGet, http.MethodHead}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for i := range endpoints {
		e := &endpoints[i]
		switch {
		case e.path != r.URL.Path, e.path == envoyPath && s.options.EnvoyJSON == nil:
			continue
		case e.methods != nil && !slices.Contains(e.methods, r.Method):
			s.options.Requests.Invalid(requestlog.NotFound, "method "+r.Method+" of "+e.path, r.RemoteAddr)
			httpserver.MethodNotAllowed(w, r, strings.Join(e.methods, ", "))
		case e.decides && s.options.Tracer != nil:
			s.traced(e, w, r)
		default:
			e.handle(s, w, r)
		}
		return
	}
	s.options.Requests.Invalid(requestlog.NotFound, "path "+r.URL.Path, r.RemoteAddr)
	httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusNotFound, Detail: "no such path; see /openapi.yaml"})
}

// traced handles a request, with a span if its caller samples it.
func (s *Server) traced(e *endpoint, w http.ResponseWriter, r *http.Request) {
	ctx, span := s.options.Tracer.Start(r.Context(), "http", r.Header["Traceparent"])
	if span != nil {
		defer span.End()
		r = r.WithContext(ctx)
	}
	e.handle(s, w, r)
}

// handleHealthcheck answers GET /healthcheck as envoyproxy/ratelimit does.
func (s *Server) handleHealthcheck(w http.ResponseWriter, _ *http.Request) {
	if s.options.Ready != nil && s.options.Ready() != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

//go:embed openapi.yaml
var openAPI []byte

func (s *Server) handleOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI)
}

// observe reports how long a decision took that began at start.
func (s *Server) observe(ctx context.Context, start time.Time) {
	if s.options.ObserveLatency != nil {
		s.options.ObserveLatency(ctx, time.Since(start))
	}
}
