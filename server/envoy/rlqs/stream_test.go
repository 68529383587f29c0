package rlqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rulestats"
)

// A bench is a service on a clock that the test sets, without goroutines.
type bench struct {
	t       *testing.T
	now     time.Time
	engine  *engine.Engine
	service *Service
}

func newBench(t *testing.T, yaml string, o Options, eo *engine.Options) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)}
	o.Now = func() time.Time { return b.now }
	b.engine = newEngine(t, penstock.NewMemory(&penstock.MemoryOptions{Now: o.Now}), yaml, eo)
	var err error
	if b.service, err = New(b.engine, &o); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) open() *stream {
	b.t.Helper()
	st, err := b.service.open("test")
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// report reports a usage of a bucket, and returns what the service sends.
func (b *bench) report(st *stream, path string, allowed, denied uint64) []*pb.RateLimitQuotaResponse_BucketAction {
	b.t.Helper()
	if err := b.service.report(st, newReport("shop", path, allowed, denied)); err != nil {
		b.t.Fatal(err)
	}
	return b.step(st)
}

// step runs a step, and returns what the service sends to a stream.
func (b *bench) step(st *stream) []*pb.RateLimitQuotaResponse_BucketAction {
	b.service.step(b.t.Context(), true)
	batch := b.service.nextBatch(st)
	b.service.finishBatch(st, batch)
	return newResponse(batch).GetBucketAction()
}

// counters returns the counters of the only rule.
func (b *bench) counters() *rulestats.Stats { return b.engine.RuleStats()[1].Stats }

func strategyOf(actions []*pb.RateLimitQuotaResponse_BucketAction) *typepb.RateLimitStrategy {
	if len(actions) != 1 {
		return nil
	}
	return actions[0].GetQuotaAssignmentAction().GetRateLimitStrategy()
}

func wantBlanket(t *testing.T, actions []*pb.RateLimitQuotaResponse_BucketAction, want typepb.RateLimitStrategy_BlanketRule) {
	t.Helper()
	rule, ok := strategyOf(actions).GetStrategy().(*typepb.RateLimitStrategy_BlanketRule_)
	if !ok || rule.BlanketRule != want {
		t.Errorf("got %v, want %v", actions, want)
		return
	}
	if ttl := actions[0].GetQuotaAssignmentAction().GetAssignmentTimeToLive(); ttl.GetSeconds() < 1 || ttl.GetNanos() != 0 {
		t.Errorf("the time to live is %v, want whole seconds", ttl.AsDuration())
	}
}

const pathRule = "domain: shop\ndescriptors:\n  - {key: path, limit: 100/1s}\n"

func TestWithoutLimitAllIsAllowed(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"no rule":    "domain: shop\ndescriptors:\n  - {key: user, limit: 1/1s}\n",
		"no domain":  "domain: other\ndescriptors:\n  - {key: path, limit: 1/1s}\n",
		"unlimited":  "domain: shop\ndescriptors:\n  - {key: path, rate_limit: {unlimited: true}}\n",
		"shadow":     "domain: shop\ndescriptors:\n  - {key: path, limit: 1/1s, shadow_mode: true}\n",
		"other path": "domain: shop\ndescriptors:\n  - {key: path, value: /login, limit: 1/1s}\n",
	} {
		b := newBench(t, yaml, Options{}, nil)
		t.Run(name, func(t *testing.T) { wantBlanket(t, b.report(b.open(), "/", 1, 0), typepb.RateLimitStrategy_ALLOW_ALL) })
	}
}

func TestUnmatchedIsDeniedIfConfigured(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ndescriptors:\n  - {key: user, limit: 1/1s}\n", Options{}, &engine.Options{DenyUnmatched: true})
	st := b.open()
	wantBlanket(t, b.report(st, "/", 0, 1), typepb.RateLimitStrategy_DENY_ALL)
	b.now = b.now.Add(2 * time.Second)
	b.report(st, "/", 3, 4)
	if got := b.engine.UnmatchedCounters()[1].Count; got != 7 {
		t.Errorf("%d requests are counted as unmatched, want 7", got)
	}
}

func TestBanTakesEffectWithNextReport(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	if strategyOf(b.report(st, "/", 1, 0)).GetTokenBucket().GetMaxTokens() == 0 {
		t.Fatal("no units were assigned")
	}
	ban := overrides.Override{Rule: "shop/path", Key: "path=/", Limit: "ban"}
	if err := b.engine.Overrides().Put(t.Context(), []overrides.Override{ban}); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(2 * time.Second)
	wantBlanket(t, b.report(st, "/", 1, 0), typepb.RateLimitStrategy_DENY_ALL)
	b.now = b.now.Add(time.Second)
	b.report(st, "/", 0, 5)
	if got := b.counters().Banned.Load(); got != 5 {
		t.Errorf("%d requests are counted as banned, want 5", got)
	}
}

func TestReloadTakesEffectWithNextReport(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.engine.SetRules(newEngine(t, b.engine.Store(), "domain: shop\ndescriptors:\n  - {key: path, rate_limit: {unlimited: true}}\n", nil).Rules())
	b.now = b.now.Add(2 * time.Second)
	wantBlanket(t, b.report(st, "/", 1, 0), typepb.RateLimitStrategy_ALLOW_ALL)
}

func TestShadowRuleCountsReports(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ndescriptors:\n  - {key: path, limit: 10/1h, shadow_mode: true}\n", Options{}, nil)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(2 * time.Second)
	b.report(st, "/", 25, 0)
	if c := b.counters(); c.Allowed() != 10 || c.Shadowed.Load() != 15 {
		t.Errorf("allowed %d, shadowed %d, want 10 and 15", c.Allowed(), c.Shadowed.Load())
	}
}

func TestShadowRuleDoesNotCountReportsThatTheStoreDidNotDecide(t *testing.T) {
	t.Parallel()
	const yaml = "domain: shop\ndescriptors:\n  - {key: path, limit: 10/1h, shadow_mode: true}\n"
	b := newBench(t, yaml, Options{}, nil)
	store := &failingStore{Store: b.engine.Store()}
	b.engine = newEngine(t, store, yaml, nil)
	b.service.engine = b.engine
	st := b.open()
	b.report(st, "/", 1, 0)
	store.failing = true
	b.now = b.now.Add(2 * time.Second)
	b.report(st, "/", 5, 0)
	if c := b.counters(); c.Allowed() != 0 || c.Shadowed.Load() != 0 || c.Errors.Load() != 1 {
		t.Errorf("allowed %d, shadowed %d, errors %d, want 0, 0 and 1", c.Allowed(), c.Shadowed.Load(), c.Errors.Load())
	}
}

func TestNothingLeftDeniesAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ndescriptors:\n  - {key: path, limit: 0/1s}\n", Options{}, nil)
	wantBlanket(t, b.report(b.open(), "/", 1, 0), typepb.RateLimitStrategy_DENY_ALL)
}

func TestConcurrentLimitAssignsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ndescriptors:\n  - {key: path, limit: 5/1m concurrent, id: request}\n", Options{}, nil)
	if got := b.report(b.open(), "/", 1, 0); len(got) != 0 {
		t.Errorf("got %v, want no assignment", got)
	}
}

func TestLeaseIsSentAsPaidUnitsThatDoNotRefill(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	first := strategyOf(b.report(st, "/", 1, 0)).GetTokenBucket()
	if first.GetMaxTokens() != 5 || first.GetTokensPerFill().GetValue() != 1 || first.GetFillInterval().GetSeconds() < 1e7 {
		t.Errorf("the first lease is %v, want 5 tokens that do not refill", first)
	}
	b.now = b.now.Add(2 * time.Second)
	second := strategyOf(b.report(st, "/", 5, 15)).GetTokenBucket() // ten a second
	if sameTokenBucket(first, second) || second.GetMaxTokens() < 20 {
		t.Errorf("the second lease is %v, after %v", second, first)
	}
	b.now = b.now.Add(2 * time.Second)
	third := strategyOf(b.report(st, "/", 10, 0)).GetTokenBucket()
	if !sameTokenBucket(second, third) {
		t.Errorf("a lease with enough left was replaced by %v, after %v", third, second)
	}
	if c := b.counters(); c.Allowed() != 15 || c.Denied.Load() != 15 {
		t.Errorf("the rule counts %d allowed and %d denied, want 15 and 15: the first report is before any assignment", c.Allowed(), c.Denied.Load())
	}
}

func TestExpiredLeaseIsNotExtended(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(time.Second)
	old := strategyOf(b.report(st, "/", 1, 0)).GetTokenBucket() // six seconds from now on
	b.now = b.now.Add(5 * time.Second)
	if late := strategyOf(b.report(st, "/", 0, 0)).GetTokenBucket(); late == nil || sameTokenBucket(late, old) {
		t.Errorf("a lease near its end was followed by %v, want a new one after %v", late, old)
	}
}

func TestExtensionThatWaitedTooLongIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(time.Second)
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(2 * time.Second)
	if err := b.service.report(st, newReport("shop", "/", 1, 0)); err != nil {
		t.Fatal(err)
	}
	b.service.step(t.Context(), true)
	if len(st.outbox) != 1 || st.outbox[0].until.IsZero() {
		t.Fatalf("the lease is not extended: %+v", st.outbox)
	}
	b.now = b.now.Add(2 * time.Second) // the proxy does not read
	if late := b.service.nextBatch(st); len(late) != 0 {
		t.Errorf("it is extended too late: %+v", late)
	}
	if next := strategyOf(b.report(st, "/", 1, 0)).GetTokenBucket(); next.GetMaxTokens() == 0 {
		t.Error("the proxy gets no other lease")
	}
}

func TestInvalidReportsEndTheStream(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	for _, c := range []struct {
		second bool
		report *pb.RateLimitQuotaUsageReports
		want   *streamError
	}{
		{false, newReport("", "/", 1, 0), errNoDomain},
		{false, newReport(strings.Repeat("x", maxBucketBytes+1), "/", 1, 0), errLongDomain},
		{true, newReport("other", "/", 1, 0), errOtherDomain},
		{true, newReport("", "/", 1, 0), nil},
		{false, &pb.RateLimitQuotaUsageReports{}, errNoDomain},
		{false, &pb.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{}}}, errNoBucketID},
		{false, &pb.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: make([]*pb.RateLimitQuotaUsageReports_BucketQuotaUsage, maxReports)}, errTooMany},
		{false, newReport("shop", "/", math.MaxUint64, math.MaxUint64), nil},
	} {
		st := b.open()
		if c.second {
			b.report(st, "/first", 1, 0)
		}
		if err := b.service.report(st, c.report); !isError(err, c.want) {
			t.Errorf("%.200v: %v, want %v", c.report, err, c.want)
		}
		b.step(st)
		b.service.close(st)
	}
	if stats := b.service.Stats(); stats.Streams != 0 || stats.Buckets != 0 || b.service.members != 0 {
		t.Errorf("after all streams are closed: %+v, %d members", stats, b.service.members)
	}
}

// isError reports whether an error is the one that is wanted, or none if that is nil.
func isError(err error, want *streamError) bool {
	return want == nil && err == nil || want != nil && errors.Is(err, want)
}

// A panickingStream is one whose handler has a defect.
type panickingStream struct {
	pb.RateLimitQuotaService_StreamRateLimitQuotasServer
}

func (panickingStream) Recv() (*pb.RateLimitQuotaUsageReports, error) { panic("a defect") }

func TestPanicEndsOnlyItsStream(t *testing.T) {
	t.Parallel()
	requests, err := requestlog.New(requestlog.Options{API: "rlqs", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, pathRule, Options{Requests: requests}, nil)
	if err := b.service.receive(panickingStream{}, b.open()); !isError(err, errPanicked) {
		t.Errorf("got %v, want %v", err, errPanicked)
	}
}

// A panic while quotas are assigned, such as one of the store, does not end the process.
func TestPanicEndsOnlyItsStep(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	requests, err := requestlog.New(requestlog.Options{API: "rlqs", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, pathRule, Options{Requests: requests}, nil)
	b.service.options.Now = func() time.Time { panic("a defect") }
	b.service.stepSafely(t.Context(), true)
	if !strings.Contains(log.String(), "a defect") {
		t.Errorf("the log has %q, want the panic", log.String())
	}
}

func TestTooManyReportsInASecondEndTheStream(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	usage := newReport("", "/", 1, 0).GetBucketQuotaUsages()[0]
	many := &pb.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: slices.Repeat([]*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{usage}, 999)}
	for i := range maxReports / 1000 {
		if err := b.service.report(st, many); err != nil {
			t.Fatalf("report %d: %v", i, err)
		}
	}
	if err := b.service.report(st, newReport("shop", "/", 1, 0)); !errors.Is(err, errTooMany) {
		t.Errorf("got %v, want %v", err, errTooMany)
	}
	b.now = b.now.Add(time.Second)
	if err := b.service.report(st, newReport("shop", "/", 1, 0)); err != nil {
		t.Errorf("in the next second: %v", err)
	}
}

func TestBucketsBeyondBoundsAreAbandoned(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{MaxBuckets: 2, MaxMembers: 3}, nil)
	st, other := b.open(), b.open()
	wantAbandoned := func(st *stream, path string, want bool) {
		t.Helper()
		got := b.report(st, path, 1, 0)
		if abandoned := len(got) == 1 && got[0].GetAbandonAction() != nil; abandoned != want {
			t.Errorf("%.20s: abandoned is %v, want %v: %.200v", path, abandoned, want, got)
		}
	}
	wantAbandoned(st, "/a", false)
	wantAbandoned(st, "/b", false)
	wantAbandoned(st, "/c", true) // of this stream
	wantAbandoned(other, strings.Repeat("x", maxBucketBytes), true)
	wantAbandoned(other, "/a", false)
	wantAbandoned(other, "/b", true) // of all
	b.service.close(st)
	wantAbandoned(other, "/b", false)
}

func TestAbandonedIDsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	for i := range 100 {
		if err := b.service.report(st, newReport("shop", fmt.Sprintf("%d%s", i, strings.Repeat("x", 100<<10)), 1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(st.outbox); n == 0 || n > 10 {
		t.Errorf("%d IDs of 100 KiB wait for a proxy that does not read, want at most 10", n)
	}
	batch := b.service.nextBatch(st)
	if b.service.finishBatch(st, batch); st.waiting != 0 {
		t.Errorf("%d bytes wait after all were sent", st.waiting)
	}
	if got := b.report(st, strings.Repeat("y", 100<<10), 1, 0); len(got) != 1 || got[0].GetAbandonAction() == nil {
		t.Errorf("after it has read, the proxy is told %.200v", got)
	}
}

func TestReportOfAllBucketsFitsIntoAMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{MaxBuckets: 1 << 20, MaxMembers: 1 << 20}, nil)
	st := b.open()
	for i := range 2000 {
		if err := b.service.report(st, newReport("shop", fmt.Sprintf("/%060d", i), 1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(st.members); n < 500 || n*150 > 256<<10 {
		t.Errorf("a stream has %d buckets of 150 bytes each", n)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{MaxStreams: 1}, nil)
	st := b.open()
	if _, err := b.service.open("second"); !errors.Is(err, errTooManyOpen) {
		t.Errorf("got %v, want %v", err, errTooManyOpen)
	}
	b.service.close(st)
	b.open()
	b.service.Stop()
	if _, err := b.service.open("late"); !errors.Is(err, errShuttingDown) {
		t.Errorf("got %v, want %v", err, errShuttingDown)
	}
}

// Any client that reaches the listener can open streams and report buckets: others must still be served.
func TestOneAddressGetsHalfOfStreamsAndBuckets(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{MaxStreams: 4, MaxMembers: 4}, nil)
	open := func(from string, want error) *stream {
		t.Helper()
		st, err := b.service.open(from)
		if !errors.Is(err, want) {
			t.Fatalf("%s: got %v, want %v", from, err, want)
		}
		return st
	}
	first := open("[2001:db8::1]:1", nil)
	second := open("[2001:db8::ffff:2]:2", nil)
	open("[2001:db8::3]:3", errTooManyOpen) // the same network
	other := open("192.0.2.1:1", nil)
	b.service.close(second)
	second = open("[2001:db8::4]:1", nil)
	wantAbandoned := func(st *stream, path string, want bool) {
		t.Helper()
		got := b.report(st, path, 1, 0)
		if abandoned := len(got) == 1 && got[0].GetAbandonAction() != nil; abandoned != want {
			t.Errorf("%s from %s: abandoned is %v, want %v", path, st.from, abandoned, want)
		}
	}
	wantAbandoned(first, "/a", false)
	wantAbandoned(second, "/b", false)
	wantAbandoned(second, "/c", true)
	wantAbandoned(other, "/d", false)
	b.service.close(first)
	wantAbandoned(second, "/c", false)
	b.service.close(second)
	b.service.close(other)
	for range 4 { // on this machine, a proxy may forward for others
		open("127.0.0.1:1", nil)
	}
	if n := len(b.service.clients); n != 0 {
		t.Errorf("%d clients are counted after all have gone", n)
	}
}

// A stream keeps its connection from being idle, so it must not be open for nothing.
func TestStreamWithoutReportsIsEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	busy, silent := b.open(), b.open()
	b.now = b.now.Add(idleFor)
	b.report(busy, "/", 0, 0)
	b.now = b.now.Add(time.Second)
	b.step(busy)
	if len(busy.failed) != 0 || len(silent.failed) != 1 {
		t.Fatalf("after %v: %d errors for a stream with a report, %d without, want 0 and 1", idleFor, len(busy.failed), len(silent.failed))
	}
	if err := <-silent.failed; !errors.Is(err, errSilent) {
		t.Errorf("the stream without reports ends with %v", err)
	}
}

// A message may have been received, and wait for the lock, when the stream ends.
func TestReportOfAClosedStreamIsNotBooked(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	b.report(st, "/a", 1, 0)
	assigned := b.service.Stats().Assigned
	b.service.close(st)
	if err := b.service.report(st, newReport("shop", "/b", 1, 0)); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
	for range 3 {
		b.service.step(t.Context(), true)
		b.now = b.now.Add(2 * idleFor)
	}
	if stats := b.service.Stats(); stats.Buckets != 0 || b.service.members != 0 || stats.Assigned != assigned {
		t.Errorf("after the stream is closed: %+v, %d members; %d units were assigned before", stats, b.service.members, assigned)
	}
}

func TestProxyThatDoesNotReadGetsNoMoreUnitsAndIsEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	if err := b.service.report(st, newReport("shop", "/", 1, 0)); err != nil {
		t.Fatal(err)
	}
	b.service.step(t.Context(), true)
	if len(b.service.nextBatch(st)) != 1 {
		t.Fatal("nothing is to be sent")
	}
	assigned := b.service.Stats().Assigned
	for range int(sendTimeout/time.Second) + 1 {
		if len(st.failed) > 0 {
			t.Fatal("the stream ends too early")
		}
		b.now = b.now.Add(time.Second)
		if err := b.service.report(st, newReport("shop", "/", 0, 1000)); err != nil {
			t.Fatal(err)
		}
		b.service.step(t.Context(), true)
	}
	if got := b.service.Stats().Assigned; got != assigned {
		t.Errorf("%d units were taken for a proxy that does not read", got-assigned)
	}
	select {
	case err := <-st.failed:
		if !errors.Is(err, errNotReading) {
			t.Errorf("the stream ends with %v", err)
		}
	default:
		t.Error("the stream goes on")
	}
}

func TestStreamWithoutReportsGetsNoMoreUnits(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(time.Second)
	b.report(st, "/", 5, 1000)
	for range 60 {
		b.now = b.now.Add(time.Second)
		b.step(st)
	}
	assigned := b.service.Stats().Assigned
	for range 10 {
		b.now = b.now.Add(time.Second)
		b.step(st)
	}
	if got := b.service.Stats().Assigned; got != assigned {
		t.Errorf("%d units were assigned to a proxy that has stopped to report", got-assigned)
	}
	b.now = b.now.Add(idleFor)
	b.step(st)
	if stats := b.service.Stats(); stats.Buckets != 0 {
		t.Errorf("its bucket is tracked after %v", idleFor)
	}
}

func TestLeaseEndsWithItsWindow(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ndescriptors:\n  - {key: path, limit: 100/1m fixed-window align=clock}\n", Options{}, nil)
	b.now = b.now.Add(50 * time.Second)
	st := b.open()
	old := b.report(st, "/", 1, 0)
	if ttl := old[0].GetQuotaAssignmentAction().GetAssignmentTimeToLive().AsDuration(); ttl != 10*time.Second {
		t.Errorf("ten seconds before the end of the window, the time to live is %v", ttl)
	}
	b.now = b.now.Add(10 * time.Second)
	if next := strategyOf(b.step(st)).GetTokenBucket(); next == nil || sameTokenBucket(strategyOf(old).GetTokenBucket(), next) {
		t.Errorf("in the next window the proxy gets %v, after %v", next, old)
	}
}

// A failingStore fails while it is told to.
type failingStore struct {
	penstock.Store
	failing bool
}

func (s *failingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if s.failing {
		return penstock.Decision{}, penstock.ErrUnavailable
	}
	return s.Store.Take(ctx, r)
}

func TestStoreFailureSendsNothingNew(t *testing.T) {
	t.Parallel()
	b := newBench(t, pathRule, Options{}, nil)
	store := &failingStore{Store: b.engine.Store()}
	b.service.engine = newEngine(t, store, pathRule, nil)
	st := b.open()
	first := strategyOf(b.report(st, "/", 1, 0)).GetTokenBucket()
	store.failing = true
	if got := b.report(b.open(), "/", 1, 0); len(got) != 0 {
		t.Errorf("a new proxy gets %v while the store is unavailable", got)
	}
	b.now = b.now.Add(2 * time.Second)
	if got := strategyOf(b.report(st, "/", 2, 0)).GetTokenBucket(); !sameTokenBucket(first, got) {
		t.Errorf("while the store is unavailable, the lease %v is followed by %v", first, got)
	}
	store.failing = false
	b.now = b.now.Add(2 * time.Second)
	if got := strategyOf(b.report(st, "/", 3, 20)).GetTokenBucket(); got.GetMaxTokens() == 0 || sameTokenBucket(first, got) {
		t.Errorf("when the store is back, the lease %v is followed by %v", first, got)
	}
}

func TestCompatDomainIsNotAssignedMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, "domain: shop\ncompat: envoy\ndescriptors:\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 40}\n", Options{}, nil)
	take := func(cost int64) {
		var r engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "path", Value: "/"}}, Cost: cost}}
		if err := b.engine.Decide(t.Context(), "shop", ds, &r); err != nil {
			t.Fatal(err)
		}
	}
	take(30)
	st := b.open()
	b.report(st, "/", 1, 0)
	b.now = b.now.Add(time.Second)
	b.report(st, "/", 1, 1000)
	if got := b.service.Stats().Assigned; got != 10 {
		t.Errorf("%d units were assigned, and 10 were left", got)
	}
	take(1000) // counts beyond the limit
	wantBlanket(t, b.report(b.open(), "/", 1, 0), typepb.RateLimitStrategy_DENY_ALL)
}

func TestReportsOfAnyKindKeepBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		b := newBench(t, "domain: shop\ndescriptors:\n  - {key: path, limit: 100/24h fixed-window}\n", Options{MaxBuckets: 3, MaxMembers: 5}, nil)
		streams := []*stream{b.open(), b.open(), b.open()}
		for range rapid.IntRange(1, 20).Draw(r, "messages") {
			st := rapid.SampledFrom(streams).Draw(r, "stream")
			_ = b.service.report(st, drawReports(r))
			if rapid.Bool().Draw(r, "step") {
				b.now = b.now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(r, "later")))
				b.step(st)
			}
			checkBounds(r, b.service)
		}
		for _, st := range streams {
			b.service.close(st)
		}
		if stats := b.service.Stats(); stats.Streams != 0 || stats.Buckets != 0 || b.service.members != 0 {
			r.Fatalf("after all streams are closed: %+v, %d members", stats, b.service.members)
		}
	})
}

// drawReports draws a message that a hostile caller could send.
func drawReports(r *rapid.T) *pb.RateLimitQuotaUsageReports {
	m := &pb.RateLimitQuotaUsageReports{Domain: rapid.SampledFrom([]string{"", "shop", "shop", "shop", "none"}).Draw(r, "domain")}
	for range rapid.IntRange(0, 4).Draw(r, "usages") {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &pb.BucketId{Bucket: rapid.SampledFrom([]map[string]string{
				nil, {"path": "a"}, {"path": "b"}, {"path": "c"}, {"path": "d"}, {"": ""}, {"path": "a", "user": "1"}, {"path": strings.Repeat("x", maxBucketBytes)},
			}).Draw(r, "id")},
			TimeElapsed:        &durationpb.Duration{Seconds: rapid.Int64().Draw(r, "seconds"), Nanos: rapid.Int32().Draw(r, "nanos")},
			NumRequestsAllowed: rapid.Uint64().Draw(r, "allowed"),
			NumRequestsDenied:  rapid.Uint64().Draw(r, "denied"),
		})
	}
	return m
}

func checkBounds(r *rapid.T, s *Service) {
	members := 0
	for st := range s.streams {
		if members += len(st.members); len(st.members) > s.options.MaxBuckets {
			r.Fatalf("a stream has %d buckets", len(st.members))
		}
	}
	switch {
	case members != s.members || members > s.options.MaxMembers:
		r.Fatalf("%d members are counted as %d", members, s.members)
	case s.Stats().Assigned > 4*100: // of each path once
		r.Fatalf("%d units were assigned", s.Stats().Assigned)
	}
}
