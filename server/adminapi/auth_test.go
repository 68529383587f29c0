package adminapi_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

// All endpoints but /healthz and /readyz need the token. A rejected request changes
// nothing and discloses nothing.
func TestEndpointsNeedTheToken(t *testing.T) {
	e := newEngineWithOptions(t, &engine.Options{Token: "secret"})
	limit := penstock.PerMinute(5)
	if _, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 5}, nil); err != nil {
		t.Fatal(err)
	}
	metrics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s := newServer(t, e, adminapi.Options{Metrics: metrics, Pprof: true})
	public := map[string]bool{"/healthz": true, "/readyz": true, "/openapi.yaml": true}
	queries := map[string]string{
		"/v1/keys": "?limit=5/1m&key=k", "/v1/inspect": "?limit=5/1m&key=k", "/v1/explain": "?domain=edge&remote_address=1", "/debug/pprof/profile": "?seconds=1", "/debug/pprof/trace": "?seconds=0.01",
	}
	for _, path := range append(s.Paths(), "/debug/pprof/heap") {
		path += queries[path]
		e := newEngineWithStore(t, e.Store(), &engine.Options{Token: "secret"}) // wrong tokens are limited
		s := newServer(t, e, adminapi.Options{Metrics: metrics, Pprof: true})
		for _, method := range []string{"GET", "POST", "DELETE"} {
			for _, token := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Bearer secrets", "Basic c2VjcmV0", "secret"} {
				w := send(s, method, path, "Authorization", token)
				if want := 401; !public[path] && (w.Code != want || w.Header().Get("WWW-Authenticate") == "" || strings.Contains(w.Body.String(), "edge")) {
					t.Errorf("%s %s with %q: got %d %s, want 401", method, path, token, w.Code, w.Body)
				}
			}
		}
		want := 200
		if strings.HasPrefix(path, "/v1/simulate") { // the token is good, the method is not
			want = 405
		}
		if w := send(s, "GET", path, "Authorization", "Bearer secret"); w.Code != want {
			t.Errorf("GET %s with the token: got %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
	if d, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: limit}, nil); err != nil || d.Remaining != 0 {
		t.Errorf("after the rejected requests: got %v, %v, want 0 remaining", d, err)
	}
}

func TestPprofIsOffByDefault(t *testing.T) {
	for _, on := range []bool{false, true} {
		s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{Loopback: true, Pprof: on})
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap?debug=1", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.01"} {
			want := map[bool]int{false: 404, true: 200}[on]
			if w := send(s, "GET", path, "Authorization", "Bearer secret"); w.Code != want {
				t.Errorf("%s with profiles %t: got %d, want %d", path, on, w.Code, want)
			}
		}
		if w := send(s, "GET", "/debug/pprof/cmdline", "Authorization", "Bearer secret"); w.Code != 404 {
			t.Errorf("/debug/pprof/cmdline, which may show a token, with profiles %t: got %d, want 404", on, w.Code)
		}
		if w := send(s, "GET", "/", "Authorization", "Bearer secret"); strings.Contains(w.Body.String(), "pprof") != on {
			t.Errorf("index with profiles %t: got %s", on, w.Body)
		}
	}
}

// Without a token, a request on behalf of another client is rejected. With one, every
// request needs it.
func TestLoopbackListenerNeedsDirectLocalCallerOrToken(t *testing.T) {
	loopback := adminapi.Options{Loopback: true}
	s := newServer(t, newEngine(t), loopback)
	distrusting := newServer(t, newEngineWithOptions(t, &engine.Options{DistrustLocal: true}), loopback)
	withToken := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), loopback)
	for _, c := range []struct {
		header []string
		local  bool
	}{
		{nil, true},
		{[]string{"Host", "127.0.0.1:6070"}, true},
		{[]string{"Host", "[::1]:6070", "From", "[::1]:4711"}, true},
		{[]string{"Sec-Fetch-Site", "none"}, true},
		{[]string{"Sec-Fetch-Site", "same-origin"}, true},
		{[]string{"Sec-Fetch-Site", "cross-site"}, false},
		{[]string{"Sec-Fetch-Site", "same-site"}, false},
		{[]string{"Origin", "https://evil.example"}, false},
		{[]string{"Host", "evil.example"}, false},
		{[]string{"Host", "evil.example", "Origin", "http://evil.example"}, false},
		{[]string{"Host", "localhost.evil.example"}, false},
		{[]string{"X-Forwarded-For", "127.0.0.1"}, false},
		{[]string{"Via", "1.1 proxy"}, false},
		{[]string{"Proto", "HTTP/1.0"}, false},
		{[]string{"From", "10.0.0.1:4711"}, false},
		{[]string{"From", "127.0.0.6:4711"}, false},
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			target := "/v1/keys?limit=5/1m&key=k"
			if method != "GET" {
				target += "&reason=r"
			}
			for server, want := range map[*adminapi.Server]bool{s: c.local, distrusting: false, withToken: false} {
				w := send(server, method, target, c.header...)
				if got := w.Code == 200; got != want {
					t.Errorf("%s with %q: got %d %s, want allowed: %t", method, c.header, w.Code, w.Body, want)
				}
			}
			w := send(withToken, method, target, append([]string{"Authorization", "Bearer secret"}, c.header...)...)
			if w.Code != 200 {
				t.Errorf("%s with %q and the token: got %d %s, want 200", method, c.header, w.Code, w.Body)
			}
		}
		for _, server := range []*adminapi.Server{s, distrusting, withToken} {
			if w := send(server, "GET", "/readyz", c.header...); w.Code != 200 {
				t.Errorf("/readyz with %q: got %d %s, want 200", c.header, w.Code, w.Body)
			}
		}
	}
}

func TestNewNeedsTokenUnlessLoopback(t *testing.T) {
	for _, o := range []*adminapi.Options{nil, {}} {
		if _, err := adminapi.New(newEngine(t), o); !errors.Is(err, adminapi.ErrNoToken) {
			t.Errorf("without a token: got %v, want ErrNoToken", err)
		}
	}
	if _, err := adminapi.New(nil, &adminapi.Options{Loopback: true}); err == nil {
		t.Error("without an engine: want an error")
	}
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := s.Serve(l); err == nil || !strings.Contains(err.Error(), "is not loopback") {
		t.Errorf("Serve on %s: got %v, want an error", l.Addr(), err)
	}
}

// Wrong tokens are limited by address, so that a token cannot be guessed, and a right one
// is not even checked meanwhile. Other addresses are not affected.
func TestWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{})
		get := func(token, from string) *httptest.ResponseRecorder {
			return send(s, "GET", "/rules", "Authorization", "Bearer "+token, "From", from)
		}
		for range 10 {
			if w := get("guess", "203.0.113.9:1"); w.Code != 401 {
				t.Fatalf("got %d %s, want 401", w.Code, w.Body)
			}
		}
		for _, token := range []string{"guess", "secret"} {
			w := get(token, "203.0.113.9:2")
			if w.Code != 429 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "too many wrong tokens") {
				t.Errorf("with %q: got %d %v %s, want 429", token, w.Code, w.Header(), w.Body)
			}
		}
		if w := get("secret", "203.0.113.10:1"); w.Code != 200 {
			t.Errorf("another address: got %d %s, want 200", w.Code, w.Body)
		}
		time.Sleep(time.Minute)
		if w := get("secret", "203.0.113.9:3"); w.Code != 200 {
			t.Errorf("a minute later: got %d %s, want 200", w.Code, w.Body)
		}
	})
}

// Guesses from many addresses are limited together, and do not keep out an operator whose
// address is known.
func TestWrongTokensOfAllAddressesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{})
		get := func(token, from string) int {
			return send(s, "GET", "/rules", "Authorization", "Bearer "+token, "From", from).Code
		}
		const operator = "203.0.113.9:1"
		if code := get("secret", operator); code != 200 {
			t.Fatalf("the operator got %d, want 200", code)
		}
		checked := 0
		for i := range 200 {
			if get("guess", fmt.Sprintf("[2001:db8:0:%x::1]:1", i)) == 401 {
				checked++
			}
		}
		if checked != 100 {
			t.Errorf("%d guesses from 200 networks were checked at once, want 100", checked)
		}
		if code := get("secret", "198.51.100.7:1"); code != 429 {
			t.Errorf("an unknown address got %d, want 429", code)
		}
		if code := get("secret", operator); code != 200 {
			t.Errorf("the operator got %d, want 200", code)
		}
		time.Sleep(time.Second)
		if code := get("secret", "198.51.100.7:1"); code != 200 {
			t.Errorf("a second later an unknown address got %d, want 200", code)
		}
	})
}
