package penstock_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A remoteStore is a store behind a simulated network. It counts calls, and
// fails or hangs on demand. In a synctest bubble its delays are exact.
type remoteStore struct {
	store                       penstock.Store
	requestDelay, responseDelay func(penstock.Request) time.Duration // of each call
	onRequest                   func(rs ...penstock.Request)

	calls atomic.Int64
	down  atomic.Bool
	hung  atomic.Bool
	hang  time.Duration // how long a call to a hung store takes

	refuse       func(penstock.Request) bool   // whether the store fails such a request
	loseResponse func([]penstock.Request) bool // whether the response is lost
}

func fixedDelay(d time.Duration) func(penstock.Request) time.Duration {
	return func(penstock.Request) time.Duration { return d }
}

// reach sends requests to the store.
func (s *remoteStore) reach(ctx context.Context, rs ...penstock.Request) error {
	s.calls.Add(1)
	if s.hung.Load() {
		ctx, cancel := context.WithTimeout(ctx, s.hang)
		defer cancel()
		<-ctx.Done()
		return fmt.Errorf("remote: %w: %w", penstock.ErrUnavailable, ctx.Err())
	}
	if s.down.Load() {
		return fmt.Errorf("remote: %w: connection refused", penstock.ErrUnavailable)
	}
	if s.refuse != nil && slices.ContainsFunc(rs, s.refuse) {
		return fmt.Errorf("remote: %w: out of memory", penstock.ErrUnavailable)
	}
	if s.onRequest != nil {
		s.onRequest(rs...)
	}
	if s.requestDelay == nil || len(rs) == 0 {
		return nil
	}
	select {
	case <-time.After(s.requestDelay(rs[0])):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("remote: %w", ctx.Err())
	}
}

// respond returns the response, unless it is lost.
func (s *remoteStore) respond(err error, rs ...penstock.Request) error {
	if s.responseDelay != nil && len(rs) > 0 {
		<-time.After(s.responseDelay(rs[0]))
	}
	if s.loseResponse != nil && s.loseResponse(rs) {
		return fmt.Errorf("remote: %w: connection reset", penstock.ErrUnavailable)
	}
	return err
}

func (s *remoteStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := s.reach(ctx, r); err != nil {
		return penstock.Decision{}, err
	}
	d, err := s.store.Take(ctx, r)
	return d, s.respond(err, r)
}

func (s *remoteStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	return s.respond(penstock.TakeEach(ctx, s.store, rs, ds), rs...)
}

func (s *remoteStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	return s.respond(penstock.TakeAll(ctx, s.store, rs, ds), rs...)
}

// callsDuring returns how many calls f makes.
func (s *remoteStore) callsDuring(f func()) int64 {
	before := s.calls.Load()
	f()
	return s.calls.Load() - before
}
