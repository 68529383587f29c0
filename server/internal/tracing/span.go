// Package tracing sends OpenTelemetry spans of decisions, for requests whose caller samples their trace: the decision, the
// store's round trip below it, and the batch that the round trip shared.
//
// It writes OTLP itself: see docs/design/daemon.md. A request that is not sampled costs a look at one header.
package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A record is a span as it is sent. It is not changed after it was queued.
type record struct {
	ids
	parent     uint64
	name       string
	kind       int
	start, end time.Time
	attributes []attribute
	events     []event
	dropped    int // events
	links      []ids
	failed     bool
}

// The kinds of spans, by their numbers in OTLP.
const (
	kindServer = 2
	kindClient = 3
)

// An attribute has a text, or if that is empty a number.
type attribute struct {
	key, text string
	number    int64
}

type event struct {
	name       string
	at         time.Time
	attributes []attribute
}

// A Span is the decision of one request. Only the goroutine that decides the request adds to it. A nil Span is that of a
// request that is not traced.
type Span struct {
	tracer    *Tracer
	caller    ids
	own       ids
	api       string
	start     time.Time
	decisions []Decision
	dropped   int
}

// A Decision is one of those that a request brought about: each of its descriptors has one.
type Decision struct {
	Rule      string // "" without one
	Key       string // "" unless keys are traced
	Result    string // allowed, denied or shadow
	Cost      int64
	HasLimit  bool // the rest has a meaning
	Source    penstock.Source
	Limit     int64
	Remaining int64
}

// The results of decisions. A request without any is an error.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Shadow  = "shadow" // would be denied

	failed = "error"
)

// maxDecisions is how many decisions a span tells: a caller chooses the number of descriptors.
const maxDecisions = 32

// Keys of values in a context.
type (
	spanKey struct{}
	tripKey struct{}
)

// Start returns the span of a request to an API, and a context with it, if a value of its traceparent header says that its
// trace is sampled; else nil, and the context as it is.
func (t *Tracer) Start(ctx context.Context, api string, parents []string) (context.Context, *Span) {
	if t == nil || len(parents) != 1 {
		return ctx, nil
	}
	caller, ok := parseParent(parents[0])
	if !ok {
		return ctx, nil
	}
	t.active.Add(1)
	context.AfterFunc(ctx, func() { t.active.Add(-1) }) // also if the call is never handled
	s := &Span{tracer: t, caller: caller, own: ids{caller.trace, newID()}, api: api, start: time.Now()}
	return context.WithValue(ctx, spanKey{}, s), s
}

// newID returns an ID of a span, which is never 0.
func newID() uint64 { return rand.Uint64()>>1 + 1 }

// SpanOf returns the span of the request that a context belongs to, or nil. While no request is traced, the values of the
// context are not searched.
func (t *Tracer) SpanOf(ctx context.Context) *Span {
	if t == nil || t.active.Load() == 0 {
		return nil
	}
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// TraceID returns the ID of the trace, for an exemplar.
func (s *Span) TraceID() string { return hex.EncodeToString(s.own.trace[:]) }

// Add adds a decision.
func (s *Span) Add(d Decision) {
	if len(s.decisions) == maxDecisions {
		s.dropped++
		return
	}
	s.decisions = append(s.decisions, d)
}

// End sends the span. It has the attributes of the decision that matters: the first denial, or else the one with the least
// left. If there are several, each is an event.
func (s *Span) End() {
	if s == nil {
		return
	}
	r := &record{ids: s.own, parent: s.caller.span, name: "penstock.decide", kind: kindServer, start: s.start, end: time.Now()}
	r.attributes = append(r.attributes, attribute{key: "penstock.api", text: s.api})
	if len(s.decisions) == 0 {
		r.failed = true
		r.attributes = append(r.attributes, attribute{key: "penstock.result", text: failed})
		s.tracer.enqueue(r)
		return
	}
	r.attributes = append(r.attributes, s.tightest().attributes()...)
	if len(s.decisions) > 1 {
		r.dropped = s.dropped
		for i := range s.decisions {
			r.events = append(r.events, event{"penstock.decision", r.end, s.decisions[i].attributes()})
		}
	}
	s.tracer.enqueue(r)
}

// tightest returns the decision that matters.
func (s *Span) tightest() *Decision {
	most := &s.decisions[0]
	for i := range s.decisions {
		d := &s.decisions[i]
		switch {
		case d.Result == Denied:
			return d
		case d.HasLimit && (!most.HasLimit || d.Remaining < most.Remaining):
			most = d
		}
	}
	return most
}

func (d *Decision) attributes() []attribute {
	as := []attribute{{key: "penstock.result", text: d.Result}, {key: "penstock.cost", number: d.Cost}}
	if d.Rule != "" {
		as = append(as, attribute{key: "penstock.rule", text: d.Rule})
	}
	if d.Key != "" {
		as = append(as, attribute{key: "penstock.key", text: d.Key})
	}
	if d.HasLimit {
		as = append(as, attribute{key: "penstock.source", text: d.Source.String()},
			attribute{key: "penstock.limit", number: d.Limit}, attribute{key: "penstock.remaining", number: d.Remaining})
	}
	return as
}

// A RoundTrip is a call of the store for a request. A nil RoundTrip is that of a request that is not traced.
type RoundTrip struct {
	span  *Span
	own   ids
	start time.Time
	batch atomic.Pointer[ids] // that it shared
}

// BeginRoundTrip returns a round trip for the request of a context, and a context with it, or nil. The request may have been
// answered meanwhile.
func (t *Tracer) BeginRoundTrip(ctx context.Context, start time.Time) (context.Context, *RoundTrip) {
	s := t.SpanOf(ctx)
	if s == nil {
		return ctx, nil
	}
	trip := &RoundTrip{span: s, own: ids{s.own.trace, newID()}, start: start}
	return context.WithValue(ctx, tripKey{}, trip), trip
}

// End sends the round trip of so many requests. The error tells the kind of a failure only: its text may contain a key.
func (p *RoundTrip) End(store, operation string, requests int, err error) {
	if p == nil {
		return
	}
	r := &record{ids: p.own, parent: p.span.own.span, name: "penstock.store", kind: kindClient, start: p.start, end: time.Now()}
	r.attributes = []attribute{
		{key: "penstock.store", text: store}, {key: "penstock.operation", text: operation}, {key: "penstock.requests", number: int64(requests)},
	}
	if err != nil {
		r.failed, r.attributes = true, append(r.attributes, attribute{key: "error.type", text: kindOf(err)})
	}
	if b := p.batch.Load(); b != nil {
		r.links = []ids{*b}
	}
	p.span.tracer.enqueue(r)
}

func kindOf(err error) string {
	switch {
	case errors.Is(err, penstock.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, penstock.ErrBusy):
		return "busy"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	}
	return "invalid"
}

// OnBatch is for [redisstore.Options]. The span of a batch is below the first of its calls that is traced, and all of them
// have a link to it.
func (t *Tracer) OnBatch(calls iter.Seq[context.Context], size int, start time.Time) {
	if t.active.Load() == 0 {
		return
	}
	var r *record
	for ctx := range calls {
		trip, _ := ctx.Value(tripKey{}).(*RoundTrip)
		if trip == nil {
			continue
		}
		if r == nil {
			r = &record{ids: ids{trip.own.trace, newID()}, parent: trip.own.span, name: "penstock.batch", kind: kindClient, start: start, end: time.Now()}
			r.attributes = []attribute{{key: "penstock.calls", number: int64(size)}}
		}
		r.links = append(r.links, trip.own)
		trip.batch.Store(&ids{r.trace, r.span})
	}
	if r != nil {
		t.enqueue(r)
	}
}
