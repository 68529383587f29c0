package server

import (
	"context"
	"iter"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/tracing"
	"github.com/prometheus/client_golang/prometheus"
)

// openTracer makes the tracer, if the environment says where traces go.
func (s *Server) openTracer(context.Context) (err error) {
	if s.config.Traces == nil {
		return nil
	}
	if s.tracer, err = tracing.New(*s.config.Traces, s.config.daemonName(), Version(), s.log); err != nil {
		return err
	}
	s.background = append(s.background, s.tracer.Run)
	s.metrics.registry.MustRegister(
		counterOf("penstock_trace_spans_total", "Spans that were sent.", s.tracer.Exported.Load),
		counterOf("penstock_trace_spans_dropped_total", "Spans that were not sent, because the receiver fails or is too slow.", s.tracer.Dropped.Load),
	)
	return nil
}

// onBatch returns what traces batches, or nil.
func (s *Server) onBatch() func(iter.Seq[context.Context], int, time.Time) {
	if s.tracer == nil {
		return nil
	}
	return s.tracer.OnBatch
}

// onResult returns what traces decisions by the rules, or nil.
func (s *Server) onResult() func(context.Context, []engine.Descriptor, *engine.Result) {
	if s.tracer == nil {
		return nil
	}
	return func(ctx context.Context, ds []engine.Descriptor, r *engine.Result) {
		span := s.tracer.SpanOf(ctx)
		if span == nil {
			return
		}
		for i := range r.Statuses {
			span.Add(s.decisionOf(&ds[i], &r.Statuses[i], r.OverLimit))
		}
	}
}

// decisionOf returns the decision on a descriptor of a request that is denied or not.
func (s *Server) decisionOf(d *engine.Descriptor, by *engine.Status, denied bool) tracing.Decision {
	t := tracing.Decision{Result: tracing.Allowed, Cost: d.Cost, HasLimit: by.Limited()}
	t.Source, t.Limit, t.Remaining = by.Decision.Source, by.Decision.Limit, by.Decision.Remaining
	if by.Rule != nil {
		t.Rule = by.Rule.Name
	}
	if s.config.TraceKeys {
		t.Key = string(rules.AppendKey(nil, d.Entries))
	}
	switch {
	case by.OverLimit && denied:
		t.Result = tracing.Denied
	case by.OverLimit || t.HasLimit && !by.Decision.Allowed:
		t.Result = tracing.Shadow
	}
	return t
}

// onTaken returns what traces decisions under limits that requests bring, or nil.
func (s *Server) onTaken() func(context.Context, penstock.Request, penstock.Decision) {
	if s.tracer == nil {
		return nil
	}
	return func(ctx context.Context, r penstock.Request, d penstock.Decision) {
		span := s.tracer.SpanOf(ctx)
		if span == nil {
			return
		}
		t := tracing.Decision{Result: tracing.Allowed, Cost: r.Cost, HasLimit: true, Source: d.Source, Limit: d.Limit, Remaining: d.Remaining}
		if s.config.TraceKeys {
			t.Key = r.Key
		}
		if !d.Allowed {
			t.Result = tracing.Denied
		}
		span.Add(t)
	}
}

// observeTraced returns a function that records decision latencies of a listener. Those of requests that are traced have
// the trace as their exemplar.
func (s *Server) observeTraced(listener string) func(context.Context, time.Duration) {
	durations := s.metrics.decisionDuration.WithLabelValues(listener)
	return func(ctx context.Context, d time.Duration) {
		if span := s.tracer.SpanOf(ctx); span != nil {
			durations.(prometheus.ExemplarObserver).ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": span.TraceID()})
			return
		}
		durations.Observe(d.Seconds())
	}
}
