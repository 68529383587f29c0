// Package httpapi is the HTTP door. POST /v1/take decides under a limit that the
// request names or by the rules, POST /json as envoyproxy/ratelimit does, and
// /v1/auth for proxies that ask before they let a request pass: nginx, Caddy and
// Traefik. openapi.yaml describes all of it, and is served at /openapi.yaml.
package httpapi

import (
	"context"
	_ "embed" // for openapi.yaml
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// Options configure a Door.
type Options struct {
	// Form is in which header fields callers are told how they stand.
	// Default: the IETF's.
	Form httplimit.Form

	// MaxHold is for how long /v1/auth holds a request that has to wait for
	// its turn; one that would have to wait longer is denied. Default: 30 s.
	MaxHold time.Duration

	// Envoy is how the answers of /json tell what Envoy wants to know.
	// Default: as rls has it.
	Envoy *rlsproto.Options

	// Ready says why the server cannot decide at the moment, for /healthcheck.
	// Default: it always can.
	Ready func() error

	// ObserveLatency is told how long each decision took, without the time for which a
	// request was held. It is called by many goroutines at once. Default:
	// nobody is.
	ObserveLatency func(time.Duration)

	// Log is told what an operator must know. Default: nobody is.
	Log *slog.Logger
}

const defaultMaxHold = 30 * time.Second

// A Server answers HTTP requests. It is safe for concurrent use.
type Server struct {
	door    *httpserver.Server
	judge   *engine.Engine
	limits  *limitCache
	form    httplimit.Form
	maxHold time.Duration
	envoy   *rlsproto.Service
	ready   func() error
	took    func(time.Duration)
}

// New returns a door to the judge. Nil options are all defaults.
func New(j *engine.Engine, o *Options) (*Server, error) {
	if j == nil {
		return nil, errors.New("httpapi: no judge")
	}
	if o == nil {
		o = &Options{}
	}
	if o.Form > httplimit.NoHeaders {
		return nil, fmt.Errorf("httpapi: no such form of headers: %v", o.Form)
	}
	d := &Server{
		judge: j, limits: newLimitCache(j.Store()), form: o.Form, maxHold: o.MaxHold,
		envoy: rlsproto.New(j, o.Envoy), ready: o.Ready, took: o.ObserveLatency,
	}
	if d.maxHold <= 0 {
		d.maxHold = defaultMaxHold
	}
	if d.ready == nil {
		d.ready = func() error { return nil }
	}
	d.door = httpserver.New(d, httpserver.Options{Log: o.Log})
	return d, nil
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (d *Server) Serve(l net.Listener) error { return d.door.Serve(l) }

// Shutdown stops accepting, finishes what is in flight and returns. What is not
// finished when ctx ends is cut off.
func (d *Server) Shutdown(ctx context.Context) error { return d.door.Shutdown(ctx) }

// A route is an address, the methods that are answered there, and how. Without
// methods there are all of them.
type route struct {
	path    string
	methods []string
	answer  func(*Server, http.ResponseWriter, *http.Request)
}

// routes are all there are. openapi.yaml describes the same.
var routes = [...]route{
	{"/v1/take", []string{http.MethodPost}, (*Server).take},
	{"/v1/auth", nil, (*Server).auth},
	{"/json", nil, (*Server).envoyJSON},
	{"/healthcheck", reading, (*Server).healthcheck},
	{"/openapi.yaml", reading, (*Server).describe},
}

var reading = []string{http.MethodGet, http.MethodHead}

// ServeHTTP answers one request.
func (d *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for i := range routes {
		here := &routes[i]
		switch {
		case here.path != r.URL.Path:
			continue
		case here.methods != nil && !slices.Contains(here.methods, r.Method):
			httpserver.MethodNotAllowed(w, r, strings.Join(here.methods, ", "))
		default:
			here.answer(d, w, r)
		}
		return
	}
	httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusNotFound, Detail: "what there is is described at /openapi.yaml"})
}

// openAPI describes what there is here, for people and for programs that write
// clients.
//
//go:embed openapi.yaml
var openAPI []byte

func (d *Server) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI)
}

// healthcheck answers as envoyproxy/ratelimit does at this address.
func (d *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if err := d.ready(); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

// begin and finish measure a decision, if anybody wants to know.
func (d *Server) begin() (began time.Time) {
	if d.took != nil {
		began = time.Now()
	}
	return began
}

func (d *Server) finish(began time.Time) {
	if d.took != nil {
		d.took(time.Since(began))
	}
}
