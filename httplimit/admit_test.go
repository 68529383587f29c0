package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/overload"
)

// fullGate returns a gate with one place, which is taken.
func fullGate(t *testing.T) (*overload.Gate, overload.Pass) {
	t.Helper()
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	pass, err := g.Enter(t.Context(), overload.Normal)
	if err != nil {
		t.Fatal(err)
	}
	return g, pass
}

func getRoot(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w
}

// On one processor handlers that only compute run one after the other. The gate has to see
// the requests that wait meanwhile.
func TestAdmitSeesRequestsThatWaitForProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	h := httplimit.Admit(g, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var refused atomic.Int64
	var requests sync.WaitGroup
	for range 20 {
		requests.Go(func() {
			if getRoot(h).Code == http.StatusServiceUnavailable {
				refused.Add(1)
			}
		})
	}
	requests.Wait()
	if n := refused.Load(); n == 0 || n == 20 {
		t.Errorf("refused: got %d of 20 requests to a gate for one, want some", n)
	}
}

func TestAdmitRefusesWithRetryAfter(t *testing.T) {
	g, pass := fullGate(t)
	served := 0
	h := httplimit.Admit(g, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	w := getRoot(h)
	retry, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if w.Code != http.StatusServiceUnavailable || err != nil || retry < 1 || served != 0 {
		t.Errorf("full gate: status %d, Retry-After %q, served %d; want 503, a number, 0", w.Code, w.Header().Get("Retry-After"), served)
	}
	if !strings.Contains(w.Body.String(), httplimit.TypeReducedCapacity) {
		t.Errorf("body: %s, want a problem of type %s", w.Body, httplimit.TypeReducedCapacity)
	}
	pass.Leave(overload.Success)
	if w := getRoot(h); w.Code != http.StatusOK || served != 1 {
		t.Errorf("free gate: status %d, served %d; want 200, 1", w.Code, served)
	}
}

func TestAdmitAnswersInsteadByPriority(t *testing.T) {
	g, _ := fullGate(t)
	o := &httplimit.AdmitOptions{
		Priority: func(*http.Request) overload.Priority { return overload.Sheddable },
		Instead: func(w http.ResponseWriter, _ *http.Request, err error) {
			var full *overload.FullError
			if !errors.As(err, &full) || full.Priority != overload.Sheddable {
				t.Errorf("error: %v, want a FullError with sheddable priority", err)
			}
			_, _ = io.WriteString(w, "from the cache")
		},
	}
	w := getRoot(httplimit.Admit(g, o)(http.NotFoundHandler()))
	if w.Code != http.StatusOK || w.Body.String() != "from the cache" {
		t.Errorf("answer: %d %q, want 200 from the cache", w.Code, w.Body)
	}
}

func TestAdmitSkipsAndLeaves(t *testing.T) {
	g, pass := fullGate(t)
	panics := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Panic") != "" {
			panic(http.ErrAbortHandler)
		}
	})
	skip := &httplimit.AdmitOptions{Skip: func(*http.Request) bool { return true }}
	if w := getRoot(httplimit.Admit(g, skip)(panics)); w.Code != http.StatusOK {
		t.Errorf("skipped request: status %d, want 200", w.Code)
	}
	pass.Leave(overload.Success)
	func() {
		defer func() { _ = recover() }()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Panic", "1")
		httplimit.Admit(g, nil)(panics).ServeHTTP(httptest.NewRecorder(), r)
	}()
	if n := g.Stats().InFlight; n != 0 {
		t.Errorf("in flight after a panic: got %d, want 0", n)
	}
}

// A sender answers requests without a network.
type sender func(*http.Request) (*http.Response, error)

func (s sender) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

func answer(status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}
}

func send(ctx context.Context, t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rt.RoundTrip(r)
}

// In a bubble no time passes, so that the breaker does not probe.
func TestBreakStopsRequestsToFailingHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := map[string]int{}
		rt := httplimit.Break(nil, &httplimit.BreakOptions{Transport: sender(func(r *http.Request) (*http.Response, error) {
			sent[r.URL.Host]++
			if r.URL.Host == "good.example" {
				return answer(http.StatusNotFound), nil
			}
			return answer(http.StatusBadGateway), nil
		})})
		for range 100 {
			_, bad := send(t.Context(), t, rt, "http://bad.example/")
			_, good := send(t.Context(), t, rt, "http://good.example/")
			if good != nil {
				t.Fatalf("good host: %v", good)
			}
			var open *overload.OpenError
			if bad != nil && (!errors.As(bad, &open) || open.Key != "bad.example") {
				t.Fatalf("bad host: %v, want an OpenError for it", bad)
			}
		}
		if sent["good.example"] != 100 || sent["bad.example"] > 9 {
			t.Errorf("sent: %v, want 100 to the good host, at most 9 to the bad one", sent)
		}
	})
}

func TestBreakIgnoresCanceledRequests(t *testing.T) {
	group := overload.NewBreakerGroup(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rt := httplimit.Break(group, &httplimit.BreakOptions{
		Transport: sender(func(r *http.Request) (*http.Response, error) { return nil, r.Context().Err() }),
		Instead: func(*http.Request, *http.Response, error) (*http.Response, error) {
			t.Error("Instead was called for a canceled request")
			return nil, io.EOF
		},
	})
	for range 50 {
		if _, err := send(ctx, t, rt, "http://a.example/"); !errors.Is(err, context.Canceled) {
			t.Fatalf("RoundTrip: %v, want canceled", err)
		}
	}
	if open := group.Open(); len(open) != 0 {
		t.Errorf("open breakers: %v, want none", open)
	}
}

func TestBreakAnswersInstead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed, refused := 0, 0
		rt := httplimit.Break(nil, &httplimit.BreakOptions{
			Transport: sender(func(*http.Request) (*http.Response, error) { return answer(http.StatusInternalServerError), nil }),
			Instead: func(_ *http.Request, resp *http.Response, err error) (*http.Response, error) {
				switch {
				case errors.Is(err, overload.ErrOpen) && resp == nil:
					refused++
				case err == nil && resp.StatusCode == http.StatusInternalServerError:
					failed++
				default:
					t.Errorf("Instead of %v, %v", resp, err)
				}
				return answer(http.StatusOK), nil
			},
		})
		for range 30 {
			resp, err := send(t.Context(), t, rt, "http://a.example/")
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("RoundTrip: %v, %v, want status 200", resp, err)
			}
		}
		if failed == 0 || refused == 0 || failed+refused != 30 {
			t.Errorf("Instead: %d failed and %d refused, want 30 of both kinds", failed, refused)
		}
	})
}
