// Package server is the daemon: it opens the store, the rules and the doors that a
// [Config] asks for, keeps them running, and closes them without dropping
// anybody.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A Server is a store, the rules, and doors to ask them by.
type Server struct {
	config    *Config
	log       *slog.Logger
	metrics   *metrics
	engine    *engine.Engine
	source    *rules.Source // nil without rules
	listeners []*listener

	storePolicies storePolicies
	monitor       *monitor                      // nil where the store cannot be away
	background    []func(context.Context)       // what goes on while it runs
	closers       []func(context.Context) error // of the store; the last is called first

	reloading sync.Mutex
	draining  atomic.Bool
}

// New opens the store, reads the rules and listens at every door, so that what
// cannot work is said before anybody is served. [Server.Run] must follow, which closes all of it. A
// nil log tells nobody.
func New(ctx context.Context, c *Config, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, log: log, metrics: newMetrics(), storePolicies: storePolicies{defaults: c.defaultStorePolicy()}}
	for _, step := range []func(context.Context) error{s.openStore, s.openRules, s.openListeners} {
		if err := step(ctx); err != nil {
			s.closeAll()
			return nil, err
		}
	}
	return s, nil
}

// closeAll closes what was opened before something else could not be.
func (s *Server) closeAll() {
	for _, o := range s.listeners {
		_ = o.listener.Close()
	}
	_ = s.closeStore(context.Background()) // the first error is the one to report
}

// closeStore lets go of the store, and of what is around it.
func (s *Server) closeStore(ctx context.Context) (err error) {
	for _, c := range slices.Backward(s.closers) {
		err = errors.Join(err, c(ctx))
	}
	return err
}

// Addr returns where a door listens, or nil if it is shut. The doors are called
// grpc, http, resp and admin.
func (s *Server) Addr(door string) net.Addr {
	if o := s.listener(door); o != nil {
		return o.socket.Addr()
	}
	return nil
}

// UsesTLS reports whether a door speaks TLS.
func (s *Server) UsesTLS(door string) bool {
	o := s.listener(door)
	return o != nil && o.certificate != nil
}

func (s *Server) listener(door string) *listener {
	for _, o := range s.listeners {
		if o.name == door {
			return o
		}
	}
	return nil
}

// Run serves until ctx ends, and then closes the doors: it tells load balancers,
// finishes what is under way, lets go of the store, and returns. It returns an
// error if a door failed, if something was not finished within the grace, or if
// what is kept in a file could not be saved.
func (s *Server) Run(ctx context.Context) error {
	failures := make(chan error, len(s.listeners))
	var working sync.WaitGroup
	for _, o := range s.listeners {
		working.Go(func() { failures <- o.serve() })
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	for _, work := range append(s.background, s.watchCertificates, s.watchRules) {
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
	s.log.Info("ended")
	return err
}

// waitForEnd returns when ctx ends, or when a door does.
func waitForEnd(ctx context.Context, failures <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failures:
		return err
	}
}

// beginDrain tells load balancers that this server is leaving, and returns the
// time that is left for that once they have had theirs.
func (s *Server) beginDrain() (context.Context, context.CancelFunc) {
	s.log.Info("shutting down", "delay", s.config.ShutdownDelay, "grace", s.config.ShutdownGrace)
	s.markDraining()
	sleep(s.config.ShutdownDelay)
	return context.WithTimeout(context.Background(), s.config.ShutdownGrace)
}

// closeListeners closes the doors, the one for operators last: until then it tells load
// balancers that this server is leaving.
func (s *Server) closeListeners(ctx context.Context) error {
	errs := make(chan error, len(s.listeners))
	var closing sync.WaitGroup
	var last *listener
	for _, o := range s.listeners {
		if o.name == "admin" {
			last = o
			continue
		}
		closing.Go(func() { errs <- o.shutdown(ctx) })
	}
	closing.Wait()
	if last != nil {
		errs <- last.shutdown(ctx)
	}
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

func sleep(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
