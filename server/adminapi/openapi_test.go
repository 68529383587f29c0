package adminapi_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/openapitest"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// An apiTest checks every exchange against openapi.yaml.
type apiTest struct {
	*testing.T
	spec *openapitest.Spec
}

func (t *apiTest) send(s http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:4711"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	s.ServeHTTP(w, r)
	e := &openapitest.Exchange{
		Method: method, Path: r.URL.Path, Query: r.URL.RawQuery, Body: body, RequestHeader: r.Header,
		Status: w.Code, Header: w.Result().Header, Response: w.Body.String(),
	}
	for _, violation := range t.spec.Check(e) {
		t.Errorf("%s %s %.200s: %d %.1000s\nviolates openapi.yaml: %s", method, target, body, w.Code, w.Body, violation)
	}
	return w
}

// Every path, status and field of openapi.yaml occurs in some exchange, and every exchange
// is valid by it.
func TestOpenAPIDescribesAllExchanges(t *testing.T) {
	spec, err := openapitest.Read("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	a := &apiTest{t, spec}
	a.sendQueries()
	a.sendActions()
	a.sendOverrides()
	a.sendCandidates()
	a.sendRejected()
	for _, place := range spec.Uncovered() {
		if !slices.ContainsFunc(uncovered, func(part string) bool { return strings.Contains(place, part) }) {
			t.Errorf("openapi.yaml describes %s, which no exchange has covered", place)
		}
	}
}

// uncovered are parts of places that other packages produce and test.
var uncovered = []string{
	"/decision/properties/source/enum", "/actor/properties", "/AuditState/properties", "/Audit/properties/entries/items/properties",
	"/not_recorded", "/Override/properties/strikes", "/Simulation/properties/lanes/items/properties/error",
	"/LogSimulation/properties/lanes/items/properties/error", "simulate~1log/post/responses/503",
}

// busyServer returns a server whose observer has something of everything to tell.
func (t *apiTest) busyServer() *adminapi.Server {
	keys := topkeys.New(nil)
	e := newEngineWithOptions(t, &engine.Options{TopKeys: keys})
	o := observe.New(e, &observe.Options{
		Name: "a", Version: "v1", TopKeys: keys, LatencyBounds: []float64{1},
		Store: func() observe.Store {
			return observe.Store{
				Kind: "redis", Degraded: true, Reasons: []string{"down"}, Memory: &observe.Memory{}, Home: &observe.Home{},
				Shards:      []observe.Shard{{State: "up"}, {Shard: 1, State: "down", Error: "timeout"}},
				StateLosses: []observe.StateLoss{{Reason: "keys_gone"}, {Reason: "new_run"}},
			}
		},
		Listeners: func() []observe.ListenerState {
			return []observe.ListenerState{{Name: "http", Latency: []uint64{1, 0}}}
		},
	})
	for _, entry := range []string{"remote_address=1", "path=/login", "remote_address=\xff", "remote_address=" + strings.Repeat("x", 300)} {
		t.decide(e, entry)
	}
	limit := requestlimits.Of(penstock.PerMinute(1))
	if _, err := e.Take(t.Context(), penstock.Request{Key: "1", Limit: limit, Cost: 1}, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	o.Tick()
	reload := func() *adminapi.Reload {
		now := time.Now()
		return &adminapi.Reload{Time: now, Loaded: now, Errors: []adminapi.ReloadError{{File: "a.yaml", Line: 1, Reason: "no limit"}, {Reason: "b.yaml: not there"}}}
	}
	return newServer(t, e, adminapi.Options{Loopback: true, Observer: o, Audit: newAudit(t.T, io.Discard), Reload: reload})
}

// decide sends enough requests with an entry for some of them to be denied.
func (t *apiTest) decide(e *engine.Engine, entry string) {
	key, value, _ := strings.Cut(entry, "=")
	for range 12 {
		var result engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: key, Value: value}}, Cost: 1}}
		if err := e.Decide(t.Context(), "edge", ds, &result); err != nil {
			t.Fatal(err)
		}
	}
}

func (t *apiTest) sendQueries() {
	s := t.busyServer()
	idle := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for _, query := range []string{
		"/v1/live?window=2m&sort=denied&filter=e&rules=5", "/v1/live?window=1h&scope=all", "/v1/live?window=1d", "/v1/live?window=9m",
		"/v1/top?by=asked&n=9", "/v1/top?by=denied&scope=all", "/v1/top?rule=", "/v1/top?n=x",
		"/v1/explain?domain=edge&path=/login", "/v1/explain?domain=edge&key=a%3Db", "/v1/explain",
		"/v1/inspect?key=1", "/v1/inspect?rule=edge/path%3D%5C/login&key=/login", "/v1/inspect?limit=1/1m&key=1", "/v1/inspect?domain=edge&remote_address=1",
		"/v1/inspect", "/v1/inspect?rule=none&key=1", "/v1/audit",
	} {
		t.send(s, "GET", query, "")
		t.send(idle, "GET", query, "")
	}
	down, memory := false, penstock.NewMemory(nil)
	permits := permitServer(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if down {
			return penstock.Decision{}, penstock.ErrUnavailable
		}
		return memory.Take(ctx, r)
	}))
	for _, query := range []string{"/v1/live", "/v1/permits?rule=held/user&keys=3", "/v1/permits?keys=x", "/v1/keys?domain=held&user=ada&request_id=x"} {
		t.send(permits, "GET", query, "")
	}
	down = true
	t.send(permits, "GET", "/v1/permits", "")
	for _, order := range observe.SortNames {
		t.send(idle, "HEAD", "/v1/live?scope=daemon&sort="+order, "")
	}
	further := engine.New(penstock.NewMemory(nil), nil)
	set, err := rules.Parse(rules.File{Name: "sms.yaml", Text: []byte("domain: sms\ndescriptors: [{key: phone, limit: 9/1h, also: 20/1d}]")})
	if err != nil {
		t.Fatal(err)
	}
	further.SetRules(set)
	t.send(newServer(t, further, adminapi.Options{Loopback: true}), "GET", "/v1/keys?domain=sms&phone=1", "")
	noRules := newServer(t, engine.New(penstock.NewMemory(nil), nil), adminapi.Options{Loopback: true})
	t.send(noRules, "GET", "/v1/explain?domain=edge&a=b", "")
	t.send(noRules, "GET", "/v1/permits", "")
	for _, body := range []string{`{"limit":"10/1s","traffic":"edge"}`, `{"limit":"2/1s","arrivals":[{"at":0.5,"cost":3}]}`, `{"limit":"5/day zone=UTC fixed-window"}`, `{`} {
		t.send(s, "POST", "/v1/simulate", body)
	}
	for _, query := range []string{"limit=2/1m", "limit=2/1m&by=method", "limit=2/1m&rule=edge/remote_address", "limit=2/fortnight", "limit=1e18/1m", "limit=2/1m&rule=none"} {
		t.send(s, "POST", "/v1/simulate/log?"+query, strings.Repeat(logLine, 5), "Content-Type", "application/octet-stream")
	}
}

func (t *apiTest) sendActions() {
	s := t.busyServer()
	readOnly := newServer(t, newEngine(t), adminapi.Options{Loopback: true, ReadOnly: true, Audit: newAudit(t.T, io.Discard)})
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	noStore := newServer(t, newEngineWithStore(t, down, nil), adminapi.Options{Loopback: true, Audit: newAudit(t.T, io.Discard)})
	reason := "&reason=" + url.QueryEscape("ticket 7")
	for _, server := range []*adminapi.Server{s, readOnly, noStore} {
		for _, query := range []string{"?domain=edge&remote_address=1", "?rule=edge/remote_address&key=1", "?limit=1/1m&key=1", "?rule=none&key=1", ""} {
			t.send(server, "GET", "/v1/keys"+query, "")
			t.send(server, "POST", "/v1/keys"+query+reason+"&units=2", "")
			t.send(server, "DELETE", "/v1/keys"+query+reason, "")
			t.send(server, "DELETE", "/v1/keys"+query, "")
			t.send(server, "POST", "/v1/keys"+query, "")
		}
		t.send(server, "GET", "/v1/inspect?key=1", "")
		t.send(server, "GET", "/v1/audit", "")
	}
}

func (t *apiTest) sendOverrides() {
	e := newEngine(t)
	s := newServer(t, e, adminapi.Options{Loopback: true, Audit: newAudit(t.T, io.Discard)})
	readOnly := newServer(t, e, adminapi.Options{Loopback: true, ReadOnly: true, Audit: newAudit(t.T, io.Discard)})
	noAudit := newServer(t, e, adminapi.Options{Loopback: true, Audit: newAudit(t.T, brokenWriter{})})
	for _, server := range []*adminapi.Server{s, readOnly, noAudit} {
		t.send(server, "PUT", "/v1/overrides", `{"rule":"edge/remote_address","key":"1","limit":"9/1m","for":"1h","reason":"trial"}`)
		t.decide(e, "remote_address=1")
		t.send(server, "GET", "/v1/overrides?rule=edge/remote_address&key=1", "")
		t.send(server, "GET", "/v1/keys?domain=edge&remote_address=1", "")
		t.send(server, "DELETE", "/v1/overrides?rule=edge/remote_address&key=1&reason=over", "")
		t.send(server, "DELETE", "/v1/overrides?rule=edge/remote_address&key=1&reason=over", "")
	}
	if _, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerHour(9)), Cost: 5, ID: "b81c"}, nil); err != nil {
		t.Fatal(err)
	}
	t.send(s, "POST", "/v1/keys?limit=9/1h&key=k&settle=b81c&units=0&reason=r", "")
	t.send(s, "POST", "/v1/keys?limit=9/1h&key=k&settle=none&units=0&reason=r", "")
	table := "rule,key,limit,strikes\nedge/remote_address,203.0.113.0/24,ban,\n"
	t.send(s, "PUT", "/v1/overrides?reason=abuse", table, "Content-Type", "text/csv")
	list := t.send(s, "GET", "/v1/overrides?format=json", "").Body.String()
	list = strings.Replace(list, `"ban"`, `"ban", "until": "2199-01-02T03:04:05Z", "strikes": 1, "last_used": ""`, 1)
	t.send(s, "PUT", "/v1/overrides", list)
	t.send(s, "GET", "/v1/overrides?format=csv&filter=abuse&n=1", "")
	t.send(s, "GET", "/v1/overrides?format=xml", "")
	t.send(s, "DELETE", "/v1/overrides", "")
	t.send(s, "PUT", "/v1/overrides", `{"rule":"edge/none","key":"1","limit":"ban","reason":"abuse"}`)
	t.send(s, "PUT", "/v1/overrides", `{`)
}

func (t *apiTest) sendCandidates() {
	e := newEngineWithOptions(t, &engine.Options{TopKeys: topkeys.New(nil)})
	s := newServer(t, e, adminapi.Options{Loopback: true, Audit: newAudit(t.T, io.Discard)})
	readOnly := newServer(t, e, adminapi.Options{Loopback: true, ReadOnly: true, Audit: newAudit(t.T, io.Discard)})
	noAudit := newServer(t, e, adminapi.Options{Loopback: true, Audit: newAudit(t.T, brokenWriter{})})
	for _, server := range []*adminapi.Server{s, readOnly, noAudit} {
		t.send(server, "PUT", "/v1/candidates?rule=edge/remote_address&limit=2/1m&for=1h&reason=trial", "")
		t.decide(e, "remote_address=1")
		t.send(server, "PUT", "/v1/candidates?rule=edge/remote_address&limit=100/1m&reason=trial&keys=3", "")
		t.decide(e, "remote_address=2")
		t.send(server, "GET", "/v1/candidates?rule=edge/remote_address&keys=5", "")
		t.send(server, "DELETE", "/v1/candidates?rule=edge/remote_address&reason=over", "")
		t.send(server, "DELETE", "/v1/candidates?rule=edge/remote_address&reason=over", "")
	}
	for _, query := range []string{"", "?rule=none&limit=1/1m&reason=x", "?rule=edge/remote_address&limit=x&reason=x", "?rule=edge/remote_address&limit=1/1m&for=x&reason=x", "?keys=x"} {
		t.send(s, "PUT", "/v1/candidates"+query, "")
		t.send(s, "DELETE", "/v1/candidates"+query, "")
	}
	t.send(s, "GET", "/v1/candidates?n=1", "")
	for _, candidate := range []string{"candidate: 2/1m", ""} {
		set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte("domain: edge\ndescriptors:\n- {key: remote_address, limit: 1/1m, " + candidate + "}")})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		e.Trials.TryRules(nil)
		if candidate == "" {
			tried, _ := rules.Parse(rules.File{Name: "next.yaml", Text: []byte("domain: edge\ndescriptors: [{key: remote_address, limit: 3/1m}, {key: more, limit: 1/1m}]")})
			_ = tried.AsCandidates()
			e.Trials.TryRules(tried)
		}
		t.send(s, "GET", "/v1/candidates", "")
	}
}

// sendRejected sends requests with wrong tokens and methods to all paths.
func (t *apiTest) sendRejected() {
	s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{Audit: newAudit(t.T, io.Discard)})
	open := newServer(t, newEngine(t), adminapi.Options{Loopback: true, Audit: newAudit(t.T, io.Discard)})
	for _, path := range s.Paths() {
		if !strings.HasPrefix(path, "/v1/") {
			continue
		}
		t.send(open, "PATCH", path, "")
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			t.send(s, method, path, "")
		}
	}
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		if t.send(s, "GET", "/v1/live", "", "Authorization", "Bearer wrong").Code == http.StatusTooManyRequests {
			break
		}
	}
	for path := range map[string]bool{"/v1/top": true, "/v1/explain": true, "/v1/inspect": true, "/v1/permits": true, "/v1/audit": true, "/v1/keys": true, "/v1/overrides": true, "/v1/candidates": true} {
		t.send(s, "GET", path, "", "Authorization", "Bearer wrong")
	}
	for _, method := range []string{"POST", "DELETE"} {
		t.send(s, method, "/v1/keys", "", "Authorization", "Bearer wrong")
	}
	for _, method := range []string{"PUT", "DELETE"} {
		t.send(s, method, "/v1/overrides", "", "Authorization", "Bearer wrong")
		t.send(s, method, "/v1/candidates", "", "Authorization", "Bearer wrong")
	}
	for _, path := range []string{"/v1/simulate", "/v1/simulate/log"} {
		t.send(s, "POST", path, "", "Authorization", "Bearer wrong")
	}
}

// openapi.yaml has the paths and methods of the API, but for those that a browser or
// Prometheus uses.
func TestOpenAPIMatchesCode(t *testing.T) {
	spec, err := openapitest.Read("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	described := spec.Names("/paths")
	for _, path := range s.Paths() {
		i := slices.Index(described, path)
		if i < 0 && strings.HasPrefix(path, "/v1/") {
			t.Errorf("openapi.yaml does not describe %s", path)
		}
		if i >= 0 {
			described = slices.Delete(described, i, i+1)
		}
	}
	if len(described) > 0 {
		t.Errorf("openapi.yaml describes %q, which does not exist", described)
	}
	if w := send(s, "GET", "/openapi.yaml"); w.Code != 200 || !strings.HasPrefix(w.Body.String(), "openapi: 3.1") {
		t.Errorf("/openapi.yaml: got %d %.80s", w.Code, w.Body)
	}
}
