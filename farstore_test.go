package penstock_test

import (
	"context"
	"fmt"
	"slices"
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

	refuse func(penstock.Request) bool   // whether it cannot do that
	lost   func([]penstock.Request) bool // whether the answer is lost
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
	if s.refuse != nil && slices.ContainsFunc(rs, s.refuse) {
		return fmt.Errorf("far: %w: out of memory", penstock.ErrUnavailable)
	}
	if s.seen != nil {
		s.seen(rs...)
	}
	if s.there == nil || len(rs) == 0 {
		return nil
	}
	select {
	case <-time.After(s.there(rs[0])):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("far: %w", ctx.Err())
	}
}

// answer comes back with an answer, if it is not lost.
func (s *farStore) answer(err error, rs ...penstock.Request) error {
	if s.back != nil && len(rs) > 0 {
		<-time.After(s.back(rs[0]))
	}
	if s.lost != nil && s.lost(rs) {
		return fmt.Errorf("far: %w: connection reset", penstock.ErrUnavailable)
	}
	return err
}

func (s *farStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := s.reach(ctx, r); err != nil {
		return penstock.Decision{}, err
	}
	d, err := s.store.Take(ctx, r)
	return d, s.answer(err, r)
}

func (s *farStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	return s.answer(penstock.TakeEach(ctx, s.store, rs, ds), rs...)
}

func (s *farStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(ctx, rs...); err != nil {
		return err
	}
	return s.answer(penstock.TakeAll(ctx, s.store, rs, ds), rs...)
}

// tripsFor returns how many trips something takes.
func (s *farStore) tripsFor(f func()) int64 {
	before := s.trips.Load()
	f()
	return s.trips.Load() - before
}
