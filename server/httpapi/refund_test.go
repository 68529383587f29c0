package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

// An refundCaller is a caller of the HTTP API that may refund where there is no token, or
// one that may not.
type refundCaller struct {
	from   string
	host   string
	header http.Header
	proto  string // default HTTP/1.1
	local  bool
}

var refundCallers = []refundCaller{
	{"127.0.0.1:4711", "localhost:8080", nil, "", true},
	{"[::1]:4711", "[::1]:8080", nil, "", true},
	{"[::ffff:127.0.0.1]:4711", "127.0.0.1:8080", nil, "", true},
	{"127.0.0.1:4711", "api.localhost", nil, "", true},
	{"127.0.0.1:4711", "localhost:8080", nil, "HTTP/2.0", true},
	{"10.0.0.1:4711", "localhost:8080", nil, "", false},
	{"[2001:db8::1]:4711", "localhost:8080", nil, "", false},
	{"", "localhost:8080", nil, "", false},
	{"127.0.0.6:4711", "localhost:8080", nil, "", false},         // Istio's sidecar
	{"127.0.0.1:4711", "127.0.0.1:8080", nil, "HTTP/1.0", false}, // nginx's plain proxy_pass
	{"127.0.0.1:4711", "penstock.mesh.svc:8080", nil, "", false}, // a proxy that keeps the name
	{"127.0.0.1:4711", "evil.example:8080", nil, "", false},      // DNS rebinding
	{"127.0.0.1:4711", "localhost:8080", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"X-Forwarded-Proto": {"https"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"X-Envoy-Attempt-Count": {"1"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Forwarded": {"for=127.0.0.1"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"X-Real-Ip": {"127.0.0.1"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Via": {"1.1 proxy"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Origin": {"https://evil.example"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Origin": {"null"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "", false},
	{"127.0.0.1:4711", "localhost:8080", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost:8080"}}, "", true},
	{"127.0.0.1:4711", "evil.example:8080", http.Header{"Origin": {"http://evil.example:8080"}}, "", false},
}

// post sends a body to a path of the server, with a token unless that is empty.
func (c *refundCaller) post(server http.Handler, path, body, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = c.from, c.host
	if c.proto != "" {
		r.Proto = c.proto
		r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(c.proto)
	}
	r.Header = c.header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	return w
}

var refundBodies = []struct{ path, body string }{
	{"/v1/take", `{"key":"k","limit":"5/1s","cost":-1}`},
	{"/v1/take", `{"key":"k","limit":"5/1s","cost":-1,"id":""}`},
	{"/v1/take", `{"key":"k","limit":"5/1s","cost":-9223372036854775808}`},
	{"/v1/take", `{"key":"k","limit":"5/1s","reset":true}`},
	{"/v1/take", strings.TrimSuffix(byRules("tenant=x"), "}") + `,"reset":true}`},
	{"/v1/take", strings.TrimSuffix(byRules("tenant=x"), "}") + `,"cost":-1}`},
	{"/v1/take", `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}],"cost":-1}]}`},
	{"/v1/take", `{"mode":"each","requests":[{"key":"k","limit":"5/1s"},{"key":"k","limit":"5/1s","cost":-1}]}`},
	{"/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}],"isNegativeHits":true}]}`},
}

// A refund defeats a limit, so a limited client must not be able to make one: not
// through a proxy on the same machine, nor through a page in a browser there. A token
// replaces the guess.
func TestRefundNeedsDirectLocalCallerOrToken(t *testing.T) {
	for _, o := range []engine.Options{{}, {DistrustLocal: true}, {Token: "secret"}, {Token: "secret", DistrustLocal: true}} {
		server := newServer(t, newEngine(t, frozenMemory(), &o), nil)
		for _, c := range refundCallers {
			for token, valid := range map[string]bool{
				"": false, "Bearer secre": false, "Bearer secrets": false, "Bearer": false, "Basic secret": false,
				"Bearer secret": true, "bearer  secret": true,
			} {
				may := o.Token == "" && !o.DistrustLocal && c.local || o.Token != "" && valid
				for _, refund := range refundBodies {
					w := c.post(server, refund.path, refund.body, token)
					if w.Code != map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[may] {
						t.Errorf("%+v: %+v with %q: %s %s\ngot %d %s, want allowed: %t", o, c, token, refund.path, refund.body, w.Code, w.Body, may)
					}
					if !may && refund.path == "/v1/take" && !strings.Contains(w.Body.String(), httpapi.ProblemForbidden) {
						t.Errorf("got %s, want ProblemForbidden", w.Body)
					}
				}
			}
		}
	}
}

// Taking needs no permission, and neither does returning what was taken under an ID.
func TestTakeAndRefundUnderIDNeedNoPermission(t *testing.T) {
	server := newServer(t, newEngine(t, frozenMemory(), &engine.Options{Token: "secret"}), nil)
	remote := refundCaller{from: "10.0.0.1:4711", host: "penstock:8080"}
	for i, c := range []struct{ body, granted string }{
		{`{"key":"k","limit":"5/1h","cost":3,"id":"a"}`, `"granted":3`},
		{`{"key":"k","limit":"5/1h","cost":2}`, `"granted":2`},
		{`{"key":"k","limit":"5/1h","cost":-5,"id":"guess"}`, `"granted":0`},
		{`{"key":"k","limit":"5/1h","cost":-5,"id":"a"}`, `"granted":-3`}, // and no more than was taken
		{`{"key":"k","limit":"5/1h","cost":-5,"id":"a"}`, `"granted":0`},  // once
		{`{"mode":"each","requests":[{"key":"k","limit":"5/1h","id":"b"},{"key":"k","limit":"5/1h","cost":-1,"id":"b"}]}`, `"granted":-1`},
	} {
		if w := remote.post(server, "/v1/take", c.body, ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), c.granted) {
			t.Errorf("request %d: %s\ngot %d %s, want 200 and %s", i, c.body, w.Code, w.Body, c.granted)
		}
	}
	if w := remote.post(server, "/v1/take", `{"key":"k","limit":"5/1h","cost":-9223372036854775808,"id":"a"}`, ""); w.Code != http.StatusBadRequest {
		t.Errorf("a reset with an ID: got %d %s, want 400", w.Code, w.Body)
	}
	mixed := `{"mode":"each","requests":[{"key":"k","limit":"5/1h","cost":-1,"id":"b"},{"key":"k","limit":"5/1h","cost":-1}]}`
	if w := remote.post(server, "/v1/take", mixed, ""); w.Code != http.StatusForbidden {
		t.Errorf("one refund with an ID and one without: got %d %s, want 403", w.Code, w.Body)
	}
}

// A limit that a request brings cannot reach the state of a rule, neither by its name nor
// by equal fields. The states of CL.THROTTLE need the rights of a refund.
func TestRequestLimitCannotReachRule(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		e := engine.New(store, &engine.Options{Token: "secret"})
		set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(
			"domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]\n")})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		server := newServer(t, e, nil)
		send := func(method, path, body, token string) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			r.RemoteAddr, r.Header = "10.0.0.1:4711", http.Header{"Content-Type": {"application/json"}, "Authorization": {token}}
			server.ServeHTTP(w, r)
			return w.Code
		}
		const lower = "0/1h fixed-window align=clock name=edge/user"
		const equal = "1/1h fixed-window align=clock name=edge/user"
		const throttle = `{"key":"x","limit":"1000000/1s burst=1 name=cl.throttle"}`
		const spend = `{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}`
		send("POST", "/v1/take", spend, "")
		for _, c := range []struct {
			method, path, body, token string
			want                      int
		}{
			{"POST", "/v1/take", `{"key":"user=x","limit":"` + equal + `"}`, "", 200},
			{"POST", "/v1/take", `{"key":"user=x","limit":"` + lower + `"}`, "", 429},
			{"POST", "/v1/take", `{"mode":"each","requests":[{"key":"user=x","limit":"` + lower + `","cost":0}]}`, "", 200},
			{"GET", "/v1/auth?key=user%3Dx&limit=" + url.QueryEscape(lower), "", "", 429},
			{"POST", "/v1/take", `{"key":"user=x","limit":"` + equal + `","cost":-1}`, "Bearer secret", 200},
			{"POST", "/v1/take", throttle, "", 403},
			{"POST", "/v1/take", `{"key":"edge|user=x","limit":"0/1h fixed-window align=clock name=override"}`, "", 403},
			{"POST", "/v1/take", throttle, "Bearer secret", 200},
		} {
			if got := send(c.method, c.path, c.body, c.token); got != c.want {
				t.Errorf("%s %s: got %d, want %d", c.path, c.body, got, c.want)
			}
			if got := send("POST", "/v1/take", spend, ""); got != http.StatusTooManyRequests {
				t.Errorf("after %s %s: got %d, want 429: the rule still denies", c.path, c.body, got)
			}
		}
	})
}
