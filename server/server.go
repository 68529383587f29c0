// Package server is the daemon: it opens the store, the rules and the listeners of a
// [Config], serves the four APIs, and shuts down without dropping requests.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/regions"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/durable"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/ratelimit"
	"github.com/penstock-io/penstock/server/internal/tracing"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/storepolicy"
)

// A Server serves the gRPC, HTTP, RESP and admin APIs from one store and one set of rules.
type Server struct {
	config     *Config
	log        *slog.Logger
	metrics    *metrics
	engine     *engine.Engine
	source     rules.Provider // nil without rules, and with those over xDS
	unmatched  *unmatchedLog
	observer   *observe.Observer
	audit      *audit.Log
	auditFile  *audit.File           // nil if the audit log is standard error
	topKeys    *topkeys.Tracker      // nil if keys are not counted
	statistics *ratelimit.Statistics // those of envoyproxy/ratelimit; nil if there are none
	listeners  []*listener

	data           *durable.Dir // nil without --data
	historyFailing bool

	overrides     *overrides.Set
	storePolicies storepolicy.Policies
	lease         *penstock.Lease               // nil on memory
	daemons       atomic.Int64                  // that share Redis, as far as they see each other
	memory        *penstock.Memory              // nil for a store on the network
	monitor       *monitor                      // nil for the memory store
	tracer        *tracing.Tracer               // nil if nothing is traced
	board         observe.Board                 // nil if the store shares no summaries
	background    []func(context.Context)       // run until the listeners are closed
	closers       []func(context.Context) error // of the store; called last to first
	pools         regions.Pools                 // of the region, if --store can hold them
	regions       *regions.Store                // nil without --home
	claimLimits   func(...penstock.Limit) error // of a store on Redis; nil in memory

	lastReload reloadRecord
	reloading  sync.Mutex
	draining   atomic.Bool
	serving    sync.Mutex // held by setServing
}

// New opens the store, loads the rules and opens the listeners, so that errors are
// reported before any request is served. [Server.Run] serves, and closes them all. A nil
// logger discards.
func New(ctx context.Context, c *Config, log *slog.Logger) (*Server, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	s := &Server{config: c, log: log, metrics: newMetrics(), storePolicies: storepolicy.Policies{Defaults: c.defaultStorePolicy()}}
	for _, step := range []func(context.Context) error{
		s.openData, s.openAudit, s.openTracer, s.openStore, s.openRules, s.openCandidateRules, s.openListeners, s.openStatistics,
	} {
		if err := step(ctx); err != nil {
			s.closeAll()
			return nil, err
		}
	}
	s.setServing()
	for _, note := range c.role().Notes {
		log.Warn(note)
	}
	return s, nil
}

// closeAll closes what New has opened before it failed.
func (s *Server) closeAll() {
	for _, l := range s.listeners {
		_ = l.listener.Close()
	}
	_ = s.closeStore(context.Background()) // the first error is the one to report
}

// closeStore closes the store and its wrappers.
func (s *Server) closeStore(ctx context.Context) (err error) {
	for _, c := range slices.Backward(s.closers) {
		err = errors.Join(err, c(ctx))
	}
	return err
}

// Addr returns the address of a listener, or nil if it is disabled. The listeners are
// named grpc, http, resp and admin.
func (s *Server) Addr(name string) net.Addr {
	if l := s.listener(name); l != nil {
		return l.socket.Addr()
	}
	return nil
}

// UsesTLS reports whether a listener has TLS.
func (s *Server) UsesTLS(name string) bool {
	l := s.listener(name)
	return l != nil && l.certificate != nil
}

func (s *Server) listener(name string) *listener {
	for _, l := range s.listeners {
		if l.name == name {
			return l
		}
	}
	return nil
}

// Run serves until ctx ends, and then shuts down: it reports not ready for the shutdown
// delay, drains the listeners, answers the requests in flight, and closes the store. It
// returns an error if a listener failed, if a request was not finished within a shutdown
// grace above 0, or if the last snapshot failed.
//
// When the listeners begin to close, requests from open connections and from connections
// in an accept queue are still answered. Clients that connect later are refused.
func (s *Server) Run(ctx context.Context) error {
	failures := make(chan error, len(s.listeners))
	var working sync.WaitGroup
	for _, l := range s.listeners {
		working.Go(func() { failures <- l.serve() })
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	for _, work := range append(s.background, s.watchCertificates) {
		working.Go(func() { work(background) })
	}
	s.log.Info("ready")

	err := waitForEnd(ctx, failures)
	grace, cancel := s.beginDrain()
	defer cancel()
	err = errors.Join(err, s.closeListeners(grace))
	stop()
	working.Wait()
	err = errors.Join(err, s.closeStore(grace))
	s.log.Info("stopped")
	return err
}

// waitForEnd returns when ctx ends or a listener fails.
func waitForEnd(ctx context.Context, failures <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failures:
		return err
	}
}

// beginDrain reports not ready, waits for the shutdown delay, and returns a context with
// the shutdown grace.
func (s *Server) beginDrain() (context.Context, context.CancelFunc) {
	s.markDraining()
	s.log.Info("shutting down", "delay", s.config.ShutdownDelay, "grace", s.config.ShutdownGrace)
	_ = monotime.Sleep(context.Background(), s.config.ShutdownDelay)
	return context.WithTimeout(context.Background(), s.config.ShutdownGrace)
}

// closeListeners shuts the listeners down. The admin listener is last, so that health
// checks report not ready until then.
func (s *Server) closeListeners(ctx context.Context) error {
	errs := make(chan error, len(s.listeners))
	var closing sync.WaitGroup
	var last *listener
	for _, l := range s.listeners {
		if l.name == "admin" {
			last = l
			continue
		}
		closing.Go(func() { errs <- l.shutdown(ctx) })
	}
	closing.Wait()
	if last != nil {
		errs <- last.shutdown(ctx)
	}
	close(errs)
	var all error
	for err := range errs {
		if s.config.ShutdownGrace == 0 && errors.Is(err, context.DeadlineExceeded) {
			continue // the operator chose not to wait
		}
		all = errors.Join(all, err)
	}
	return all
}
