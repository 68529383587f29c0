package collectortest_test

import (
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	envoy "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/metadata"
)

// ask sends a request over gRPC with one descriptor for each key, all with the value secret-alice.
func (d *daemon) ask(t *testing.T, parent string, keys ...string) pb.RateLimitResponse_Code {
	t.Helper()
	r := &pb.RateLimitRequest{Domain: "shop"}
	for _, key := range keys {
		r.Descriptors = append(r.Descriptors, &envoy.RateLimitDescriptor{Entries: []*envoy.RateLimitDescriptor_Entry{{Key: key, Value: "secret-alice"}}})
	}
	response, err := d.client.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent), r)
	if err != nil {
		t.Fatal(err)
	}
	return response.GetOverallCode()
}

func expect(t *testing.T, s *trace.Span, want map[string]string) {
	t.Helper()
	got := attributes(s)
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s of %s is %q, want %q; all: %v", name, s.GetName(), got[name], text, got)
		}
	}
}

func TestTracesReachReceiverOverBothProtocols(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) {
			r := startReceiver(t)
			endpoint := map[string]string{"grpc": r.grpc}[protocol]
			if endpoint == "" {
				endpoint = r.http
			}
			d := startDaemon(t, nil, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_EXPORTER_OTLP_HEADERS=X-Team=a%20b",
				"OTEL_EXPORTER_OTLP_COMPRESSION=gzip", "OTEL_SERVICE_NAME=limits", "OTEL_RESOURCE_ATTRIBUTES=env=test,service.name=other")
			d.ask(t, traceparent("00f067aa0ba902b7"), "user")
			span := r.await(t, "penstock.decide", "00f067aa0ba902b7", 1)[0]
			expect(t, span, map[string]string{
				"penstock.rule": "shop/user", "penstock.result": "allowed", "penstock.source": "store", "penstock.cost": "1",
				"penstock.limit": "3", "penstock.remaining": "2", "penstock.api": "grpc", "penstock.key": "",
			})
			if hex.EncodeToString(span.GetTraceId()) != traceID || span.GetKind() != trace.Span_SPAN_KIND_SERVER || span.GetFlags() != 1 {
				t.Errorf("the span is %v", span)
			}
			store := r.await(t, "penstock.store", hex.EncodeToString(span.GetSpanId()), 1)[0]
			expect(t, store, map[string]string{"penstock.store": "redis", "penstock.operation": "take", "penstock.requests": "1"})
			if store.GetStartTimeUnixNano() < span.GetStartTimeUnixNano() || store.GetEndTimeUnixNano() > span.GetEndTimeUnixNano() || store.GetEndTimeUnixNano() <= store.GetStartTimeUnixNano() {
				t.Errorf("the store's time is not within the decision's: %v, %v", store, span)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			resource := r.requests[0].GetResourceSpans()[0].GetResource().String()
			for _, want := range []string{`"limits"`, `"env"`, `"service.version"`, `"service.instance.id"`} {
				if !strings.Contains(resource, want) {
					t.Errorf("no %s in %s", want, resource)
				}
			}
			if r.headers[0] != "a b" {
				t.Errorf("header %q", r.headers[0])
			}
		})
	}
}

func TestTracesTellEveryDecisionAndNoKey(t *testing.T) {
	r := startReceiver(t)
	d := startDaemon(t, nil, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+r.http+"/v1/traces")
	const limited = `{"key":"secret-alice","limit":"1/1h name=secret-alice"}`
	for i, call := range []struct {
		path, body string
		status     int
		want       map[string]string
	}{
		{"/v1/take", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"secret-alice"}]}],"cost":3}`, 200, map[string]string{"penstock.rule": "shop/user", "penstock.remaining": "0", "penstock.api": "http", "penstock.cost": "3"}},
		{"/v1/take", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"secret-alice"}]}]}`, 429, map[string]string{"penstock.rule": "shop/user", "penstock.result": "denied", "penstock.remaining": "0"}},
		{"/v1/auth?domain=shop&user=secret-alice", "", 429, map[string]string{"penstock.result": "denied", "penstock.source": "deny-cache"}},
		{"/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"secret-alice"}]}]}`, 429, map[string]string{"penstock.result": "denied"}},
		{"/v1/take", limited, 200, map[string]string{"penstock.result": "allowed", "penstock.limit": "1", "penstock.rule": ""}},
		{"/v1/take", `{"mode":"each","requests":[` + limited + `,{"domain":"shop","descriptors":[{"entries":[{"key":"free","value":"1"}]}]}]}`, 200, map[string]string{"penstock.result": "denied", "penstock.limit": "1"}},
		{"/v1/take", `{"domain":"shop","descriptors":[{"entries":[{"key":"free","value":"1"}]}]}`, 200, map[string]string{"penstock.rule": "shop/free", "penstock.result": "allowed", "penstock.remaining": ""}},
		{"/v1/take", `{"domain":"shop","descriptors":[{"entries":[{"key":"seen","value":"secret-alice"}]}],"cost":2}`, 200, map[string]string{"penstock.rule": "shop/seen", "penstock.result": "shadow"}},
		{"/v1/take", `{"domain":"elsewhere","descriptors":[{"entries":[{"key":"a","value":"secret-alice"}]}]}`, 200, map[string]string{"penstock.result": "allowed", "penstock.rule": ""}},
		{"/v1/take", `{"domain":"shop","descriptors":"secret-alice"}`, 400, map[string]string{"penstock.result": "error"}},
	} {
		parent := fmt.Sprintf("%016x", i+1)
		if got := d.post(t, call.path, traceparent(parent), call.body); got != call.status {
			t.Errorf("%s %s: status %d, want %d", call.path, call.body, got, call.status)
		}
		span := r.await(t, "penstock.decide", parent, 1)[0]
		expect(t, span, call.want)
		if failed := span.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR; failed != (call.status == 400) {
			t.Errorf("%s: status %v", call.body, span.GetStatus())
		}
	}
	d.ask(t, traceparent("00000000000000aa"), "free", "user", "seen")
	if span := r.await(t, "penstock.decide", "00000000000000aa", 1)[0]; len(span.GetEvents()) != 3 {
		t.Errorf("events of three descriptors: %v", span.GetEvents())
	} else {
		expect(t, span, map[string]string{"penstock.rule": "shop/user", "penstock.result": "denied"})
	}
	if all := r.text(); strings.Contains(all, "secret-alice") {
		t.Errorf("the key is in %s", all)
	}
	if text := d.metrics(t); !strings.Contains(text, `# {trace_id="`+traceID+`"}`) || !strings.Contains(text, "# EOF") {
		t.Error("no exemplar in the metrics")
	}
}

func TestTracesTellKeysIfAsked(t *testing.T) {
	r := startReceiver(t)
	d := startDaemon(t, map[string]string{"trace-keys": "true"}, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.http)
	d.ask(t, traceparent("00000000000000a1"), "user")
	expect(t, r.await(t, "penstock.decide", "00000000000000a1", 1)[0], map[string]string{"penstock.key": "user=secret-alice"})
	d.post(t, "/v1/take", traceparent("00000000000000a2"), `{"key":"secret-bob`+strings.Repeat("x", 1000)+`","limit":"1/1h"}`)
	key := attributes(r.await(t, "penstock.decide", "00000000000000a2", 1)[0])["penstock.key"]
	if !strings.Contains(key, "secret-bob") || len(key) > 300 {
		t.Errorf("key %q", key)
	}
}

func TestTracesOfOthersAreNotSampled(t *testing.T) {
	r := startReceiver(t)
	d := startDaemon(t, nil, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.http)
	for _, parent := range []string{"", "00-" + traceID + "-00f067aa0ba902b7-00", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", strings.Repeat("f", 5000)} {
		d.ask(t, parent, "free")
		d.post(t, "/v1/take", parent, `{"domain":"shop","descriptors":[{"entries":[{"key":"free","value":"1"}]}]}`)
	}
	d.ask(t, traceparent("00000000000000ff"), "free") // the queue is in order
	r.await(t, "penstock.decide", "00000000000000ff", 1)
	if all := r.spans(); len(all) != 1 {
		t.Errorf("%d spans, want only the last: %v", len(all), all)
	}
}

func TestTracesLinkCallsToTheirBatch(t *testing.T) {
	r := startReceiver(t)
	proxy := redistest.StartProxy(t, redis.Addr)
	proxy.Delay(20 * time.Millisecond)
	d := startDaemon(t, map[string]string{"store": "redis://" + proxy.Addr}, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.http)
	var calls sync.WaitGroup
	stop := make(chan struct{})
	for worker := range 8 {
		calls.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					d.post(t, "/v1/take", traceparent(fmt.Sprintf("%016x", worker+1)), fmt.Sprintf(`{"key":"%d %d","limit":"1000000/1h"}`, worker, i))
				}
			}
		})
	}
	byID := map[string]*trace.Span{}
	await(t, "a batch of several calls", func() bool {
		for _, s := range r.spans() {
			byID[string(s.GetSpanId())] = s
		}
		for _, s := range byID {
			if s.GetName() == "penstock.batch" && len(s.GetLinks()) > 1 && haveLinked(byID, s) {
				return true
			}
		}
		return false
	})
	close(stop)
	calls.Wait()
}

// haveLinked reports whether all calls of a batch have arrived, with links to it, and the first of them is its parent.
func haveLinked(byID map[string]*trace.Span, batch *trace.Span) bool {
	for _, l := range batch.GetLinks() {
		call := byID[string(l.GetSpanId())]
		if call == nil || call.GetName() != "penstock.store" || len(call.GetLinks()) != 1 || string(call.GetLinks()[0].GetSpanId()) != string(batch.GetSpanId()) {
			return false
		}
	}
	return string(batch.GetParentSpanId()) == string(batch.GetLinks()[0].GetSpanId())
}

func TestTracesWithoutReceiverAreDroppedAndCounted(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener of a test; it accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for name, endpoint := range map[string]string{"refused": "http://127.0.0.1:1", "silent": "http://" + silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			d := startDaemon(t, nil, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_BSP_MAX_QUEUE_SIZE=4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=2")
			for i := range 40 {
				if code := d.ask(t, traceparent(fmt.Sprintf("%016x", i+1)), "free"); code != pb.RateLimitResponse_OK {
					t.Fatalf("answer %v", code)
				}
			}
			dropped := 0
			for line := range strings.SplitSeq(d.metrics(t), "\n") {
				_, _ = fmt.Sscanf(line, "penstock_trace_spans_dropped_total %d", &dropped)
			}
			if dropped < 40-4-2 || dropped > 40 {
				t.Errorf("%d of 40 spans dropped, with room for 4, and 2 in flight", dropped)
			}
		})
	}
}
