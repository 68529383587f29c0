package otellimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/adapters/otellimit"
	_ "github.com/penstock-io/penstock/internal/fixedseed" // the same cases in every run
	"github.com/penstock-io/penstock/internal/wraptest"
	"github.com/penstock-io/penstock/storetest"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestTracedStoreIsAStore(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return otellimit.WithTraces(penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond}), nil)
	})
}

func TestTracesChangeNoDecision(t *testing.T) {
	ctx, span := trace.NewTracerProvider().Tracer("test").Start(t.Context(), "caller")
	defer span.End()
	for _, ctx := range []context.Context{t.Context(), ctx} {
		wraptest.CheckWatcher(ctx, t, wraptest.Wrapper{Name: "WithTraces", Wrap: func(s penstock.Store) penstock.Store {
			return otellimit.WithTraces(s, nil)
		}})
	}
}

// traced returns a store, a context within a sampled span, and what the spans are recorded in.
func traced(t *testing.T, o otellimit.Options) (penstock.Store, context.Context, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	o.TracerProvider = trace.NewTracerProvider(trace.WithSpanProcessor(r))
	ctx, span := o.TracerProvider.Tracer("test").Start(t.Context(), "caller")
	t.Cleanup(func() { span.End() })
	return otellimit.WithTraces(penstock.NewMemory(nil), &o), ctx, r
}

func text(s trace.ReadOnlySpan) string { return fmt.Sprint(s.Attributes(), s.Events(), s.Status()) }

func has(t *testing.T, s trace.ReadOnlySpan, wants ...string) {
	t.Helper()
	got := map[string]bool{}
	for _, a := range s.Attributes() {
		got[string(a.Key)+"="+a.Value.String()] = true
	}
	for _, want := range wants {
		if !got[want] {
			t.Errorf("no %s in %v", want, s.Attributes())
		}
	}
}

func TestSpansTellDecisionsAndNoKey(t *testing.T) {
	store, ctx, r := traced(t, otellimit.Options{})
	login, all := penstock.PerMinute(1).WithName("login"), penstock.PerMinute(9).WithName("all")
	for range 2 {
		if _, err := store.Take(ctx, penstock.Request{Key: "secret-alice", Limit: login, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	both := []penstock.Request{{Key: "secret-alice", Limit: all, Cost: 2}, {Key: "secret-alice", Limit: login, Cost: 1}}
	if err := penstock.TakeAll(ctx, store, both, make([]penstock.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Take(ctx, penstock.Request{Key: "secret-alice", Limit: login, Cost: 1, Settle: true}); err == nil {
		t.Fatal("a settlement without an ID succeeded")
	}
	spans := r.Ended()
	if len(spans) != 4 {
		t.Fatalf("%d spans, want 4", len(spans))
	}
	has(t, spans[0], "penstock.rule=login", "penstock.result=allowed", "penstock.cost=1", "penstock.limit=1", "penstock.remaining=0", "penstock.source=store")
	has(t, spans[1], "penstock.result=denied")
	has(t, spans[2], "penstock.result=denied", "penstock.rule=login")
	if len(spans[2].Events()) != 2 || spans[3].Status().Code != codes.Error {
		t.Errorf("got %s and %s", text(spans[2]), text(spans[3]))
	}
	for _, s := range spans {
		if strings.Contains(text(s), "secret-alice") {
			t.Errorf("the key is in %s", text(s))
		}
	}
}

func TestSpansTellKeysIfAsked(t *testing.T) {
	store, ctx, r := traced(t, otellimit.Options{Keys: true, Name: "limit"})
	if _, err := store.Take(ctx, penstock.Request{Key: "alice", Limit: penstock.PerMinute(1), Cost: 1}); err != nil {
		t.Fatal(err)
	}
	if has(t, r.Ended()[0], "penstock.key=alice"); r.Ended()[0].Name() != "limit" {
		t.Errorf("name %q", r.Ended()[0].Name())
	}
}

func TestUnsampledCallHasNoSpan(t *testing.T) {
	store, _, r := traced(t, otellimit.Options{})
	request := penstock.Request{Key: "k", Limit: penstock.PerMinute(1), Cost: 1}
	if n := testing.AllocsPerRun(100, func() { _, _ = store.Take(context.Background(), request) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
	if n := len(r.Ended()); n > 0 {
		t.Errorf("%d spans, want none", n)
	}
}
