package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// A request whose permit is lost ends, except in shadow mode, which enforces nothing.
func TestProtectShadowServesAfterPermitIsLost(t *testing.T) {
	for _, shadow := range []func(*http.Request, []httplimit.Answer){nil, func(*http.Request, []httplimit.Answer) {}} {
		synctest.Test(t, func(t *testing.T) {
			memory, down := penstock.NewMemory(nil), atomic.Bool{}
			lim := limiter(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
				if down.Load() {
					return penstock.Decision{}, penstock.ErrUnavailable
				}
				return memory.Take(ctx, r)
			}), "1/30s concurrent")
			h := httplimit.Protect(lim, &httplimit.Options{Shadow: shadow})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				down.Store(true)
				time.Sleep(time.Minute)
				if lost := r.Context().Err() != nil; lost == (shadow != nil) {
					t.Errorf("shadow mode %t: the context has ended: %t", shadow != nil, lost)
				}
			}))
			ask(h, "192.0.2.1:1")
		})
	}
}

// A handler that goes on after its client has disconnected still holds its permit: otherwise
// clients that disconnect would have more handlers running than there are permits.
func TestProtectHoldsPermitAfterClientDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/30s concurrent")
		h := httplimit.Protect(lim, nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(time.Minute)
			if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 0 {
				t.Errorf("a minute after the client has disconnected: %v, %v, want the permit held", d, err)
			}
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.RemoteAddr = alice
		h.ServeHTTP(httptest.NewRecorder(), r)
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 1 {
			t.Errorf("after the handler: %v, %v, want the permit released", d, err)
		}
	})
}

func TestProtectSaysWhatIsWrongWithTheNumberOfPermits(t *testing.T) {
	for cost, want := range map[int64]string{
		101: "the cost of the request is invalid: 101: must be at most 100 under a concurrent limit",
		-1:  "the cost of the request is invalid: -1: must be at least 1",
	} {
		h := httplimit.Protect(inMemory(t, "500/30s concurrent"), &httplimit.Options{
			Cost: func(*http.Request) int64 { return cost }, OnError: func(*http.Request, error) {},
		})(hello)
		if w := ask(h, "192.0.2.1:1"); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("cost %d: got %d %s, want 400 and %q", cost, w.Code, w.Body, want)
		}
	}
}

func TestProtectRefusesConcurrentLimitBesideOthers(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a concurrent limit beside another was accepted")
		}
	}()
	o := &httplimit.Options{Additional: []httplimit.Charge{{Limiter: inMemory(t, "1/30s concurrent")}}}
	httplimit.Protect(limiter(t, penstock.NewMemory(nil), "5/1s"), o)
}

// A limiter that depends on the request may be concurrent for some requests, and a rate for
// others.
func TestProtectLimiterForHoldsPermit(t *testing.T) {
	limiters := map[string]*penstock.Limiter{"free": inMemory(t, "1/30s concurrent"), "pro": inMemory(t, "2/1h")}
	var during func()
	h := httplimit.Protect(nil, &httplimit.Options{LimiterFor: byPlan(limiters)})(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { during() }))
	during = func() {
		during = func() {}
		expect(t, "a second one at once", statuses(h, 1, alice, "Plan", "free"), 429)
		expect(t, "another plan", statuses(h, 3, alice, "Plan", "pro"), 200, 200, 429)
	}
	expect(t, "one", statuses(h, 1, alice, "Plan", "free"), 200)
	expect(t, "one after the other", statuses(h, 3, alice, "Plan", "free"), 200, 200, 200)
}

// Where LimiterFor returns a concurrent limit beside others, the request is refused: no
// limit would be worse.
func TestProtectRefusesChosenPermitBesideOthers(t *testing.T) {
	limiters := map[string]*penstock.Limiter{"free": inMemory(t, "1/30s concurrent")}
	var reported error
	h := httplimit.Protect(nil, &httplimit.Options{
		LimiterFor: byPlan(limiters), Additional: []httplimit.Charge{{Limiter: inMemory(t, "9/1h")}},
		OnError: func(_ *http.Request, err error) { reported = err },
	})(hello)
	expect(t, "a concurrent limit beside another", statuses(h, 1, alice, "Plan", "free"), 500)
	if !errors.Is(reported, penstock.ErrBadLimit) {
		t.Errorf("reported %v, want %v", reported, penstock.ErrBadLimit)
	}
	expect(t, "the other alone", statuses(h, 1, alice, "Plan", "none"), 200)
}
