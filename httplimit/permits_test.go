package httplimit_test

import (
	"net/http"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// A request holds a permit while its handler runs, and releases it however that ends.
func TestProtectHoldsPermitWhileHandlerRuns(t *testing.T) {
	lim := inMemory(t, "1/30s concurrent")
	var during func()
	h := httplimit.Protect(lim, nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			t.Error("the context of a request with a permit has ended")
		}
		during()
	}))
	during = func() {
		if w := ask(h, "192.0.2.1:1"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
			t.Errorf("a second request at once: got %d %v, want 429 with Retry-After", w.Code, w.Header())
		}
	}
	if w := ask(h, "192.0.2.1:1"); w.Code != http.StatusOK {
		t.Errorf("the first request: got %d %s", w.Code, w.Body)
	}
	during = func() { panic(http.ErrAbortHandler) }
	func() {
		defer func() { _ = recover() }()
		ask(h, "192.0.2.1:1")
	}()
	if d, err := lim.Peek(t.Context(), "192.0.2.1"); err != nil || d.Remaining != 1 {
		t.Errorf("after a panic: %v, %v, want the permit released", d, err)
	}
}

func TestProtectRefusesConcurrentLimitBesideOthers(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a concurrent limit beside another was accepted")
		}
	}()
	o := &httplimit.Options{Additional: []httplimit.Charge{{Limiter: inMemory(t, "5/1s")}}}
	httplimit.Protect(limiter(t, penstock.NewMemory(nil), "1/30s concurrent"), o)
}
