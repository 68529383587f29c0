// The race detector makes pools forget at random, so that nothing can be counted.

//go:build !race

package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// What middleware costs is what it adds to the handler and the store.
func TestProtectAllocations(t *testing.T) {
	store := penstock.NewMemory(nil)
	bare := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	a, b := limiter(t, store, "a: 1000000/1s"), limiter(t, store, "b: 1000000/1s")
	one := httplimit.Protect(a, &httplimit.Options{Headers: httplimit.NoHeaders})(bare)
	both := httplimit.Protect(a, &httplimit.Options{
		Headers:    httplimit.NoHeaders,
		Additional: []httplimit.Charge{{Limiter: b, Key: httplimit.Global}},
	})(bare)
	requests, decisions := []penstock.Request{a.Request("203.0.113.1"), b.Request("global")}, make([]penstock.Decision, 2)
	storeAlone := testing.AllocsPerRun(200, func() { _ = penstock.TakeAll(t.Context(), store, requests, decisions) })
	// Header fields are two: their values in one string, and a slice of those.
	// A denial has one more, for what its body is.
	told := httplimit.Protect(a, &httplimit.Options{Headers: httplimit.XRateLimit})(bare)
	denied := httplimit.Protect(limiter(t, store, "hour: 1/1h"), &httplimit.Options{Headers: httplimit.XRateLimit})(bare)
	chosen := httplimit.Protect(nil, &httplimit.Options{
		Headers: httplimit.NoHeaders, LimiterFor: func(*http.Request) *penstock.Limiter { return a },
	})(bare)
	for _, test := range []struct {
		h    http.Handler
		from string
		most float64
	}{{one, alice, 0}, {chosen, alice, 0}, {one, "[2001:db8::1]:1", 1}, {both, alice, storeAlone}, {told, alice, 2}, {denied, alice, 3}} {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		w.Body = nil
		r.RemoteAddr = test.from
		if n := testing.AllocsPerRun(200, func() { test.h.ServeHTTP(w, r) }); n > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.from, n, test.most)
		}
	}
}
