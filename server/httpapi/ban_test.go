package httpapi_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server/overrides"
)

func TestBanAnswers429(t *testing.T) {
	e := newEngine(t, frozenMemory(), nil)
	put := func(name, value string, until time.Time) {
		t.Helper()
		o := overrides.Override{Rule: "edge/" + name, Key: name + "=" + value, Limit: "ban", Until: until, Reason: "secret"}
		if err := e.Overrides().Put(t.Context(), []overrides.Override{o}); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"tenant", "free"} // the second is an unlimited rule
	for _, name := range names {
		put(name, "1", time.Time{})
		put(name, "2", time.Now().Add(time.Hour))
	}
	server := newServer(t, e, nil)
	send := func(method, target, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
		r.RemoteAddr = localAddr
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s shows the reason: %s", target, w.Body)
		}
		return w
	}
	for _, name := range names {
		w := send("POST", "/v1/take", byRules(name+"=1"))
		body := w.Body.String()
		if w.Code != 429 || w.Header().Get("Retry-After") != "" {
			t.Errorf("%s for good: got %d %v %s", name, w.Code, w.Header(), body)
		}
		for _, want := range []string{`"source":"override"`, `"retry_after":null`, `"detail":"the key is banned"}`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s for good: got %s, want %s in it", name, body, want)
			}
		}
		for _, target := range []string{"/v1/take", "/v1/auth?domain=edge&" + name + "=2"} {
			method, body := "GET", ""
			if target == "/v1/take" {
				method, body = "POST", byRules(name+"=2")
			}
			w := send(method, target, body)
			if after := w.Header().Get("Retry-After"); w.Code != 429 || len(after) != 4 || after > "3600" {
				t.Errorf("%s: got %d, Retry-After %q: %s", target, w.Code, after, w.Body)
			}
		}
	}
}
