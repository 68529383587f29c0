package penstock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A farStore is a store that takes a while to reach. It counts the trips, and
// fails, or hangs, when it is told to. In a bubble its trips take exactly as long
// as they should.
type farStore struct {
	store       penstock.Store
	there, back func(penstock.Request) time.Duration // how long each way takes
	seen        func(rs ...penstock.Request)

	trips atomic.Int64
	down  atomic.Bool
	hung  atomic.Bool
	hang  time.Duration // how long a hung store is waited for
}

func after(d time.Duration) func(penstock.Request) time.Duration {
	return func(penstock.Request) time.Duration { return d }
}

// reach goes to the store, if that is possible.
func (s *farStore) reach(ctx context.Context, rs ...penstock.Request) error {
	s.trips.Add(1)
	if s.hung.Load() {
		ctx, cancel := context.WithTimeout(ctx, s.hang)
		defer cancel()
		<-ctx.Done()
		return fmt.Errorf("far: %w: %w", penstock.ErrUnavailable, ctx.Err())
	}
	if s.down.Load() {
		return fmt.Errorf("far: %w: connection refused", penstock.ErrUnavailable)
	}
	if s.seen != nil {
		s.seen(rs...)
	}
	s.pass(s.there, rs)
	return nil
}

func (s *farStore) pass(way func(penstock.Request) time.Duration, rs []penstock.Request) {
	if way != nil && len(rs) > 0 {
		<-time.After(way(rs[0]))
	}
}

func (s *farStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := s.reach(ctx, r); err != nil {
		return penstock.Decision{}, err
	}
	d, err := s.store.Take(ctx, r)
	if s.back != nil {
		<-time.After(s.back(r))
	}
	return d, err
}

func (s *farStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	err := penstock.TakeEach(ctx, s.store, rs, ds)
	s.pass(s.back, rs)
	return err
}

func (s *farStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	err := penstock.TakeAll(ctx, s.store, rs, ds)
	s.pass(s.back, rs)
	return err
}

// tripsFor returns how many trips something takes.
func (s *farStore) tripsFor(f func()) int64 {
	before := s.trips.Load()
	f()
	return s.trips.Load() - before
}
