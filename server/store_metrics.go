package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// timedStore is a store that measures how long another takes, and how often it fails.
// It is for stores on the network: in memory, the clock would cost as much as
// the decision.
type timedStore struct {
	next            penstock.Store
	take, each, all prometheus.Observer
	errors          prometheus.Counter
}

func newTimedStore(next penstock.Store, name string, m *metrics) *timedStore {
	return &timedStore{
		next:   next,
		take:   m.storeDuration.WithLabelValues(name, "take"),
		each:   m.storeDuration.WithLabelValues(name, "take_each"),
		all:    m.storeDuration.WithLabelValues(name, "take_all"),
		errors: m.storeErrors.WithLabelValues(name),
	}
}

// shardedStore is what a store says about itself to a [penstock.Fallback].
type shardedStore interface {
	Shards() int
	ShardOf(key string) int
	Timeout() time.Duration
}

func (s *timedStore) Shards() int {
	if of, ok := s.next.(shardedStore); ok {
		return of.Shards()
	}
	return 1
}

func (s *timedStore) ShardOf(key string) int {
	if of, ok := s.next.(shardedStore); ok {
		return of.ShardOf(key)
	}
	return 0
}

func (s *timedStore) Timeout() time.Duration {
	if of, ok := s.next.(shardedStore); ok {
		return of.Timeout()
	}
	return 0
}

func (s *timedStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	begin := time.Now()
	d, err := s.next.Take(ctx, r)
	s.observe(s.take, begin, err)
	return d, err
}

func (s *timedStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	begin := time.Now()
	err := penstock.TakeEach(ctx, s.next, rs, ds)
	s.observe(s.each, begin, err)
	return err
}

func (s *timedStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	begin := time.Now()
	err := penstock.TakeAll(ctx, s.next, rs, ds)
	s.observe(s.all, begin, err)
	return err
}

// observe counts a call. A request that has no meaning is not the store's failure.
func (s *timedStore) observe(durations prometheus.Observer, begin time.Time, err error) {
	durations.Observe(time.Since(begin).Seconds())
	if errors.Is(err, penstock.ErrUnavailable) {
		s.errors.Inc()
	}
}
