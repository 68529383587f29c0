package adminapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
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

// noon is when it is in these tests.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// redis is a server whose clock stands still. Tests share it, under prefixes of their
// own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		shared.Clock.Set(noon)
	}))
}

var prefixes atomic.Int64

// onBothStores runs a test with a judge of each kind of store, at noon.
func onBothStores(t *testing.T, test func(t *testing.T, j *engine.Engine)) {
	t.Run("memory", func(t *testing.T) { test(t, newJudge(t)) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(t.Context(), "redis://"+redis.Addr, &redisstore.Options{
			Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
			Timeout: 10 * time.Second, // a busy machine is no failure here
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, newJudgeOn(t, store, nil))
	})
}

func newJudge(t testing.TB) *engine.Engine { return newJudgeWith(t, nil) }

func newJudgeWith(t testing.TB, o *engine.Options) *engine.Engine {
	t.Helper()
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon }, Tick: time.Millisecond})
	return newJudgeOn(t, memory, o)
}

func newJudgeOn(t testing.TB, store penstock.Store, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		t.Fatal(err)
	}
	j := engine.New(store, o)
	j.SetRules(set)
	return j
}

func newDoor(t testing.TB, j *engine.Engine, o adminapi.Options) *adminapi.Server {
	t.Helper()
	d, err := adminapi.New(j, &o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask sends a request to a door from this machine.
func ask(d http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://localhost"+target, nil)
	r.RemoteAddr = "127.0.0.1:4711"
	for i := 0; i < len(header); i += 2 {
		switch header[i] {
		case "Host":
			r.Host = header[i+1]
		case "From":
			r.RemoteAddr = header[i+1]
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	d.ServeHTTP(w, r)
	return w
}

func TestTheListOfEndpoints(t *testing.T) {
	d := newDoor(t, newJudge(t), adminapi.Options{Loopback: true, Version: "v1.2.3", Profiles: true})
	body := ask(d, "GET", "/").Body.String()
	if !strings.HasPrefix(body, "penstock v1.2.3\n") {
		t.Errorf("got %q, want the version first", body)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/rules", "/rlconfig", "/v1/keys", "/debug/pprof/"} {
		if !strings.Contains(body, "\n"+path+" ") {
			t.Errorf("%s is not listed:\n%s", path, body)
		}
	}
	if w := ask(d, "GET", "/elsewhere"); w.Code != 404 {
		t.Errorf("/elsewhere: got %d, want 404", w.Code)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	var reason error
	d := newDoor(t, newJudgeWith(t, &engine.Options{Token: "secret"}), adminapi.Options{Ready: func() error { return reason }})
	check := func(target string, status int, want string) {
		t.Helper()
		if w := ask(d, "GET", target); w.Code != status || strings.Join(strings.Fields(w.Body.String()), "") != want {
			t.Errorf("%s: got %d %s, want %d %s", target, w.Code, w.Body, status, want)
		}
	}
	check("/healthz", 200, "ok")
	check("/readyz", 200, `{"ready":true}`)
	reason = errors.New("shuttingdown")
	check("/readyz", 503, `{"ready":false,"reasons":["shuttingdown"]}`)
	reason = errors.Join(errors.New("a"), errors.Join(errors.New("b"), errors.New("c")))
	check("/readyz", 503, `{"ready":false,"reasons":["a","b","c"]}`)
	check("/healthz", 200, "ok")
}

func TestMetricsAreWhatTheServerSays(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "penstock_keys 7\n") })
	if w := ask(newDoor(t, newJudge(t), adminapi.Options{Loopback: true, Metrics: metrics}), "GET", "/metrics"); w.Body.String() != "penstock_keys 7\n" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := ask(newDoor(t, newJudge(t), adminapi.Options{Loopback: true}), "GET", "/metrics"); w.Code != 404 {
		t.Errorf("without any: got %d, want 404", w.Code)
	}
}

func TestTheLoadedRules(t *testing.T) {
	j := newJudge(t)
	d := newDoor(t, j, adminapi.Options{Loopback: true})
	for range 4 {
		var v engine.Result
		err := j.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "a"}}, Cost: 1}}, &v)
		if err != nil {
			t.Fatal(err)
		}
	}
	var got struct {
		Loaded bool
		Rules  []map[string]any
		Others map[string]any
	}
	if err := json.Unmarshal(ask(d, "GET", "/rules").Body.Bytes(), &got); err != nil {
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
	want := "edge/remote_address: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n" +
		`edge/path=\/login: limit="10/30s sliding-window", shadow_mode: true, quota_mode: false` + "\n" +
		"edge/vip: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n"
	if got := ask(d, "GET", "/rlconfig").Body.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestNoRulesAreLoaded(t *testing.T) {
	d := newDoor(t, engine.New(penstock.NewMemory(nil), nil), adminapi.Options{Loopback: true})
	if got := ask(d, "GET", "/rules").Body.String(); !strings.Contains(got, `"loaded": false`) || !strings.Contains(got, `"rules": []`) {
		t.Errorf("got %s", got)
	}
	for _, query := range []string{"rule=a&key=b", "domain=a&b=c"} {
		if w := ask(d, "GET", "/v1/keys?"+query); w.Code != 404 {
			t.Errorf("%s: got %d %s, want 404", query, w.Code, w.Body)
		}
	}
	if w := ask(d, "GET", "/rlconfig"); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("/rlconfig: got %d %s", w.Code, w.Body)
	}
}

// One key is looked at, given back to and reset, however it is named.
func TestOneKey(t *testing.T) {
	for _, c := range []struct{ query, rule string }{
		{"rule=edge/remote_address&key=remote_address%3D10.0.0.1", "edge/remote_address"},
		{"domain=edge&remote_address=10.0.0.1", "edge/remote_address"},
		{"limit=" + url.QueryEscape(`3/1m fixed-window align=clock name="edge/remote_address"`) + "&key=remote_address%3D10.0.0.1", ""},
	} {
		onBothStores(t, func(t *testing.T, j *engine.Engine) { checkOneKey(t, j, c.query, c.rule) })
	}
}

// checkOneKey has three units taken, and undoes that.
func checkOneKey(t *testing.T, j *engine.Engine, query, rule string) {
	var log strings.Builder
	d := newDoor(t, j, adminapi.Options{Loopback: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	var v engine.Result
	err := j.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "10.0.0.1"}}, Cost: 3}}, &v)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		method, more       string
		granted, remaining float64
	}{
		{"GET", "", 0, 0},
		{"POST", "", -1, 1},
		{"POST", "&units=5", -2, 3},
		{"GET", "", 0, 3},
		{"DELETE", "", 0, 3},
	} {
		w := ask(d, step.method, "/v1/keys?"+query+step.more)
		var got struct {
			Rule, Limit, Key string
			Decision         map[string]any
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%s %s: got %d %s", step.method, query, w.Code, w.Body)
		}
		if got.Rule != rule || got.Key != "remote_address=10.0.0.1" || !strings.HasPrefix(got.Limit, "3/1m fixed-window") ||
			got.Decision["granted"] != step.granted || got.Decision["remaining"] != step.remaining || got.Decision["allowed"] != true {
			t.Errorf("%s %s%s: got %s, want %v granted and %v remaining", step.method, query, step.more, w.Body, step.granted, step.remaining)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 3 || !strings.Contains(log.String(), "method=DELETE") {
		t.Errorf("%s: the log has %d lines, want one for everything that was undone:\n%s", query, n, log.String())
	}
	for _, counts := range j.RuleCounters() {
		if counts.Rule == "edge/remote_address" && counts.Allowed.Load() != 1 || counts.Rule == "" && counts.Allowed.Load() != 0 {
			t.Errorf("%s: operators are counted as %d requests of %q", query, counts.Allowed.Load(), counts.Rule)
		}
	}
}

func TestResettingAKey(t *testing.T) {
	onBothStores(t, func(t *testing.T, j *engine.Engine) {
		d := newDoor(t, j, adminapi.Options{Loopback: true})
		limit := penstock.PerMinute(5)
		if _, err := j.Take(t.Context(), penstock.Request{Key: "a\x00\xff", Limit: limit, Cost: 5}); err != nil {
			t.Fatal(err)
		}
		if w := ask(d, "DELETE", "/v1/keys?limit=5/1m&key=a%00%ff"); !strings.Contains(w.Body.String(), `"granted":-5`) &&
			!strings.Contains(w.Body.String(), `"granted": -5`) {
			t.Errorf("got %s, want that five units were given back", w.Body)
		}
		if d, err := j.Take(t.Context(), penstock.Request{Key: "a\x00\xff", Limit: limit}); err != nil || d.Remaining != 5 {
			t.Errorf("got %v, %v, want 5 remaining", d, err)
		}
	})
}

func TestMalformedKeyRequests(t *testing.T) {
	d := newDoor(t, newJudge(t), adminapi.Options{Loopback: true})
	for _, c := range []struct {
		method, query     string
		status            int
		parameter, detail string
	}{
		{"GET", "", 400, "rule", "want one of rule, limit and domain"},
		{"GET", "rule=a&limit=1/s&key=k", 400, "rule", "want one of"},
		{"GET", "limit=1/s", 400, "key", "want a key"},
		{"GET", "limit=x&key=k", 400, "limit", "want a count"},
		{"GET", "limit=1/s&key=k&key=l", 400, "key", "twice"},
		{"GET", "limit=1/s&key=k&x=y", 400, "x", "not known without a domain"},
		{"GET", "limit=1/s&key=k&units=1", 400, "units", "with POST"},
		{"DELETE", "limit=1/s&key=k&units=1", 400, "units", "with POST"},
		{"POST", "limit=1/s&key=k&units=0", 400, "units", "1 or more"},
		{"POST", "limit=1/s&key=k&units=-1", 400, "units", "1 or more"},
		{"GET", "domain=edge&key=k", 400, "key", "want entries"},
		{"GET", "rule=edge/nothing&key=k", 404, "", "no such rule"},
		{"GET", "rule=edge/vip&key=k", 400, "rule", "unlimited"},
		{"GET", "domain=edge&nothing=k", 404, "", "no such rule"},
		{"GET", "domain=nowhere&a=k", 404, "", "no such rule"},
		{"GET", "domain=&a=k", 400, "", "domain must not be empty"},
		{"GET", "rule=%zz", 400, "", "invalid URL escape"},
		{"PUT", "limit=1/s&key=k", 405, "", "GET, POST, DELETE"},
	} {
		w := ask(d, c.method, "/v1/keys?"+c.query)
		var p struct{ Detail, Parameter string }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != c.status || p.Parameter != c.parameter || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s %s: got %d %s, want %d about %q: %s", c.method, c.query, w.Code, w.Body, c.status, c.parameter, c.detail)
		}
	}
}

func TestAStoreThatCannotDecide(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	d := newDoor(t, engine.New(broken, nil), adminapi.Options{Loopback: true})
	if w := ask(d, "GET", "/v1/keys?limit=1/s&key=k"); w.Code != 503 {
		t.Errorf("got %d %s, want 503", w.Code, w.Body)
	}
}

// serve opens a door on a port until the test ends.
func serve(t *testing.T, d *adminapi.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(l) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := d.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

func TestServing(t *testing.T) {
	at := serve(t, newDoor(t, newJudge(t), adminapi.Options{Loopback: true, Profiles: true}))
	for _, path := range []string{"/", "/healthz", "/rules", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1"} {
		r, err := http.Get(at + path)
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
