package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// A remoteStore is a store on the network.
type remoteStore interface {
	penstock.ShardedStore
	penstock.TimeoutStore
}

// A timedStore records the latency and the failures of another store. It is for stores on
// the network: in memory, reading the clock would cost as much as the decision.
type timedStore struct {
	penstock.BatchFunc
	next            remoteStore
	take, each, all prometheus.Observer
	errors          prometheus.Counter
}

func newTimedStore(next remoteStore, name string, m *metrics) *timedStore {
	s := &timedStore{
		next:   next,
		take:   m.storeDuration.WithLabelValues(name, "take"),
		each:   m.storeDuration.WithLabelValues(name, "take_each"),
		all:    m.storeDuration.WithLabelValues(name, "take_all"),
		errors: m.storeErrors.WithLabelValues(name),
	}
	s.BatchFunc = s.decide
	return s
}

// Shards implements [penstock.ShardedStore] for the wrapped store.
func (s *timedStore) Shards() int { return s.next.Shards() }

// ShardOf implements [penstock.ShardedStore] for the wrapped store.
func (s *timedStore) ShardOf(key string) int { return s.next.ShardOf(key) }

// Timeout implements [penstock.TimeoutStore] for the wrapped store.
func (s *timedStore) Timeout() time.Duration { return s.next.Timeout() }

// decide records a call. An invalid request is not a failure of the store.
func (s *timedStore) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	begin := time.Now()
	err := penstock.TakeBatch(ctx, s.next, rs, ds, all)
	s.durations(len(rs), all).Observe(time.Since(begin).Seconds())
	if errors.Is(err, penstock.ErrUnavailable) {
		s.errors.Inc()
	}
	return err
}

// durations returns the histogram of calls with n requests.
func (s *timedStore) durations(n int, all bool) prometheus.Observer {
	switch {
	case all:
		return s.all
	case n == 1:
		return s.take
	}
	return s.each
}

// A sourceCounter counts decisions by their source. It counts takes, and neither peeks nor
// refunds.
type sourceCounter struct {
	decisions  [penstock.SourceFallback + 1]prometheus.Counter
	leaseUnits prometheus.Counter
}

// countSources returns a store that counts the decisions of another one by their source.
func countSources(next penstock.Store, m *metrics) penstock.BatchFunc {
	c := &sourceCounter{leaseUnits: m.leaseUnits}
	for source := range c.decisions {
		c.decisions[source] = m.decisionsBySource.WithLabelValues(penstock.Source(source).String())
	}
	return func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		err := penstock.TakeBatch(ctx, next, rs, ds, all)
		for i := range rs {
			if err == nil && rs[i].Cost > 0 {
				c.count(&ds[i])
			}
		}
		return err
	}
}

func (c *sourceCounter) count(d *penstock.Decision) {
	c.decisions[d.Source].Inc()
	if d.Source == penstock.SourceLease && d.Granted > 0 {
		c.leaseUnits.Add(float64(d.Granted))
	}
}
