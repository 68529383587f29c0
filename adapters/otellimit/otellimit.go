// Package otellimit traces the decisions of a program's limits with OpenTelemetry:
//
//	store := otellimit.WithTraces(redis, nil)
//
// A call of the store within a sampled span has a span of its own, with the limit, the result, what decided, the cost and
// what remains; of several requests each is an event. A call outside of one costs a look at its context. Wrap the whole
// store, to see which of its wrappers decide, or the remote store inside them, to see its round trips, or both.
//
// The daemon traces its own decisions, under the same names.
package otellimit

import (
	"cmp"
	"context"

	"github.com/penstock-io/penstock"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Options are the settings of [WithTraces].
type Options struct {
	// TracerProvider makes the spans. Default: the global one.
	TracerProvider trace.TracerProvider

	// Name is that of the spans. Default: penstock.take.
	Name string

	// Keys adds the keys of requests, which may be personal data. Default: no span has them.
	Keys bool
}

// A Store is a store whose decisions are traced. Use [WithTraces].
type Store struct {
	penstock.BatchFunc
	next    penstock.Store
	options Options
	tracer  trace.Tracer
}

// WithTraces returns a store that traces the decisions of the next. Nil options mean all defaults. Trace a store
// once, and make all limiters with the result: limiters of one store can be decided in one call.
func WithTraces(next penstock.Store, o *Options) *Store {
	s := &Store{next: next, options: *cmp.Or(o, &Options{})}
	s.options.TracerProvider = cmp.Or(s.options.TracerProvider, otel.GetTracerProvider())
	s.options.Name = cmp.Or(s.options.Name, "penstock.take")
	s.tracer = s.options.TracerProvider.Tracer("github.com/penstock-io/penstock/adapters/otellimit")
	s.BatchFunc = s.decide
	return s
}

// Unwrap returns the store that is traced: it is a [penstock.TransparentStore].
func (s *Store) Unwrap() penstock.Store { return s.next }

func (s *Store) decide(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return penstock.TakeBatch(ctx, s.next, rs, ds, all)
	}
	ctx, span := s.tracer.Start(ctx, s.options.Name)
	defer span.End()
	err := penstock.TakeBatch(ctx, s.next, rs, ds, all)
	s.options.describe(span, rs, ds, err)
	return err
}

// describe adds the decisions to a span: the one that matters as attributes, and several as events. The text of an error
// may contain a key.
func (o *Options) describe(span trace.Span, rs []penstock.Request, ds []penstock.Decision, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "no decision")
		if o.Keys {
			span.RecordError(err)
		}
	}
	for i := range rs {
		if len(rs) > 1 {
			span.AddEvent("penstock.decision", trace.WithAttributes(o.attributes(&rs[i], &ds[i])...))
		}
	}
	if i := tightest(ds[:min(len(rs), len(ds))]); i >= 0 {
		span.SetAttributes(o.attributes(&rs[i], &ds[i])...)
	}
}

// tightest returns the index of the decision that [penstock.Tightest] chooses; -1 if there is none.
func tightest(ds []penstock.Decision) int {
	most := -1
	for i := range ds {
		if most < 0 || ds[i].TighterThan(ds[most]) {
			most = i
		}
	}
	return most
}

func (o *Options) attributes(r *penstock.Request, d *penstock.Decision) []attribute.KeyValue {
	as := []attribute.KeyValue{
		attribute.String("penstock.result", result(d)), attribute.Int64("penstock.cost", r.Cost), attribute.Int64("penstock.limit", d.Limit),
		attribute.Int64("penstock.remaining", d.Remaining), attribute.String("penstock.source", d.Source.String()),
	}
	if r.Limit.Name != "" && !r.Limit.Untrusted {
		as = append(as, attribute.String("penstock.rule", r.Limit.Name))
	}
	if o.Keys {
		as = append(as, attribute.String("penstock.key", r.Key))
	}
	return as
}

func result(d *penstock.Decision) string {
	switch {
	case *d == penstock.Decision{}:
		return "error"
	case d.Allowed:
		return "allowed"
	}
	return "denied"
}
