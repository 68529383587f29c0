// Package server is the daemon: it opens the store, the rules and the doors that a
// [Config] asks for, keeps them running, and closes them without dropping
// anybody.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/judge"
	"github.com/penstock-io/penstock/server/rules"
)

// A Server is a store, the rules, and doors to ask them by.
type Server struct {
	config  *Config
	log     *slog.Logger
	metrics *metrics
	judge   *judge.Judge
	source  *rules.Source // nil without rules
	doors   []*opening
	close   func() // the store

	reloading  sync.Mutex
	leaving    atomic.Bool
	storeError atomic.Pointer[error] // why the store does not answer
}

// New opens the store, reads the rules and listens at every door, so that what
// cannot work is said before anybody is served. [Server.Run] must follow, which closes all of it. A
// nil log tells nobody.
func New(ctx context.Context, c *Config, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, log: log, metrics: newMetrics(), close: func() {}}
	for _, step := range []func(context.Context) error{s.openStore, s.openRules, s.openDoors} {
		if err := step(ctx); err != nil {
			s.abandon()
			return nil, err
		}
	}
	return s, nil
}

// abandon closes what was opened before something else could not be.
func (s *Server) abandon() {
	for _, o := range s.doors {
		_ = o.listener.Close()
	}
	s.close()
}

// openStore opens the store, and the judge that asks it.
func (s *Server) openStore(ctx context.Context) error {
	store, err := s.makeStore(ctx)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	s.judge = judge.New(store, &judge.Options{Token: s.config.Token, Shadow: s.config.Shadow})
	s.metrics.registry.MustRegister(counts{s.judge})
	return nil
}

func (s *Server) makeStore(ctx context.Context) (penstock.Store, error) {
	c := s.config
	if c.Store == "memory:" {
		memory := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: c.MaxKeys, MaxBytes: c.MaxBytes})
		s.metrics.registry.MustRegister(memoryStats{memory})
		return memory, nil
	}
	redis, err := redisstore.Open(ctx, c.Store, &redisstore.Options{Prefix: c.RedisPrefix, Timeout: c.RedisTimeout})
	if err != nil {
		return nil, err
	}
	for _, warning := range redis.Warnings() {
		s.log.Warn(warning)
	}
	s.close = redis.Close
	return newMeasured(redis, "redis", s.metrics), nil
}

// Addr returns where a door listens, or nil if it is shut. The doors are called
// grpc, http, resp and admin.
func (s *Server) Addr(door string) net.Addr {
	if o := s.opening(door); o != nil {
		return o.entrance.Addr()
	}
	return nil
}

// Encrypted reports whether a door speaks TLS.
func (s *Server) Encrypted(door string) bool {
	o := s.opening(door)
	return o != nil && o.certificate != nil
}

func (s *Server) opening(door string) *opening {
	for _, o := range s.doors {
		if o.name == door {
			return o
		}
	}
	return nil
}

// Run serves until ctx ends, and then closes the doors: it tells load balancers,
// finishes what is under way, and returns. It returns an error if a door failed,
// or if something was not finished within the grace.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	failures := make(chan error, len(s.doors))
	var working sync.WaitGroup
	for _, o := range s.doors {
		working.Go(func() { failures <- o.serve() })
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	working.Go(func() { s.watchCertificates(background) })
	working.Go(func() { s.watchRules(background) })
	working.Go(func() { s.watchStore(background) })
	s.log.Info("ready")

	err := awaitEnd(ctx, failures)
	err = errors.Join(err, s.shutdown())
	stop()
	working.Wait()
	return err
}

// awaitEnd returns when ctx ends, or when a door does.
func awaitEnd(ctx context.Context, failures <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failures:
		return err
	}
}

// shutdown closes the doors, the one for operators last: until then it tells load
// balancers that this server is leaving.
func (s *Server) shutdown() error {
	s.log.Info("shutting down", "delay", s.config.ShutdownDelay, "grace", s.config.ShutdownGrace)
	s.leave()
	wait(s.config.ShutdownDelay)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.ShutdownGrace)
	defer cancel()

	errs := make(chan error, len(s.doors))
	var closing sync.WaitGroup
	var last *opening
	for _, o := range s.doors {
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
	s.log.Info("ended")
	return all
}

func wait(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}
