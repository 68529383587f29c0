package server_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/observe"
)

// sampled is the traceparent of a caller that samples.
const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A daemon that everything watches (spans, statsd, metrics, history and top keys, which operators read all the time) is
// attacked by traced requests, and then its store is slower than the last bound of any histogram. No number that it
// measures may end it, be infinite or get lost.
func TestAttackOnServerThatIsWatched(t *testing.T) {
	t.Parallel() // it waits most of the time
	spans, stats := startSpanReceiver(t), startStatsd(t, "tcp")
	proxy := redistest.StartProxy(t, redistest.StartForTest(t, redistest.Options{}).Addr)
	d := startWatched(t, "redis://"+proxy.Addr, spans.url, stats.addr.Port)

	stop := readAll(d)
	defer stop()                                                         // also if the test fails before
	attackUnderLoad(t, d, min(*attackRequests, 12_000)/len(attackers)/4) // each is told to many
	const slow = 300 * time.Millisecond                                  // the last bound is 262 ms
	proxy.Delay(slow)
	callSlowly(t, d)
	proxy.Delay(0)
	stop()
	awaitSlowCalls(d, slowCalls)
	d.await("a span of a slow call arrives", func() bool { return spans.longest() >= slow })
	d.await("statsd gets the times", func() bool { return strings.Contains(stats.text("response_time"), "|ms ") })
	if wrong := stats.text("no such name"); wrong != "" || spans.wrong.Load() > 0 {
		t.Errorf("statsd got %q, and the collector %d messages that it cannot read", wrong, spans.wrong.Load())
	}
}

// startWatched starts a daemon in place of envoyproxy/ratelimit, which alone has statsd, with all of its own APIs. What
// is sent to it is traced.
func startWatched(t *testing.T, store, spans string, statsd int) *daemon {
	t.Helper()
	flags := map[string]string{
		"store": store, "redis-prefix": rand.Text(), "redis-timeout": "10s", "rules": writeRules(t, attackedRules),
		"token": "secret", "compat": "", "deny-cache": "false", "trace-keys": "true", "data": t.TempDir(),
		"audit-log": filepath.Join(t.TempDir(), "audit"),
	}
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		flags[name] = "127.0.0.1:0"
	}
	c, err := server.LoadRatelimitConfig(flags, []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", statsd), "STATS_FLUSH_INTERVAL=10ms",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans, "OTEL_BSP_SCHEDULE_DELAY=1",
	})
	if err != nil {
		t.Fatal(err)
	}
	d := startConfig(t, c)
	target := &url.URL{Scheme: "http", Host: d.addr("http")}
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("Traceparent", sampled)
	}})
	t.Cleanup(front.Close)
	d.front, d.trace = front.Listener.Addr().String(), sampled
	return d
}

// slowCalls are how many traced calls of each API the store answers slowly.
const slowCalls = 5

// callSlowly makes calls through each API at once.
func callSlowly(t *testing.T, d *daemon) {
	t.Helper()
	conn := dialGRPC(t, d, nil)
	var wg sync.WaitGroup
	for i := range slowCalls {
		wg.Go(func() { takeByRule(t, d, "newcomer", fmt.Sprint("slow", i)) })
		wg.Go(func() {
			if _, err := shouldRateLimit(conn, fmt.Sprint("slow", i)); err != nil {
				t.Error(err)
			}
		})
	}
	throttle(t, d, "slow 4 5 3600")
	wg.Wait()
}

// awaitSlowCalls waits until the metrics have so many traced calls above the last bound, and history all of their calls.
func awaitSlowCalls(d *daemon, n float64) {
	d.t.Helper()
	const name = "penstock_decision_duration_seconds_"
	for _, listener := range []string{"grpc", "http"} {
		label := fmt.Sprintf("{listener=%q", listener)
		awaitSlowly(d, "history and metrics have all calls of "+listener, func() bool {
			all := metric(d.t, d, name+"count"+label+"}")
			slow := all - metric(d.t, d, name+"bucket"+label+`,le="0.262144"}`)
			live, err := readLive(d, "/v1/live?window=1h")
			return err == nil && slow >= n && slices.ContainsFunc(live.Listeners, func(l observe.Listener) bool {
				return l.Name == listener && float64(l.Calls) == all
			})
		})
	}
}

// readLive returns what the page shows, or an error if the daemon does not answer.
func readLive(d *daemon, target string) (live observe.Live, err error) {
	body, err := readAdmin(d, target)
	if err == nil {
		err = json.Unmarshal(body, &live)
	}
	return live, err
}

func readAdmin(d *daemon, target string) ([]byte, error) {
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "http://"+d.addr("admin")+target, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Accept", "application/openmetrics-text") // it has exemplars
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", answer.Status, body)
	}
	return body, err
}

// readAll reads all that operators do, again and again, until it is told to stop.
func readAll(d *daemon) (stop func()) {
	var reading sync.WaitGroup
	var done atomic.Bool
	for _, target := range []string{
		"/metrics", "/v1/live?window=2m&scope=all", "/v1/live?window=1h", "/v1/live?window=1d", "/rules", "/v1/audit",
		"/v1/top?by=asked&scope=all", "/v1/top?by=denied",
	} {
		reading.Go(func() {
			for more := true; more; more = !done.Load() { // once at least
				if _, err := readAdmin(d, target); err != nil {
					d.t.Errorf("%s: %v", target, err)
					return
				}
			}
		})
	}
	return func() {
		done.Store(true)
		reading.Wait()
	}
}

// A spanReceiver is a collector of OpenTelemetry over HTTP that keeps how long the longest span took.
type spanReceiver struct {
	url   string
	wrong atomic.Int64 // messages that it cannot read

	mu      sync.Mutex
	slowest time.Duration
}

func startSpanReceiver(t *testing.T) *spanReceiver {
	t.Helper()
	s := &spanReceiver{}
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		spans, read := spansOf(body)
		if err != nil || r.URL.Path != "/v1/traces" || !read {
			s.wrong.Add(1)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.slowest = max(s.slowest, slices.Max(append(spans, 0)))
	}))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

func (s *spanReceiver) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slowest
}

// spansOf returns how long each span of an ExportTraceServiceRequest took.
func spansOf(request []byte) (took []time.Duration, valid bool) {
	parts := [][]byte{request}
	for _, field := range []protowire.Number{1, 2, 2} { // resource_spans, scope_spans, spans
		var inner [][]byte
		for _, part := range parts {
			messages, _ := fieldsOf(part, field)
			inner = append(inner, messages...)
		}
		parts = inner
	}
	for _, span := range parts {
		_, begin := fieldsOf(span, 7)                 // start_time_unix_nano
		_, end := fieldsOf(span, 8)                   // end_time_unix_nano
		took = append(took, time.Duration(end-begin)) //nolint:gosec // times of this century
	}
	return took, len(took) > 0
}

// fieldsOf returns the messages that a field of a message has, or its last number.
func fieldsOf(message []byte, field protowire.Number) (inner [][]byte, number uint64) {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, 0
		}
		size := protowire.ConsumeFieldValue(num, kind, message[n:])
		if size < 0 {
			return nil, 0
		}
		switch value := message[n : n+size]; {
		case num == field && kind == protowire.BytesType:
			part, _ := protowire.ConsumeBytes(value)
			inner = append(inner, part)
		case num == field && kind == protowire.Fixed64Type:
			number, _ = protowire.ConsumeFixed64(value)
		}
		message = message[n+size:]
	}
	return inner, number
}
