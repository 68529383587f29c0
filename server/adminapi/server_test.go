package adminapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

const ruleFile = `
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    value: /login
    shadow_mode: true
    limit: "10/30s sliding-window"
  - key: vip
    rate_limit: {unlimited: true}
`

// noon is the time of all frozen clocks.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// redis is shared by all tests. Its clock stands at noon; each store has its own
// key prefix.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		shared.Clock.Set(noon)
	}))
}

var prefixes atomic.Int64

// onEachStore runs a test with an engine on each kind of store, with a frozen clock.
func onEachStore(t *testing.T, test func(t *testing.T, e *engine.Engine)) {
	t.Run("memory", func(t *testing.T) { test(t, newEngine(t)) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(t.Context(), "redis://"+redis.Addr, &redisstore.Options{
			Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
			Timeout: time.Minute, // these tests are not about timeouts
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, newEngineWithStore(t, store, nil))
	})
}

func newEngine(t testing.TB) *engine.Engine { return newEngineWithOptions(t, nil) }

func newEngineWithOptions(t testing.TB, o *engine.Options) *engine.Engine {
	t.Helper()
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon }, Tick: time.Millisecond})
	return newEngineWithStore(t, memory, o)
}

func newEngineWithStore(t testing.TB, store penstock.Store, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(store, o)
	e.SetRules(set)
	return e
}

func newServer(t testing.TB, e *engine.Engine, o adminapi.Options) *adminapi.Server {
	t.Helper()
	s, err := adminapi.New(e, &o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// send sends a request from this machine. The headers are names and values in turn;
// "From" sets the address of the caller, and "Proto" the version of HTTP.
func send(s http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://localhost"+target, nil)
	r.RemoteAddr = "127.0.0.1:4711"
	for i := 0; i < len(header); i += 2 {
		switch header[i] {
		case "Host":
			r.Host = header[i+1]
		case "From":
			r.RemoteAddr = header[i+1]
		case "Proto":
			r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(header[i+1])
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	s.ServeHTTP(w, r)
	return w
}

func TestIndexListsEndpoints(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true, Version: "v1.2.3", Pprof: true})
	body := send(s, "GET", "/").Body.String()
	if !strings.HasPrefix(body, "penstock v1.2.3\n") {
		t.Errorf("got %q, want the version first", body)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/rules", "/rlconfig", "/v1/keys", "/debug/pprof/"} {
		if !strings.Contains(body, "\n"+path+" ") {
			t.Errorf("%s is not listed:\n%s", path, body)
		}
	}
	if w := send(s, "GET", "/elsewhere"); w.Code != 404 {
		t.Errorf("/elsewhere: got %d, want 404", w.Code)
	}
}

func TestHealthzAndReadyz(t *testing.T) {
	var reason, degraded error
	var reload adminapi.Reload
	s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{
		Ready: func() error { return reason }, Degraded: func() error { return degraded }, Reload: func() *adminapi.Reload { return &reload },
	})
	check := func(target string, status int, want string) {
		t.Helper()
		if w := send(s, "GET", target); w.Code != status || strings.Join(strings.Fields(w.Body.String()), "") != want {
			t.Errorf("%s: got %d %s, want %d %s", target, w.Code, w.Body, status, want)
		}
	}
	check("/healthz", 200, "ok")
	check("/readyz", 200, `{"ready":true}`)
	reload = adminapi.Reload{
		Time: time.Unix(60, 0).UTC(), Loaded: time.Unix(0, 0).UTC(), Errors: []adminapi.ReloadError{{File: "/etc/shop.yaml", Line: 7, Reason: "secret"}},
	}
	const old = `"rulesof1970-01-01T00:00:00Zinforce:theloadat1970-01-01T00:01:00Zfailed(shop.yaml:7),andsowouldarestart"`
	check("/readyz", 200, `{"ready":true,"reasons":[`+old+`],"old_rules":true}`)
	degraded = errors.New("slow")
	check("/readyz", 200, `{"ready":true,"degraded":true,"reasons":["slow",`+old+`],"old_rules":true}`)
	reason = errors.New("shuttingdown")
	check("/readyz", 503, `{"ready":false,"reasons":["shuttingdown"]}`)
	reason = errors.Join(errors.New("a"), errors.Join(errors.New("b"), errors.New("c")))
	check("/readyz", 503, `{"ready":false,"reasons":["a","b","c"]}`)
	check("/healthz", 200, "ok")
}

func TestMetricsServesOptionsHandler(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "penstock_keys 7\n") })
	if w := send(newServer(t, newEngine(t), adminapi.Options{Loopback: true, Metrics: metrics}), "GET", "/metrics"); w.Body.String() != "penstock_keys 7\n" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := send(newServer(t, newEngine(t), adminapi.Options{Loopback: true}), "GET", "/metrics"); w.Code != 404 {
		t.Errorf("without metrics: got %d, want 404", w.Code)
	}
}

func TestRulesListsLimitsAndCounters(t *testing.T) {
	e := newEngine(t)
	s := newServer(t, e, adminapi.Options{Loopback: true})
	for range 4 {
		var result engine.Result
		err := e.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "a"}}, Cost: 1}}, &result)
		if err != nil {
			t.Fatal(err)
		}
	}
	var got struct {
		Loaded bool
		Rules  []map[string]any
		Others map[string]any
	}
	if err := json.Unmarshal(send(s, "GET", "/rules").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Loaded || len(got.Rules) != 3 || got.Others["allowed"] != 0.0 {
		t.Fatalf("got %+v, want three rules", got)
	}
	first, second, third := got.Rules[0], got.Rules[1], got.Rules[2]
	counts := first["counts"].(map[string]any)
	if first["name"] != "edge/remote_address" || first["unit"] != "minute" || first["requests_per_unit"] != 3.0 ||
		first["file"] != "edge.yaml" || counts["allowed"] != 3.0 || counts["denied"] != 1.0 {
		t.Errorf("got %v", first)
	}
	if second["limit"] != `10/30s sliding-window name="edge/path=\\/login"` || second["shadow"] != true {
		t.Errorf("got %v", second)
	}
	if third["unlimited"] != true || third["limit"] != nil || third["counts"] != nil {
		t.Errorf("got %v", third)
	}
	want := "edge.remote_address: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n" +
		`edge.path_/login: limit="10/30s sliding-window", shadow_mode: true, quota_mode: false` + "\n" +
		"edge.vip: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n"
	if got := send(s, "GET", "/rlconfig").Body.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestServerWithoutRules(t *testing.T) {
	s := newServer(t, engine.New(penstock.NewMemory(nil), nil), adminapi.Options{Loopback: true})
	if got := send(s, "GET", "/rules").Body.String(); !strings.Contains(got, `"loaded": false`) || !strings.Contains(got, `"rules": []`) {
		t.Errorf("got %s", got)
	}
	for _, query := range []string{"rule=a&key=b", "domain=a&b=c"} {
		if w := send(s, "GET", "/v1/keys?"+query); w.Code != 404 {
			t.Errorf("%s: got %d %s, want 404", query, w.Code, w.Body)
		}
	}
	if w := send(s, "GET", "/rlconfig"); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("/rlconfig: got %d %s", w.Code, w.Body)
	}
}

// serve serves on a free port of loopback until the test ends, and returns the URL.
func serve(t *testing.T, s *adminapi.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

func TestServerServesEndpoints(t *testing.T) {
	base := serve(t, newServer(t, newEngine(t), adminapi.Options{Loopback: true, Pprof: true}))
	for _, path := range []string{"/", "/healthz", "/rules", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1"} {
		r, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		if r.StatusCode != 200 || n == 0 {
			t.Errorf("%s: got %s and %d bytes, want 200 and some", path, r.Status, n)
		}
	}
}
