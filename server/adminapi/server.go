// Package adminapi is the operator's door: whether the server is well, what it has
// counted, which rules are loaded, and what to do about one key.
package adminapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// Options configure a Door.
type Options struct {
	// Loopback says that only this machine can reach the listener. Then the
	// judge's token is asked for only of those who come through a proxy or a
	// browser's page. Otherwise the judge must have one.
	Loopback bool

	// Metrics answers /metrics. Default: there are none.
	Metrics http.Handler

	// Ready says why the server cannot decide at the moment. Joined errors
	// are told apart. Default: it always can.
	Ready func() error

	// Degraded says why decisions are not what they should be, though the server
	// makes them. Default: they always are.
	Degraded func() error

	// Version is that of the program. Optional.
	Version string

	// Profiles opens /debug/pprof/, which tells of more than operators need, and
	// keeps the process busy. Default: it is not there.
	Profiles bool

	// Log is told who reset a key or gave units back. Default: nobody is.
	Log *slog.Logger
}

// ErrNoToken means that a door which others can reach has no token.
var ErrNoToken = errors.New("admin: a token is required where the listener is not loopback")

// A Server answers operators. It is safe for concurrent use.
type Server struct {
	door    *httpserver.Server
	judge   *engine.Engine
	options Options
	mux     *http.ServeMux
}

// New returns a door to the judge, or [ErrNoToken].
func New(j *engine.Engine, o *Options) (*Server, error) {
	if j == nil {
		return nil, errors.New("admin: no judge")
	}
	d := &Server{judge: j, mux: http.NewServeMux()}
	if o != nil {
		d.options = *o
	}
	if !j.HasToken() && !d.options.Loopback {
		return nil, ErrNoToken
	}
	if d.options.Ready == nil {
		d.options.Ready = func() error { return nil }
	}
	if d.options.Degraded == nil {
		d.options.Degraded = func() error { return nil }
	}
	if d.options.Log == nil {
		d.options.Log = slog.New(slog.DiscardHandler)
	}
	if d.options.Metrics == nil {
		d.options.Metrics = http.NotFoundHandler()
	}
	for _, e := range d.endpoints() {
		d.mux.HandleFunc(e.path, d.guard(e))
	}
	d.mux.HandleFunc("/", notFound)
	d.door = httpserver.New(d.mux, httpserver.Options{Log: o.log()})
	return d, nil
}

func (o *Options) log() *slog.Logger {
	if o == nil {
		return nil
	}
	return o.Log
}

// Serve answers on the listener until Shutdown, and then returns nil. A listener
// that others can reach is refused if the options say otherwise.
func (d *Server) Serve(l net.Listener) error {
	if d.options.Loopback && !auth.IsLoopback(l.Addr()) {
		return fmt.Errorf("admin: %s is not loopback", l.Addr())
	}
	return d.door.Serve(l)
}

// Shutdown stops accepting, finishes what is in flight and returns. What is not
// finished when ctx ends is cut off.
func (d *Server) Shutdown(ctx context.Context) error { return d.door.Shutdown(ctx) }

// ServeHTTP answers one request.
func (d *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }

func notFound(w http.ResponseWriter, _ *http.Request) {
	httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusNotFound, Detail: "what there is is listed at /"})
}

// An endpoint is something that can be asked.
type endpoint struct {
	path    string
	methods string
	help    string
	open    bool // to everybody
	answer  http.HandlerFunc
}

func (d *Server) endpoints() []endpoint {
	all := []endpoint{
		{"/{$}", "GET, HEAD", "this list", false, d.list},
		{"/healthz", "GET, HEAD", "whether the process is alive", true, d.healthz},
		{"/readyz", "GET, HEAD", "whether it can decide, and if not, why", true, d.readyz},
		{"/metrics", "GET, HEAD", "counters for Prometheus", false, d.options.Metrics.ServeHTTP},
		{"/rules", "GET, HEAD", "the loaded rules and what they have decided, as JSON", false, d.rules},
		{"/rlconfig", "GET, HEAD", "the loaded rules, one a line, as envoyproxy/ratelimit tells them", false, d.rlconfig},
		{"/v1/keys", "GET, POST, DELETE", keysHelp, false, d.keys},
	}
	if d.options.Profiles {
		all = append(all, profiles...)
	}
	return all
}

var profiles = []endpoint{
	{"/debug/pprof/", "GET, HEAD", "profiles of the running process", false, pprof.Index},
	{"/debug/pprof/profile", "GET, HEAD", "where it spends its time: ?seconds=30", false, pprof.Profile},
	{"/debug/pprof/symbol", "GET, HEAD, POST", "the names of functions", false, pprof.Symbol},
	{"/debug/pprof/trace", "GET, HEAD", "what it does in detail: ?seconds=1", false, pprof.Trace},
}

const keysHelp = "GET looks at a key, POST gives units=N back, DELETE resets it: " +
	"?rule=NAME&key=KEY, ?limit=10/1m&key=KEY, or ?domain=D&entry=value"
