package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/rules"
)

// refundCallers are callers that may refund, and others that may not.
var refundCallers = []struct {
	from   string
	header http.Header
	host   string
	may    bool
}{
	{"127.0.0.1:4711", nil, "localhost:8080", true},
	{"[::1]:4711", nil, "[::1]:8080", true},
	{"[::ffff:127.0.0.1]:4711", nil, "127.0.0.1:8080", true},
	{"127.0.0.1:4711", nil, "api.localhost", true},
	{"10.0.0.1:4711", nil, "localhost:8080", false},
	{"[2001:db8::1]:4711", nil, "localhost:8080", false},
	{"", nil, "localhost:8080", false},
	{"10.0.0.1:4711", http.Header{"Authorization": {"Bearer secret"}}, "penstock:8080", true},
	{"10.0.0.1:4711", http.Header{"Authorization": {"bearer  secret"}}, "penstock:8080", true},
	{"10.0.0.1:4711", http.Header{"Authorization": {"Bearer secre"}}, "penstock:8080", false},
	{"10.0.0.1:4711", http.Header{"Authorization": {"Bearer secrets"}}, "penstock:8080", false},
	{"10.0.0.1:4711", http.Header{"Authorization": {"Bearer"}}, "penstock:8080", false},
	{"10.0.0.1:4711", http.Header{"Authorization": {"Basic secret"}}, "penstock:8080", false},
	{"127.0.0.1:4711", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"Forwarded": {"for=127.0.0.1"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"X-Real-Ip": {"127.0.0.1"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"Via": {"1.1 proxy"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"X-Forwarded-For": {"1.2.3.4"}, "Authorization": {"Bearer secret"}}, "localhost:8080", true},
	{"127.0.0.1:4711", http.Header{"Origin": {"https://evil.example"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"Origin": {"null"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "localhost:8080", false},
	{"127.0.0.1:4711", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost:8080"}}, "localhost:8080", true},
	{"127.0.0.1:4711", http.Header{"Origin": {"http://evil.example:8080"}}, "evil.example:8080", false}, // DNS rebinding
	{"127.0.0.1:4711", nil, "evil.example:8080", false},
}

// A refund defeats a limit, so a limited client must not be able to make one: not
// through a proxy on the same machine, nor through a page in a browser there.
func TestRefundNeedsLocalCallerOrToken(t *testing.T) {
	server := newServer(t, newEngine(t, frozenMemory(), &engine.Options{Token: "secret"}), nil)
	refunds := []string{
		`{"key":"k","limit":"5/1s","cost":-1}`,
		`{"key":"k","limit":"5/1s","cost":-9223372036854775808}`,
		strings.TrimSuffix(byRules("tenant=x"), "}") + `,"cost":-1}`,
		`{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}],"cost":-1}]}`,
		`{"mode":"each","requests":[{"key":"k","limit":"5/1s"},{"key":"k","limit":"5/1s","cost":-1}]}`,
	}
	for _, c := range refundCallers {
		for _, body := range refunds {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/v1/take", strings.NewReader(body))
			r.RemoteAddr, r.Host = c.from, c.host
			for name, values := range c.header {
				r.Header[name] = values
			}
			r.Header.Set("Content-Type", "application/json")
			server.ServeHTTP(w, r)
			if got := w.Code == http.StatusOK; got != c.may {
				t.Errorf("from %s to %s with %v: %s\ngot %d %s, want allowed: %t", c.from, c.host, c.header, body, w.Code, w.Body, c.may)
			}
			if !c.may && !strings.Contains(w.Body.String(), httpapi.ProblemForbidden) {
				t.Errorf("got %s, want ProblemForbidden", w.Body)
			}
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/v1/take", strings.NewReader(`{"key":"k","limit":"5/1s"}`))
	r.RemoteAddr, r.Header = "10.0.0.1:4711", http.Header{"Content-Type": {"application/json"}}
	if server.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("take from another machine: got %d %s, want 200", w.Code, w.Body)
	}
}

// A limit with the name of a rule shares its state, and a lower one clamps the debt
// there. That defeats the rule like a refund, and needs the same rights.
func TestTakeOverridingRuleNeedsLocalCallerOrToken(t *testing.T) {
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
		const spend = `{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}`
		send("POST", "/v1/take", spend, "")
		for _, c := range []struct {
			method, path, body string
		}{
			{"POST", "/v1/take", `{"key":"user=x","limit":"` + lower + `"}`},
			{"POST", "/v1/take", `{"mode":"each","requests":[{"key":"user=x","limit":"` + lower + `","cost":0}]}`},
			{"GET", "/v1/auth?key=user%3Dx&limit=" + url.QueryEscape(lower), ""},
			{"POST", "/v1/take", `{"key":"x","limit":"1000000/1s burst=1 name=cl.throttle"}`},
		} {
			if got := send(c.method, c.path, c.body, ""); got != http.StatusForbidden {
				t.Errorf("%s %s: got %d, want 403", c.path, c.body, got)
			}
			if got := send("POST", "/v1/take", spend, ""); got != http.StatusTooManyRequests {
				t.Errorf("after %s %s: got %d, want 429: the rule still denies", c.path, c.body, got)
			}
		}
		const same = `{"key":"user=x","limit":"1/1h fixed-window align=clock name=edge/user"}`
		if got := send("POST", "/v1/take", same, ""); got != http.StatusTooManyRequests {
			t.Errorf("the rule's own limit: got %d, want 429", got)
		}
		if got := send("POST", "/v1/take", `{"key":"user=x","limit":"`+lower+`"}`, "Bearer secret"); got != http.StatusTooManyRequests {
			t.Errorf("with the token: got %d, want 429, a decision", got)
		}
	})
}
