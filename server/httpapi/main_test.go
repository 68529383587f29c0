package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/httpapi"
)

// redis is shared by all tests. Its clock stands at noon; each store has its own key
// prefix.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		shared.Clock.Set(noon)
	}))
}

// noon is the time of all frozen clocks.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

var prefixes atomic.Int64

// onEachStore runs a test with each kind of store, with a frozen clock.
func onEachStore(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, frozenMemory()) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(context.Background(), "unix://"+redis.Socket, &redisstore.Options{
			Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
			Timeout: time.Minute, // these tests are not about timeouts
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, store)
	})
}

// frozenMemory returns a memory store whose clock stands at noon.
func frozenMemory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon }, Tick: time.Millisecond})
}

// ruleFile has a rule of every kind that responses distinguish.
const ruleFile = `
domain: edge
lists:
  gate:
    - {tenant: "cookie:sid"}
    - {remote_address: address}
    - {page: path, kind: web}
descriptors:
  - key: remote_address
    limit: "3/1m"
  - key: tenant
    limit: "5/1m"
  - key: team
    limit: "100/1m"
    settle: true
  - key: day
    limit: "1000/1d"
    settle: true
  - key: watched
    shadow_mode: true
    limit: "1/1m"
  - key: plan
    value: gold
    quota_mode: true
    limit: "1/1m"
  - key: free
    rate_limit:
      unlimited: true
  - key: report
    limit: "5/30s concurrent"
    id: request_id
  - key: line
    limit: "1/100ms leaky-bucket burst=3"
  - key: page
    value: /login
    descriptors:
      - key: kind
        limit: "4/1m"
  - key: queue
    limit: "1/1h leaky-bucket burst=3"
`

// newEngine returns an engine with the rules of ruleFile.
func newEngine(t testing.TB, store penstock.Store, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(store, o)
	e.SetRules(set)
	return e
}

// newServer returns a server without a listener, with /json as the daemon has it.
func newServer(t testing.TB, e *engine.Engine, o *httpapi.Options) *httpapi.Server {
	t.Helper()
	return newServerForEnvoy(t, e, o, rls.ServiceOptions{})
}

// newServerForEnvoy is newServer with options of /json.
func newServerForEnvoy(t testing.TB, e *engine.Engine, o *httpapi.Options, envoy rls.ServiceOptions) *httpapi.Server {
	t.Helper()
	options := httpapi.Options{}
	if o != nil {
		options = *o
	}
	envoy.ObserveLatency, envoy.Requests, envoy.Audit = options.ObserveLatency, options.Requests, options.Audit
	options.EnvoyJSON = rls.NewService(e, &envoy)
	server, err := httpapi.New(e, &options)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// serve serves on a free port of loopback until the test ends, and returns the URL.
func serve(t testing.TB, server *httpapi.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections() // Shutdown would wait for them
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

type response struct {
	status  int
	header  http.Header
	body    string // without surrounding space
	rawBody string
}

// post sends a body to /v1/take.
func post(t testing.TB, base, body string) response {
	t.Helper()
	return do(t, http.MethodPost, base+"/v1/take", body, nil)
}

// do sends a request and checks the exchange against openapi.yaml. A body without a
// Content-Type is sent as JSON.
func do(t testing.TB, method, url, body string, header http.Header) response {
	t.Helper()
	got := send(t, method, url, body, header)
	path, query, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "?")
	path = path[strings.IndexByte(path, '/'):]
	checkAgainstSpec(t, newExchange(method, path, query, body, header, got))
	return got
}

// send sends a request.
func send(t testing.TB, method, url, body string, header http.Header) response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	if body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{got.StatusCode, got.Header, string(bytes.TrimSpace(text)), string(text)}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// want fails the test if the response differs.
func (r response) want(t testing.TB, status int, body string) {
	t.Helper()
	if r.status != status || r.body != body {
		t.Errorf("got  %d %s\nwant %d %s", r.status, r.body, status, body)
	}
}
