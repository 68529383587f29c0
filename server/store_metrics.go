package server

import (
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/tracing"
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
	next      penstock.Store
	name      string
	tracer    *tracing.Tracer // nil if nothing is traced
	durations [len(operations)]prometheus.Observer
	errors    prometheus.Counter
}

func newTimedStore(next penstock.Store, name string, m *metrics, t *tracing.Tracer) *timedStore {
	s := &timedStore{
		next:   next,
		name:   name,
		tracer: t,
		errors: m.storeErrors.WithLabelValues(name),
	}
	for op, label := range operations {
		s.durations[op] = m.storeDuration.WithLabelValues(name, label)
	}
	s.BatchFunc = s.decide
	return s
}

// Unwrap implements [penstock.TransparentStore].
func (s *timedStore) Unwrap() penstock.Store { return s.next }

// decide records a call. An invalid request is not a failure of the store.
func (s *timedStore) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	begin := time.Now()
	ctx, trip := s.tracer.BeginRoundTrip(ctx, begin)
	err := penstock.TakeBatch(ctx, s.next, rs, ds, all)
	op := operationOf(len(rs), all)
	s.durations[op].Observe(time.Since(begin).Seconds())
	trip.End(s.name, operations[op], len(rs), err)
	if errors.Is(err, penstock.ErrUnavailable) || errors.Is(err, penstock.ErrBusy) {
		s.errors.Inc()
	}
	return err
}

// operations are the names of store calls, by which operationOf tells them apart.
var operations = [...]string{"take", "take_each", "take_all"}

// operationOf returns the operation of a call with n requests.
func operationOf(n int, all bool) int {
	switch {
	case all:
		return 2
	case n == 1:
		return 0
	}
	return 1
}

// A sourceCounter counts decisions of another store by their source. It counts takes, and neither
// peeks nor refunds.
type sourceCounter struct {
	penstock.BatchFunc
	next       penstock.Store
	decisions  [penstock.SourceFallback + 1]prometheus.Counter
	leaseUnits prometheus.Counter
}

func countSources(next penstock.Store, m *metrics) *sourceCounter {
	c := &sourceCounter{next: next, leaseUnits: m.leaseUnits}
	for source := range c.decisions {
		c.decisions[source] = m.decisionsBySource.WithLabelValues(penstock.Source(source).String())
	}
	c.BatchFunc = c.decide
	return c
}

// Unwrap implements [penstock.TransparentStore].
func (c *sourceCounter) Unwrap() penstock.Store { return c.next }

func (c *sourceCounter) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	err := penstock.TakeBatch(ctx, c.next, rs, ds, all)
	for i := range rs {
		if err == nil && rs[i].Cost > 0 {
			c.count(&ds[i])
		}
	}
	return err
}

func (c *sourceCounter) count(d *penstock.Decision) {
	c.decisions[d.Source].Inc()
	if d.Source == penstock.SourceLease && d.Granted > 0 {
		c.leaseUnits.Add(float64(d.Granted))
	}
}
