package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/envoyrls"
)

var errLeaving = errors.New("shutting down")

// ready says why nobody should be sent here.
func (s *Server) ready() error {
	if s.leaving.Load() {
		return errLeaving
	}
	if err := s.storeError.Load(); err != nil {
		return *err
	}
	return nil
}

// leave tells whoever looks at the doors' health that this server is going.
func (s *Server) leave() {
	s.leaving.Store(true)
	s.setServing()
}

// setServing has gRPC's health checks say what the others do.
func (s *Server) setServing() {
	if o := s.opening("grpc"); o != nil {
		o.door.(*envoyrls.Door).SetServing(s.ready() == nil)
	}
}

// storeInterval is how often a store on the network is looked at.
const storeInterval = time.Second

// watchStore looks at a store on the network, so that operators and load balancers
// hear of it when nobody can be served.
func (s *Server) watchStore(ctx context.Context) {
	if _, ok := s.judge.Store().(*penstock.Memory); ok {
		return
	}
	tick := time.NewTicker(storeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.lookAtStore(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) lookAtStore(ctx context.Context) {
	_, err := s.judge.Store().Take(ctx, penstock.Request{Key: "ready", Limit: penstock.PerSecond(1)})
	if ctx.Err() != nil {
		return
	}
	var now *error
	if err != nil {
		now = &err
	}
	before := s.storeError.Swap(now)
	s.setServing()
	switch {
	case err != nil && before == nil:
		s.log.Error("the store does not answer", "err", err)
	case err == nil && before != nil:
		s.log.Info("the store answers again")
	}
}
