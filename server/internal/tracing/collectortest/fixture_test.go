// Package collectortest_test sends traces of the daemon to a receiver made of OpenTelemetry's own messages. It is a module of
// its own, so that users of penstock do not download them.
package collectortest_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// patience bounds each wait for what must happen; it only matters when a test fails.
const patience = 2 * time.Minute

// redis is shared by the tests, each with a prefix of its own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}

// A receiver collects spans, over gRPC and over HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	grpc, http string // its addresses

	mu       sync.Mutex
	requests []*collector.ExportTraceServiceRequest
	headers  []string
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener of a test
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	web := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	t.Cleanup(web.Close)
	r.grpc, r.http = "http://"+l.Addr().String(), web.URL
	return r
}

func (r *receiver) Export(ctx context.Context, m *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	fields, _ := metadata.FromIncomingContext(ctx)
	r.add(m, strings.Join(fields["x-team"], ","))
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) serveHTTP(w http.ResponseWriter, h *http.Request) {
	body := io.Reader(h.Body)
	if h.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(body)
	}
	b, err := io.ReadAll(body)
	m := &collector.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(b, m)
	}
	if err != nil || h.URL.Path != "/v1/traces" || h.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	r.add(m, h.Header.Get("X-Team"))
}

func (r *receiver) add(m *collector.ExportTraceServiceRequest, header string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.headers = append(r.requests, m), append(r.headers, header)
}

// spans returns all spans that have arrived.
func (r *receiver) spans() (all []*trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.requests {
		all = append(all, m.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()...)
	}
	return all
}

// text returns all that has arrived.
func (r *receiver) text() (all string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.requests {
		all += m.String()
	}
	return all
}

// await returns the spans of a name under a parent, once there are so many.
func (r *receiver) await(t *testing.T, name, parent string, n int) (found []*trace.Span) {
	t.Helper()
	await(t, fmt.Sprint(n, " ", name, " under ", parent), func() bool {
		found = nil
		for _, s := range r.spans() {
			if s.GetName() == name && hex.EncodeToString(s.GetParentSpanId()) == parent {
				found = append(found, s)
			}
		}
		return len(found) >= n
	})
	if len(found) > n {
		t.Fatalf("%d spans %s under %s, want %d", len(found), name, parent, n)
	}
	return found
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for ; !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// attributes returns those of a span as text.
func attributes(s *trace.Span) map[string]string {
	all := map[string]string{}
	for _, a := range s.GetAttributes() {
		text := a.GetValue().GetStringValue()
		if text == "" {
			text = fmt.Sprint(a.GetValue().GetIntValue())
		}
		all[a.GetKey()] = text
	}
	return all
}

const rulesText = `
domain: shop
descriptors:
  - {key: user, limit: "3/1h"}
  - {key: seen, shadow_mode: true, limit: "1/1h"}
  - {key: free, rate_limit: {unlimited: true}}
`

// A daemon is a running server with a client of its gRPC API.
type daemon struct {
	*server.Server
	client pb.RateLimitServiceClient
}

// startDaemon starts a daemon with flags and variables.
func startDaemon(t *testing.T, flags map[string]string, environ ...string) *daemon {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte(rulesText), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "admin": "127.0.0.1:0", "resp": "", "rules": rules, "redis-timeout": "1m",
		"store": "redis://" + redis.Addr, "redis-prefix": fmt.Sprintf("t%d", time.Now().UnixNano()),
	}
	for name, text := range flags {
		all[name] = text
	}
	c, err := server.LoadConfig(all, append([]string{"OTEL_BSP_SCHEDULE_DELAY=1"}, environ...))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{}
	if d.Server, err = server.New(t.Context(), c, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(d.Addr("grpc").String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.client = pb.NewRateLimitServiceClient(conn)
	return d
}

// The trace of the callers, and their spans.
const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

func traceparent(span string) string { return "00-" + traceID + "-" + span + "-01" }

// post sends a request to the HTTP API and returns the status.
func (d *daemon) post(t *testing.T, path, parent, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.Addr("http").String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Traceparent", parent)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// metrics returns what Prometheus scrapes.
func (d *daemon) metrics(t *testing.T) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Addr("admin").String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
