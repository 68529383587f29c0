package server

import (
	"context"

	"github.com/penstock-io/penstock"
	"github.com/prometheus/client_golang/prometheus"
)

// sourced is a store that counts who decided. Only takes are counted, as elsewhere.
type sourced struct {
	next       penstock.Store
	by         [penstock.SourceFallback + 1]prometheus.Counter
	leaseUnits prometheus.Counter
}

func newSourced(next penstock.Store, m *metrics) *sourced {
	s := &sourced{next: next, leaseUnits: m.leaseUnits}
	for source := range s.by {
		s.by[source] = m.sources.WithLabelValues(penstock.Source(source).String())
	}
	return s
}

func (s *sourced) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.next.Take(ctx, r)
	if err == nil {
		s.count(r.Cost, &d)
	}
	return d, err
}

func (s *sourced) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.countAll(penstock.TakeEach(ctx, s.next, rs, ds), rs, ds)
}

func (s *sourced) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return s.countAll(penstock.TakeAll(ctx, s.next, rs, ds), rs, ds)
}

func (s *sourced) countAll(err error, rs []penstock.Request, ds []penstock.Decision) error {
	if err == nil {
		for i := range rs {
			s.count(rs[i].Cost, &ds[i])
		}
	}
	return err
}

func (s *sourced) count(cost int64, d *penstock.Decision) {
	if cost <= 0 {
		return
	}
	s.by[d.Source].Inc()
	if d.Source == penstock.SourceLease && d.Granted > 0 {
		s.leaseUnits.Add(float64(d.Granted))
	}
}
