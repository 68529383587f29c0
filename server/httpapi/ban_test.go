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
	put := func(key string, until time.Time) {
		t.Helper()
		o := overrides.Override{Rule: "edge/tenant", Key: key, Limit: "ban", Until: until, Reason: "secret"}
		if err := e.Overrides().Put(t.Context(), []overrides.Override{o}); err != nil {
			t.Fatal(err)
		}
	}
	put("tenant=1", time.Time{})
	put("tenant=2", time.Now().Add(time.Hour))
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
	w := send("POST", "/v1/take", byRules("tenant=1"))
	if body := w.Body.String(); w.Code != 429 || w.Header().Get("Retry-After") != "" || !strings.Contains(body, `"source":"override"`) || !strings.Contains(body, `"retry_after":null`) {
		t.Errorf("for good: got %d %v %s", w.Code, w.Header(), body)
	}
	for _, target := range []string{"/v1/take", "/v1/auth?domain=edge&tenant=2"} {
		method, body := "GET", ""
		if target == "/v1/take" {
			method, body = "POST", byRules("tenant=2")
		}
		w := send(method, target, body)
		if after := w.Header().Get("Retry-After"); w.Code != 429 || len(after) != 4 || after > "3600" {
			t.Errorf("%s: got %d, Retry-After %q: %s", target, w.Code, after, w.Body)
		}
	}
}
