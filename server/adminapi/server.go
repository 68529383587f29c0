// Package adminapi is the admin API of the daemon: health and readiness, metrics, the
// loaded rules, the inspection, refund and reset of single keys, and a page for browsers.
package adminapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/page"
)

// Options configure a [Server]. The zero value needs an engine with a token.
type Options struct {
	// Loopback says that the listener can be reached from this machine only.
	// Otherwise the engine must have a token. Whether a request needs it, decides
	// [engine.Engine.MayRefund].
	Loopback bool

	// Metrics serves /metrics. Default: 404.
	Metrics http.Handler

	// Ready returns why the server should receive no traffic, for /readyz. Joined
	// errors are listed one by one. Default: always ready.
	Ready func() error

	// Degraded returns why decisions are made without the store, for /readyz. A
	// degraded server is still ready. Default: never degraded.
	Degraded func() error

	// Observer knows the traffic and its history, for /v1/live, /v1/top and
	// /v1/inspect. Default: one that knows the counters of the engine.
	Observer *observe.Observer

	// Reload returns how the last load of the rules ended, for /rules. Default: unknown.
	Reload func() *Reload

	// DescribeRegions returns what regions hold of a global rule's limit, and this one of a key, or "", for /v1/explain. Default: always "".
	DescribeRegions func(ctx context.Context, r *rules.Rule, key string) string

	// Version is the version of the program. Optional.
	Version string

	// Pprof enables /debug/pprof/, which exposes internals of the process and
	// takes CPU time. Default: disabled.
	Pprof bool

	// Audit records every action, done or refused, and is shown at /v1/audit.
	// Default: nothing is recorded.
	Audit *audit.Log

	// ReadOnly answers every action with 403. Default: callers that may use the admin
	// API may act.
	ReadOnly bool

	// RatelimitPages serves the pages of envoyproxy/ratelimit without a token: the list of
	// them, /rlconfig and /stats. The rest needs a token, and without one there is no
	// rest for other machines. Default: all but health needs a token.
	RatelimitPages bool

	// DecisionTime is how long a decision may take, such as the timeout of a remote store.
	// Connections that are not answered five seconds later are closed. Default: 0.
	DecisionTime time.Duration

	// Log receives errors of the HTTP server. Default: discarded.
	Log *slog.Logger
}

// ErrNoToken means that the listener can be reached from other machines, but the
// engine has no token.
var ErrNoToken = errors.New("adminapi: a listener that other machines can reach requires a token")

// A Server serves the admin API. It is safe for concurrent use.
type Server struct {
	http    *httpserver.Server
	engine  *engine.Engine
	options Options
	mux     *http.ServeMux

	observer *observe.Observer
	failures *tokenFailures

	simulating sync.Mutex // held while a log is simulated
}

// New returns a server for an engine, or [ErrNoToken]. Nil options are all defaults.
func New(e *engine.Engine, o *Options) (*Server, error) {
	if e == nil {
		return nil, errors.New("adminapi: no engine")
	}
	o = cmp.Or(o, &Options{})
	if !e.HasToken() && !o.Loopback && !o.RatelimitPages {
		return nil, ErrNoToken
	}
	s := &Server{engine: e, options: o.withDefaults(), mux: http.NewServeMux(), observer: o.Observer, failures: newTokenFailures()}
	if s.observer == nil {
		s.observer = observe.New(e, &observe.Options{Version: o.Version})
	}
	for _, e := range s.endpoints() {
		if e.path == rootPath {
			s.mux.HandleFunc(e.path, s.preferPage(s.authorize(e)))
			continue
		}
		s.mux.HandleFunc(e.path, s.authorize(e))
	}
	s.mux.HandleFunc(page.Prefix, s.servePage())
	s.mux.HandleFunc("/", handleNotFound)
	s.http = httpserver.New(s.mux, httpserver.Options{Log: o.Log, HandlerTime: o.DecisionTime, Linger: adminLinger, CloseSilent: true})
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Ready == nil {
		o.Ready = func() error { return nil }
	}
	if o.Degraded == nil {
		o.Degraded = func() error { return nil }
	}
	if o.Reload == nil {
		o.Reload = func() *Reload { return nil }
	}
	if o.DescribeRegions == nil {
		o.DescribeRegions = func(context.Context, *rules.Rule, string) string { return "" }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, http.NotFoundHandler())
	return o
}

// Serve accepts connections until Shutdown, and then returns nil. With
// Options.Loopback it returns an error for a listener that is not loopback.
func (s *Server) Serve(l net.Listener) error {
	if s.options.Loopback && !auth.IsLoopback(l.Addr()) {
		return fmt.Errorf("adminapi: %s is not loopback", l.Addr())
	}
	return s.http.Serve(l)
}

// Shutdown stops accepting, answers the requests that connections have sent, and
// returns. When ctx ends first, it aborts them and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// rootPath is the pattern of "/" alone.
const rootPath = "/{$}"

// adminLinger is how long a shutdown answers open connections. Pages and scrapers keep
// them open and repeat a request that is lost, so that they need not delay the shutdown.
const adminLinger = 50 * time.Millisecond

// An endpoint is a path with its allowed methods and its handler.
type endpoint struct {
	path    string
	methods string
	help    string
	public  bool // needs no token
	handle  http.HandlerFunc
}

func (s *Server) endpoints() []endpoint {
	all := []endpoint{
		{rootPath, "GET, HEAD", "this list, or for browsers the page", false, s.handleIndex},
		{"/healthz", "GET, HEAD", "liveness: 200 while the process runs", true, s.handleHealthz},
		{"/readyz", "GET, HEAD", "readiness: 200 if the server can decide, else 503 and the reasons", true, s.handleReadyz},
		{"/metrics", "GET, HEAD", "metrics for Prometheus", false, s.options.Metrics.ServeHTTP},
		{"/rules", "GET, HEAD", "the loaded rules and their counters, as JSON", false, s.handleRules},
		{"/rlconfig", "GET, HEAD", "the loaded rules, one per line, in the format of envoyproxy/ratelimit", false, s.handleRLConfig},
		{"/v1/live", "GET, HEAD", "rates, latency, the store and the rules: ?window=2m|1h|1d&sort=denied&filter=TEXT&rules=N&scope=all", false, answer(s.live, writeCompactJSON)},
		{"/v1/top", "GET, HEAD", "the keys with the most decisions or denials: ?by=asked|denied&rule=NAME&n=N&scope=all", false, answer(s.top, writeCompactJSON)},
		{"/v1/explain", "GET, HEAD", "which rule applies to a descriptor, and why: ?domain=shop&user=42", false, answer(s.explain, writeJSON)},
		{"/v1/inspect", "GET, HEAD", "a key under each rule, and the last decisions about it: ?key=42, or as /v1/keys", false, answer(s.inspect, writeJSON)},
		{"/v1/keys", "GET, POST, DELETE", keysHelp, false, answer(s.key, writeJSON)},
		{"/v1/permits", "GET, HEAD", "the rules with concurrent limits, and the permits that their top keys hold: ?rule=NAME&keys=N", false, answer(s.permits, writeJSON)},
		{overridesPath, "GET, HEAD, PUT, DELETE", overridesHelp, false, s.handleOverrides},
		{candidatesPath, "GET, HEAD, PUT, DELETE", candidatesHelp, false, answer(s.candidates, writeJSON)},
		{"/v1/audit", "GET, HEAD", "the last actions, done or refused, the newest first", false, s.handleAudit},
		{"/v1/simulate", "POST", simulateHelp, false, s.handleSimulate},
		{"/v1/simulate/log", "POST", "what limits do to an access log or a recording, which is the body: ?limit=10/1s&limit=20/1s&by=remote_address, or &rule=NAME", false, s.handleSimulateLog},
		{"/openapi.yaml", "GET, HEAD", "the description of the /v1 paths", true, handleOpenAPI},
	}
	if s.options.Pprof {
		all = append(all, profiles...)
	}
	if s.options.RatelimitPages {
		all = append(all, endpoint{"/stats", "GET, HEAD", "the memory of the process, as envoyproxy/ratelimit prints it", true, s.handleStats})
		for i := range all {
			all[i].public = all[i].public || all[i].path == rootPath || all[i].path == "/rlconfig"
		}
	}
	return all
}

const keysHelp = "GET peeks at a key, POST refunds units=N, or settles settle=ID at units=N, DELETE resets it, all with reason=TEXT: " +
	"?domain=shop&user=42, ?rule=shop/user&key=42, or ?limit=10/1m&key=user:42"

const simulateHelp = `what a limit does to traffic, under every algorithm: {"limit": "10/1s", "traffic": "edge"}, ` +
	`or "arrivals": [{"at": 0.5, "cost": 1}]`

var profiles = []endpoint{
	{"/debug/pprof/", "GET, HEAD", "profiles of the process", false, pprof.Index},
	{"/debug/pprof/profile", "GET, HEAD", "CPU profile: ?seconds=30", false, pprof.Profile},
	{"/debug/pprof/symbol", "GET, HEAD, POST", "function names of program counters", false, pprof.Symbol},
	{"/debug/pprof/trace", "GET, HEAD", "execution trace: ?seconds=1", false, pprof.Trace},
}

// handleIndex lists the endpoints as text.
func (s *Server) handleIndex(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	fmt.Fprintf(&b, "penstock %s\n\n", s.options.Version)
	for _, e := range s.endpoints() {
		fmt.Fprintf(&b, "%-22s %s\n", strings.TrimSuffix(e.path, "{$}"), e.help)
	}
	writeText(w, b.String())
}

func handleNotFound(w http.ResponseWriter, _ *http.Request) {
	httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusNotFound, Detail: "no such path; see /"})
}
