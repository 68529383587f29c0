package server

import (
	"errors"

	"github.com/penstock-io/penstock/server/grpcapi"
)

var errShuttingDown = errors.New("shutting down")

// ready says why nobody should be sent here.
func (s *Server) ready() error {
	if s.draining.Load() {
		return errShuttingDown
	}
	return nil
}

// degraded says why decisions are not what they should be, though this server makes
// them. It is no reason to send nobody here, even where the rules deny everything
// meanwhile: whoever finds no server at all may let pass what was to be denied.
func (s *Server) degraded() error {
	if s.monitor == nil {
		return nil
	}
	return s.monitor.reason()
}

// markDraining tells whoever looks at the doors' health that this server is going.
func (s *Server) markDraining() {
	s.draining.Store(true)
	s.setServing()
}

// setServing has gRPC's health checks say what the others do.
func (s *Server) setServing() {
	if o := s.listener("grpc"); o != nil {
		o.api.(*grpcapi.Server).SetServing(s.ready() == nil)
	}
}
