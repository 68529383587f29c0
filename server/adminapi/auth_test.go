package adminapi_test

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

// Every route is closed to those without the token, but for the two that say
// whether the server is well; and who is refused changes and learns nothing.
func TestEveryRouteAndEveryToken(t *testing.T) {
	j := newJudgeWith(t, &engine.Options{Token: "secret"})
	limit := penstock.PerMinute(5)
	if _, err := j.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 5}); err != nil {
		t.Fatal(err)
	}
	metrics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	d := newDoor(t, j, adminapi.Options{Metrics: metrics, Profiles: true})
	open := map[string]bool{"/healthz": true, "/readyz": true}
	queries := map[string]string{
		"/v1/keys": "?limit=5/1m&key=k", "/debug/pprof/profile": "?seconds=1", "/debug/pprof/trace": "?seconds=0.01",
	}
	for _, path := range append(d.Paths(), "/debug/pprof/heap") {
		path += queries[path]
		for _, method := range []string{"GET", "POST", "DELETE"} {
			for _, token := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Bearer secrets", "Basic c2VjcmV0", "secret"} {
				w := ask(d, method, path, "Authorization", token)
				if want := 401; !open[path] && (w.Code != want || w.Header().Get("WWW-Authenticate") == "" || strings.Contains(w.Body.String(), "edge")) {
					t.Errorf("%s %s with %q: got %d %s, want 401", method, path, token, w.Code, w.Body)
				}
			}
		}
		if w := ask(d, "GET", path, "Authorization", "Bearer secret"); w.Code != 200 {
			t.Errorf("GET %s with the token: got %d %s, want 200", path, w.Code, w.Body)
		}
	}
	if d, err := j.Take(t.Context(), penstock.Request{Key: "k", Limit: limit}); err != nil || d.Remaining != 0 {
		t.Errorf("after all that: got %v, %v, want that nothing was given back", d, err)
	}
}

// Profiles are there only where they are asked for, whoever asks.
func TestProfilesAreOff(t *testing.T) {
	for _, on := range []bool{false, true} {
		d := newDoor(t, newJudgeWith(t, &engine.Options{Token: "secret"}), adminapi.Options{Loopback: true, Profiles: on})
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap?debug=1", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=0.01"} {
			want := map[bool]int{false: 404, true: 200}[on]
			if w := ask(d, "GET", path, "Authorization", "Bearer secret"); w.Code != want {
				t.Errorf("%s with profiles %t: got %d, want %d", path, on, w.Code, want)
			}
		}
		if w := ask(d, "GET", "/debug/pprof/cmdline", "Authorization", "Bearer secret"); w.Code != 404 {
			t.Errorf("the command line, which may hold a token, with profiles %t: got %d, want 404", on, w.Code)
		}
		if w := ask(d, "GET", "/"); strings.Contains(w.Body.String(), "pprof") != on {
			t.Errorf("the list with profiles %t: %s", on, w.Body)
		}
	}
}

// On loopback no token is asked for, except of those who may be somebody else.
func TestLoopbackIsForThisMachine(t *testing.T) {
	d := newDoor(t, newJudge(t), adminapi.Options{Loopback: true})
	withToken := newDoor(t, newJudgeWith(t, &engine.Options{Token: "secret"}), adminapi.Options{Loopback: true})
	for _, c := range []struct {
		header []string
		may    bool
	}{
		{nil, true},
		{[]string{"Host", "127.0.0.1:6070"}, true},
		{[]string{"Host", "[::1]:6070"}, true},
		{[]string{"Sec-Fetch-Site", "none"}, true},
		{[]string{"Sec-Fetch-Site", "same-origin"}, true},
		{[]string{"Sec-Fetch-Site", "cross-site"}, false},
		{[]string{"Sec-Fetch-Site", "same-site"}, false},
		{[]string{"Origin", "https://evil.example"}, false},
		{[]string{"Host", "evil.example"}, false},
		{[]string{"Host", "evil.example", "Origin", "http://evil.example"}, false},
		{[]string{"Host", "localhost.evil.example"}, false},
		{[]string{"X-Forwarded-For", "127.0.0.1"}, false},
		{[]string{"From", "10.0.0.1:4711"}, false},
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			w := ask(d, method, "/v1/keys?limit=5/1m&key=k", c.header...)
			if got := w.Code == 200; got != c.may {
				t.Errorf("%s with %q: got %d %s, want that it may: %t", method, c.header, w.Code, w.Body, c.may)
			}
			w = ask(withToken, method, "/v1/keys?limit=5/1m&key=k", append([]string{"Authorization", "Bearer secret"}, c.header...)...)
			if w.Code != 200 {
				t.Errorf("%s with %q and the token: got %d %s, want 200", method, c.header, w.Code, w.Body)
			}
		}
	}
}

func TestADoorToOthersNeedsAToken(t *testing.T) {
	for _, o := range []*adminapi.Options{nil, {}} {
		if _, err := adminapi.New(newJudge(t), o); !errors.Is(err, adminapi.ErrNoToken) {
			t.Errorf("without a token: got %v, want ErrNoToken", err)
		}
	}
	if _, err := adminapi.New(nil, &adminapi.Options{Loopback: true}); err == nil {
		t.Error("without a judge: want an error")
	}
	d := newDoor(t, newJudge(t), adminapi.Options{Loopback: true})
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := d.Serve(l); err == nil || !strings.Contains(err.Error(), "is not loopback") {
		t.Errorf("on %s: got %v, want that it is refused", l.Addr(), err)
	}
}
