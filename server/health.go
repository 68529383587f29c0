package server

import (
	"errors"

	"github.com/penstock-io/penstock/server/grpcapi"
)

var errLeaving = errors.New("shutting down")

// ready says why nobody should be sent here.
func (s *Server) ready() error {
	if s.leaving.Load() {
		return errLeaving
	}
	return nil
}

// degraded says why decisions are not what they should be, though this server makes
// them. It is no reason to send nobody here, even where the rules deny everything
// meanwhile: whoever finds no server at all may let pass what was to be denied.
func (s *Server) degraded() error {
	if s.outage == nil {
		return nil
	}
	return s.outage.reason()
}

// leave tells whoever looks at the doors' health that this server is going.
func (s *Server) leave() {
	s.leaving.Store(true)
	s.setServing()
}

// setServing has gRPC's health checks say what the others do.
func (s *Server) setServing() {
	if o := s.opening("grpc"); o != nil {
		o.door.(*grpcapi.Server).SetServing(s.ready() == nil)
	}
}
