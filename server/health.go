package server

import (
	"errors"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

var errShuttingDown = errors.New("shutting down")

// ready returns why the server should receive no traffic, or nil.
func (s *Server) ready() error {
	switch {
	case s.draining.Load():
		return errShuttingDown
	case s.config.waitsForRules() && !s.hasDomains():
		return engine.ErrNoRules
	}
	return nil
}

// hasDomains reports whether there are rules; in place of envoyproxy/ratelimit, as there, a set without
// a domain is none.
func (s *Server) hasDomains() bool {
	set := s.engine.Rules()
	return set != nil && (s.config.Ratelimit == nil || len(set.Domains()) > 0)
}

// degraded returns why decisions are made without the store, or nil. A degraded server
// stays ready, even if its rules deny everything meanwhile: clients that find no server
// at all may fail open.
func (s *Server) degraded() error {
	if s.monitor == nil {
		return nil
	}
	return s.monitor.reason()
}

// markDraining makes health checks report not ready.
func (s *Server) markDraining() {
	s.draining.Store(true)
	s.setServing()
}

// setServing updates the health service of the gRPC API. One call follows the other, so that rules
// loaded while the server begins to drain do not make it serve again.
func (s *Server) setServing() {
	s.serving.Lock()
	defer s.serving.Unlock()
	if l := s.listener("grpc"); l != nil {
		l.api.(*rls.Server).SetServing(s.ready() == nil)
	}
}
