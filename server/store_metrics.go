package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// A timedStore records the latency and the failures of another store. It is for stores on
// the network: in memory, reading the clock would cost as much as the decision.
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

// Shards implements [penstock.ShardedStore] for the wrapped store.
func (s *timedStore) Shards() int {
	if next, ok := s.next.(penstock.ShardedStore); ok {
		return next.Shards()
	}
	return 1
}

// ShardOf implements [penstock.ShardedStore] for the wrapped store.
func (s *timedStore) ShardOf(key string) int {
	if next, ok := s.next.(penstock.ShardedStore); ok {
		return next.ShardOf(key)
	}
	return 0
}

// Timeout implements [penstock.TimeoutStore] for the wrapped store.
func (s *timedStore) Timeout() time.Duration {
	if next, ok := s.next.(penstock.TimeoutStore); ok {
		return next.Timeout()
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

// observe records a call. An invalid request is not a failure of the store.
func (s *timedStore) observe(durations prometheus.Observer, begin time.Time, err error) {
	durations.Observe(time.Since(begin).Seconds())
	if errors.Is(err, penstock.ErrUnavailable) {
		s.errors.Inc()
	}
}

// A sourceCounter counts the decisions of another store by their source. It counts takes,
// and neither peeks nor refunds.
type sourceCounter struct {
	next       penstock.Store
	decisions  [penstock.SourceFallback + 1]prometheus.Counter
	leaseUnits prometheus.Counter
}

func newSourceCounter(next penstock.Store, m *metrics) *sourceCounter {
	s := &sourceCounter{next: next, leaseUnits: m.leaseUnits}
	for source := range s.decisions {
		s.decisions[source] = m.decisionsBySource.WithLabelValues(penstock.Source(source).String())
	}
	return s
}

func (s *sourceCounter) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.next.Take(ctx, r)
	if err == nil {
		s.count(r.Cost, &d)
	}
	return d, err
}

func (s *sourceCounter) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.countAll(penstock.TakeEach(ctx, s.next, rs, ds), rs, ds)
}

func (s *sourceCounter) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.countAll(penstock.TakeAll(ctx, s.next, rs, ds), rs, ds)
}

func (s *sourceCounter) countAll(err error, rs []penstock.Request, ds []penstock.Decision) error {
	if err == nil {
		for i := range rs {
			s.count(rs[i].Cost, &ds[i])
		}
	}
	return err
}

func (s *sourceCounter) count(cost int64, d *penstock.Decision) {
	if cost <= 0 {
		return
	}
	s.decisions[d.Source].Inc()
	if d.Source == penstock.SourceLease && d.Granted > 0 {
		s.leaseUnits.Add(float64(d.Granted))
	}
}
