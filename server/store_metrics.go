package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// measured is a store that measures how long another takes, and how often it fails.
// It is for stores on the network: in memory, the clock would cost as much as
// the decision.
type measured struct {
	next            penstock.Store
	take, each, all prometheus.Observer
	errors          prometheus.Counter
}

func newMeasured(next penstock.Store, name string, m *metrics) *measured {
	return &measured{
		next:   next,
		take:   m.storeDuration.WithLabelValues(name, "take"),
		each:   m.storeDuration.WithLabelValues(name, "take_each"),
		all:    m.storeDuration.WithLabelValues(name, "take_all"),
		errors: m.storeErrors.WithLabelValues(name),
	}
}

// shards is what a store says about itself to a [penstock.Fallback].
type shards interface {
	Shards() int
	ShardOf(key string) int
	Timeout() time.Duration
}

func (s *measured) Shards() int {
	if of, ok := s.next.(shards); ok {
		return of.Shards()
	}
	return 1
}

func (s *measured) ShardOf(key string) int {
	if of, ok := s.next.(shards); ok {
		return of.ShardOf(key)
	}
	return 0
}

func (s *measured) Timeout() time.Duration {
	if of, ok := s.next.(shards); ok {
		return of.Timeout()
	}
	return 0
}

func (s *measured) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	begin := time.Now()
	d, err := s.next.Take(ctx, r)
	s.note(s.take, begin, err)
	return d, err
}

func (s *measured) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	begin := time.Now()
	err := penstock.TakeEach(ctx, s.next, rs, ds)
	s.note(s.each, begin, err)
	return err
}

func (s *measured) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	begin := time.Now()
	err := penstock.TakeAll(ctx, s.next, rs, ds)
	s.note(s.all, begin, err)
	return err
}

// note counts a call. A request that has no meaning is not the store's failure.
func (s *measured) note(durations prometheus.Observer, begin time.Time, err error) {
	durations.Observe(time.Since(begin).Seconds())
	if errors.Is(err, penstock.ErrUnavailable) {
		s.errors.Inc()
	}
}
