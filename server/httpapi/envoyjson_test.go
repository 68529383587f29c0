package httpapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/httpapi"
)

const envoyRules = `
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: hour
      requests_per_unit: 2
`

func envoyEngine(t *testing.T, store penstock.Store) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "mongo.yaml", Text: []byte(envoyRules)})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(store, nil)
	e.SetRules(set)
	return e
}

// compact returns JSON without white space, which protobuf inserts at random.
func compact(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEnvoyJSONResponses(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		server := newServerForEnvoy(t, envoyEngine(t, store), nil, rls.ServiceOptions{Headers: true})
		base := serve(t, server)
		body := `{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}]}]}`
		for i, want := range []string{
			`{"overallCode":"OK","responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"1"},` +
				`{"key":"RateLimit-Reset","value":"3600"}],"statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},` +
				`"durationUntilReset":"3600s","limitRemaining":1}]}`,
			`{"overallCode":"OK","responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"0"},` +
				`{"key":"RateLimit-Reset","value":"3600"}],"statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},` +
				`"durationUntilReset":"3600s"}]}`,
			`{"overallCode":"OVER_LIMIT","responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"0"},` +
				`{"key":"RateLimit-Reset","value":"3600"}],"statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":2,"unit":"HOUR"},` +
				`"durationUntilReset":"3600s"}]}`,
		} {
			status := []int{200, 200, 429}[i]
			got := do(t, "POST", base+"/json", body, nil)
			if got.status != status || compact(t, got.body) != want || got.header.Get("Content-Type") != "application/json" {
				t.Errorf("request %d\ngot  %d %s %s\nwant %d application/json %s", i, got.status, got.header.Get("Content-Type"), compact(t, got.body), status, want)
			}
		}
		snake := `{"domain":"mongo_cps","hits_addend":1,"descriptors":[{"entries":[{"key":"database","value":"other"}]}]}`
		if got := do(t, "GET", base+"/json", snake, http.Header{"Content-Type": {"text/plain"}}); got.status != 200 {
			t.Errorf("GET with snake_case as text/plain: got %+v, want 200", got)
		}
	})
}

func TestEnvoyJSONErrorsArePlainStatuses(t *testing.T) {
	base := serve(t, newServer(t, envoyEngine(t, frozenMemory()), nil))
	for _, body := range []string{
		``, `{`, `[]`, `{"domain":"","descriptors":[{}]}`, `{"domain":"mongo_cps"}`, `{"domain":"mongo_cps","descriptors":[]}`,
		`{"domain":"mongo_cps","descriptors":[{}],"unknown":1}`,
		`{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"requestsPerUnit":1}}]}`,
	} {
		got := do(t, "POST", base+"/json", body, nil)
		if got.status != 400 || got.body != "Bad Request" || got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: got %+v, want 400 Bad Request", body, got)
		}
	}
	if got := do(t, "POST", base+"/json", strings.Repeat(" ", 64<<10+1), nil); got.status != 413 {
		t.Errorf("body above 64 KiB: got %+v, want 413", got)
	}
	for name, e := range map[string]*engine.Engine{
		"no rules": engine.New(frozenMemory(), nil), "store unavailable": envoyEngine(t, unavailableStore),
	} {
		body := `{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}]}]}`
		if got := do(t, "POST", serve(t, newServer(t, e, nil))+"/json", body, nil); got.status != 400 {
			t.Errorf("%s: got %+v, want 400", name, got)
		}
	}
}

// Programs may send JSON with any content type, as to envoyproxy/ratelimit. Pages in
// browsers may not: they need the content type JSON, for which a browser asks for
// permission (CORS) that the server does not give.
func TestEnvoyJSONRejectsBrowserPages(t *testing.T) {
	base := serve(t, newServer(t, envoyEngine(t, frozenMemory()), nil))
	body := `{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}]}]}`
	for _, c := range []struct {
		name, value, contentType string
		want                     int
	}{
		{"Origin", "https://evil.example", "text/plain", 415},
		{"Origin", "null", "application/x-www-form-urlencoded", 415},
		{"Sec-Fetch-Site", "cross-site", "multipart/form-data; boundary=x", 415},
		{"Sec-Fetch-Site", "same-site", "text/plain", 415},
		{"Origin", base, "text/plain", 200},
		{"User-Agent", "curl/8", "application/x-www-form-urlencoded", 200},
		{"Origin", "https://evil.example", "application/json", 429}, // a browser sends this only after a preflight
	} {
		got := do(t, "POST", base+"/json", body, http.Header{c.name: {c.value}, "Content-Type": {c.contentType}})
		if got.status != c.want {
			t.Errorf("%s: %s as %s: got %+v, want %d", c.name, c.value, c.contentType, got, c.want)
		}
	}
	preflight := do(t, "OPTIONS", base+"/json", "", http.Header{"Origin": {"https://evil.example"}, "Access-Control-Request-Headers": {"content-type"}})
	if preflight.header.Get("Access-Control-Allow-Origin") != "" || preflight.status == 200 {
		t.Errorf("preflight: got %+v, want no permission", preflight)
	}
}

func TestEnvoyJSONRefundNeedsLocalCaller(t *testing.T) {
	server := newServer(t, envoyEngine(t, frozenMemory()), nil)
	for addr, want := range map[string]int{"127.0.0.1:4711": 200, "10.0.0.1:4711": 403} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://localhost/json", strings.NewReader(
			`{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}],"hitsAddend":"1","isNegativeHits":true}]}`))
		r.RemoteAddr = addr
		if server.ServeHTTP(w, r); w.Code != want {
			t.Errorf("from %s: got %d %s, want %d", addr, w.Code, w.Body, want)
		}
	}
}

func TestHealthcheckReportsReady(t *testing.T) {
	var reason error
	server := newServer(t, engine.New(frozenMemory(), nil), &httpapi.Options{Ready: func() error { return reason }})
	base := serve(t, server)
	do(t, "GET", base+"/healthcheck", "", nil).want(t, 200, "OK")
	reason = errors.New("store unavailable")
	do(t, "GET", base+"/healthcheck", "", nil).want(t, 500, "")
}
