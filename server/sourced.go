package server

import (
	"context"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// sourceCounter is a store that counts who decided. Only takes are counted, as elsewhere.
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
