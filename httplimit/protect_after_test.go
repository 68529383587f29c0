package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// answering is a handler that answers with the status in the path.
var answering = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	var status int
	if _, err := fmt.Sscanf(r.URL.Path, "/%d", &status); err != nil {
		panic(http.ErrAbortHandler)
	}
	if status != 0 {
		w.WriteHeader(status)
	}
})

// remainsAfter sends requests that are answered by statuses, and returns how many
// units alice has left.
func remainsAfter(t *testing.T, after func(httplimit.Response) int64, statuses ...string) int64 {
	t.Helper()
	lim := inMemory(t, "10/1h")
	h := httplimit.Protect(lim, &httplimit.Options{After: after, Cost: func(*http.Request) int64 { return 2 }})(answering)
	for _, status := range statuses {
		r, w := httptest.NewRequest(http.MethodPost, "/"+status, nil), httptest.NewRecorder()
		r.RemoteAddr = alice
		func() {
			defer func() { _ = recover() }() // as a server does
			h.ServeHTTP(w, r)
		}()
	}
	d, err := lim.Peek(t.Context(), "203.0.113.1")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func TestAfterFunctionsSettleByResponse(t *testing.T) {
	for _, test := range []struct {
		name     string
		after    func(httplimit.Response) int64
		statuses string
		remain   int64
	}{
		{"what was taken", nil, "200 401 500 panic", 2},
		{"only failures", httplimit.OnlyFailures, "200 0 204 302 399", 10},
		{"only failures", httplimit.OnlyFailures, "200 401 0 500", 6},
		{"only failures, when it panics", httplimit.OnlyFailures, "panic", 8},
		{"reset on success", httplimit.ResetOnSuccess, "401 401 403", 4},
		{"reset on success", httplimit.ResetOnSuccess, "401 401 302", 10},
		{"reset on success", httplimit.ResetOnSuccess, "401 200 401", 8},
		{"free server errors", httplimit.FreeServerErrors, "500 503 599 panic", 10},
		{"free server errors", httplimit.FreeServerErrors, "200 404 500", 6},
	} {
		if got := remainsAfter(t, test.after, strings.Fields(test.statuses)...); got != test.remain {
			t.Errorf("%s, %s: %d remain, want %d", test.name, test.statuses, got, test.remain)
		}
	}
}

// A client that disconnects during the response makes a proxy panic, and is charged.
func TestFreeServerErrorsChargesDisconnectedClients(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // there would be more
	}))
	defer behind.Close()
	at, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	lim := inMemory(t, "10/1h")
	front := httptest.NewServer(httplimit.Protect(lim, &httplimit.Options{
		Key: httplimit.Global, After: httplimit.FreeServerErrors,
	})(httputil.NewSingleHostReverseProxy(at)))
	for range 3 {
		resp, err := http.Get(front.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Error(err)
		}
		_ = resp.Body.Close()
	}
	front.Close() // when all have been settled
	if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 7 {
		t.Errorf("%v, %v, want 7 of 10 to remain", d, err)
	}
}

// A body with a corrupt end makes a proxy fail, and is charged. A good body to a
// server that fails is refunded.
func TestFreeServerErrorsChargesBrokenUploads(t *testing.T) {
	front := func(behind http.HandlerFunc) (*penstock.Limiter, *httptest.Server) {
		server := httptest.NewServer(behind)
		t.Cleanup(server.Close)
		at, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(at)
		proxy.ErrorLog = log.New(io.Discard, "", 0)
		lim := inMemory(t, "10/1h")
		return lim, httptest.NewServer(httplimit.Protect(lim, &httplimit.Options{
			Key: httplimit.Global, After: httplimit.FreeServerErrors,
		})(proxy))
	}
	reading := func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	failing := func(w http.ResponseWriter, r *http.Request) { reading(w, r); w.WriteHeader(http.StatusBadGateway) }
	for _, test := range []struct {
		name   string
		behind http.HandlerFunc
		chunks string
		remain int64
	}{
		{"spoilt", reading, "3\r\nabc\r\nnonsense\r\n", 9},
		{"good", failing, "3\r\nabc\r\n0\r\n\r\n", 10},
	} {
		lim, server := front(test.behind)
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"+test.chunks)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: %v, %v", test.name, resp, err)
		}
		_ = conn.Close()
		server.Close() // when all has been settled
		if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != test.remain {
			t.Errorf("%s: %v, %v, want %d of 10 to remain", test.name, d, err, test.remain)
		}
	}
}

// However many try at once, no more passwords are checked than may be wrong.
func TestOnlyFailuresChargesConcurrentGuesses(t *testing.T) {
	var checked atomic.Int64
	release := make(chan struct{})
	h := httplimit.Protect(inMemory(t, "5/15m"), &httplimit.Options{
		Key:   func(*http.Request) string { return "login:alice" },
		After: httplimit.ResetOnSuccess,
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checked.Add(1)
		<-release
		w.WriteHeader(http.StatusUnauthorized)
	}))
	var wg sync.WaitGroup
	var denied atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			if ask(h, fmt.Sprintf("203.0.113.%d:1", i)).Code == http.StatusTooManyRequests && denied.Add(1) == 45 {
				close(release)
			}
		})
	}
	wg.Wait()
	if checked.Load() != 5 {
		t.Errorf("%d passwords were checked", checked.Load())
	}
}

// The cost of an answer by a language model is known when it has been given.
func TestSetCostSettlesDifference(t *testing.T) {
	lim := limiter(t, standingStill(), "tokens: 1000/1h")
	h := httplimit.Protect(lim, &httplimit.Options{
		Key: httplimit.Global, Cost: func(*http.Request) int64 { return 400 }, After: httplimit.ReportedCost,
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var cost int64
		if n, _ := fmt.Sscanf(r.Header.Get("X-Tokens"), "%d", &cost); n == 1 && !httplimit.SetCost(r.Context(), cost) {
			t.Error("SetCost found no middleware")
		}
	}))
	for _, step := range []struct {
		tokens string
		remain int64
	}{{"100", 900}, {"400", 500}, {"450", 50}} {
		if w := ask(h, alice, "X-Tokens", step.tokens); w.Code != 200 {
			t.Errorf("%s tokens: %d", step.tokens, w.Code)
		}
		if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != step.remain {
			t.Errorf("after %s tokens: %v, %v, want %d", step.tokens, d, err, step.remain)
		}
	}
	expect(t, "an estimate that does not fit", statuses(h, 1, alice, "X-Tokens", "1"), 429)
	if err := lim.Reset(t.Context(), "global"); err != nil {
		t.Fatal(err)
	}
	ask(h, alice, "X-Tokens", "5000")
	if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 0 {
		t.Errorf("what cost more than there was: %v, %v", d, err)
	}
	if err := lim.Reset(t.Context(), "global"); err != nil {
		t.Fatal(err)
	}
	ask(h, alice)
	if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 600 {
		t.Errorf("a request without a reported cost: %v, %v", d, err)
	}
	if httplimit.SetCost(t.Context(), 1) {
		t.Error("SetCost found middleware where there is none")
	}
}

// A negative cost, including the value of penstock.Reset, refunds what was taken
// and no more.
func TestSetCostNegativeCountsAsZero(t *testing.T) {
	for _, said := range []int64{-1, penstock.Reset} {
		lim := limiter(t, standingStill(), "1000/1h")
		if _, err := lim.AllowN(t.Context(), "global", 100); err != nil {
			t.Fatal(err)
		}
		h := httplimit.Protect(lim, &httplimit.Options{
			Key: httplimit.Global, Cost: func(*http.Request) int64 { return 400 }, After: httplimit.ReportedCost,
		})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), said) }))
		ask(h, alice)
		if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 900 {
			t.Errorf("what cost %d: %v, %v, want 900 to remain", said, d, err)
		}
	}
}

// Requests are counted by one limit, tokens by another, and both are told.
func TestSettleSeveralLimiters(t *testing.T) {
	store := standingStill()
	requests, tokens, money := limiter(t, store, "requests: 10/1h"), limiter(t, store, "tokens: 100/1h"), limiter(t, store, "money: 50/1h")
	cost := func(*http.Request) int64 { return 20 }
	inner := httplimit.Protect(requests, &httplimit.Options{
		Additional: []httplimit.Charge{{Limiter: tokens, Cost: cost, After: httplimit.ReportedCost}},
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 7) }))
	outer := httplimit.Protect(money, &httplimit.Options{
		After: func(r httplimit.Response) int64 { return r.Cost * 2 },
	})(inner)
	ask(outer, alice)
	for lim, want := range map[*penstock.Limiter]int64{requests: 9, tokens: 93, money: 36} {
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != want {
			t.Errorf("%v: %v, %v, want %d", lim.Limit(), d, err, want)
		}
	}
}

func TestCostHeader(t *testing.T) {
	for value, remain := range map[string]int64{"3": 97, "0": 100, "": 90, "-1": 90, "3.5": 90, "+3": 90, "99999999999999999999": 0, "1000": 0} {
		lim := limiter(t, standingStill(), "100/1h")
		h := httplimit.Protect(lim, &httplimit.Options{
			Cost: func(*http.Request) int64 { return 10 }, After: httplimit.CostHeader("x-cost"),
		})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", value) }))
		ask(h, alice)
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != remain {
			t.Errorf("X-Cost: %s: %v, %v, want %d", value, d, err, remain)
		}
	}
}

// A request that outlasts its window gives nothing back of the next one.
func TestSettleAfterWindowEndedRefundsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "2/10s fixed-window")
		h := httplimit.Protect(lim, &httplimit.Options{After: httplimit.OnlyFailures})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Slow") != "" {
				time.Sleep(15 * time.Second)
			}
		}))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { ask(h, alice, "X-Slow", "1") })
		}
		time.Sleep(12 * time.Second)
		if d, err := lim.AllowN(t.Context(), "203.0.113.1", 2); err != nil || !d.Allowed {
			t.Error(d, err)
		}
		wg.Wait()
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 0 {
			t.Errorf("%v, %v, want nothing to remain of this window", d, err)
		}
		time.Sleep(10 * time.Second)
		expect(t, "what is fast is free", statuses(h, 5, alice), 200, 200, 200, 200, 200)

		queue := inMemory(t, "1/15s leaky-bucket burst=5")
		h = httplimit.Protect(lim, &httplimit.Options{
			Key: httplimit.Global, After: httplimit.OnlyFailures, Additional: []httplimit.Charge{{Limiter: queue}},
		})(hello)
		expect(t, "the first in a queue", statuses(h, 1, alice), 200)
		wg.Go(func() { ask(h, alice) }) // is held for as long
		time.Sleep(12 * time.Second)
		if d, err := lim.AllowN(t.Context(), "global", 2); err != nil || !d.Allowed {
			t.Error(d, err)
		}
		wg.Wait()
		if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 0 {
			t.Errorf("after a queue: %v, %v, want nothing to remain of this window", d, err)
		}
	})
}

// A client that leaves is settled, and a store that is lost meanwhile is reported.
func TestSettleAfterClientDisconnected(t *testing.T) {
	lim := inMemory(t, "10/1h")
	ctx, leave := context.WithCancel(t.Context())
	h := httplimit.Protect(lim, &httplimit.Options{After: httplimit.OnlyFailures})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		leave()
	}))
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.RemoteAddr = alice
	h.ServeHTTP(httptest.NewRecorder(), r)
	if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 10 {
		t.Errorf("%v, %v", d, err)
	}

	lost, memory := errors.New("lost"), penstock.NewMemory(nil)
	breaking := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if r.Cost < 0 {
			return penstock.Decision{}, lost
		}
		return memory.Take(ctx, r)
	})
	var seen error
	h = httplimit.Protect(limiter(t, breaking, "10/1h"), &httplimit.Options{
		After: httplimit.OnlyFailures, OnError: func(_ *http.Request, err error) { seen = err }, Unavailable: httplimit.ServiceUnavailable,
	})(hello)
	if w := ask(h, alice); w.Code != 200 || w.Body.String() != "hello" || !errors.Is(seen, lost) {
		t.Errorf("%d %q, reported %v", w.Code, w.Body, seen)
	}
}

// Handlers find in the writer what they would find without middleware.
func TestStatusRecorderKeepsOptionalMethods(t *testing.T) {
	statuses := make(chan int, 1) // which are known a moment after the response
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/flush":
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, r.Proto)
		case "/copy":
			if _, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("copied")}); err != nil {
				t.Error(err)
			}
		case "/push":
			if err := w.(http.Pusher).Push("/", nil); !errors.Is(err, http.ErrNotSupported) { // by this client
				t.Error(err)
			}
			_, _ = w.(io.StringWriter).WriteString("pushed")
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusNotFound)
			w.WriteHeader(http.StatusOK) // too late
		case "/control":
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		case "/hijack":
			hijack(t, w)
		}
	})
	server := httptest.NewUnstartedServer(httplimit.Protect(inMemory(t, "1000/1h"), &httplimit.Options{
		After: func(r httplimit.Response) int64 { statuses <- r.Status; return r.Taken },
	})(handler))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for _, test := range []struct {
		path, body string
		seen       int
	}{{"/flush", "HTTP/2.0", 200}, {"/copy", "copied", 200}, {"/push", "pushed", 200}, {"/hints", "", 404}, {"/control", "", 200}} {
		got, seen := get(t, server.Client(), server.URL+test.path), <-statuses
		if got != test.body || seen != test.seen {
			t.Errorf("%s: %q, seen as %d, want %q, %d", test.path, got, seen, test.body, test.seen)
		}
	}
	plain := httptest.NewServer(server.Config.Handler)
	defer plain.Close()
	for path, want := range map[string]int{"/flush": 200, "/hijack": 101} {
		got, seen := get(t, plain.Client(), plain.URL+path), <-statuses
		if got != "HTTP/1.1" && got != "hijacked" || seen != want {
			t.Errorf("%s: %q, seen as %d", path, got, seen)
		}
	}
	// A writer that can do less is not made to look as if it could do more.
	w := httplimit.Protect(inMemory(t, "1000/1h"), &httplimit.Options{After: httplimit.OnlyFailures})(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if _, ok := w.(http.Flusher); ok {
				t.Error("flushes, although it cannot")
			}
		}))
	w.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil))
}

func hijack(t *testing.T, w http.ResponseWriter) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
	if err := rw.Flush(); err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A framework may have a writer of its own, which the handler writes to past the
// middleware, and which knows the status.
func TestStatusRecorderUsesFrameworkStatus(t *testing.T) {
	lim := inMemory(t, "10/1h")
	own := &ownWriter{ResponseWriter: httptest.NewRecorder()}
	h := httplimit.Protect(lim, &httplimit.Options{After: httplimit.OnlyFailures})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { own.WriteHeader(http.StatusUnauthorized) }))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = alice
	h.ServeHTTP(own, r)
	if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 9 {
		t.Errorf("%v, %v, want 9 to remain", d, err)
	}
}

type ownWriter struct {
	http.ResponseWriter
	status int
}

func (w *ownWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *ownWriter) Status() int { return w.status }

func (w *ownWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, errors.ErrUnsupported
}

// A handler that copied an empty file may still say what is wrong.
func TestStatusRecorderEmptyCopyStartsNoResponse(t *testing.T) {
	lim := inMemory(t, "10/1h")
	server := httptest.NewServer(httplimit.Protect(lim, &httplimit.Options{
		Key: httplimit.Global, After: httplimit.ResetOnSuccess,
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(strings.NewReader("nothing of this"), 0))
		w.WriteHeader(http.StatusUnauthorized)
	})))
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	server.Close()
	if d, err := lim.Peek(t.Context(), "global"); resp.StatusCode != http.StatusUnauthorized || err != nil || d.Remaining != 9 {
		t.Errorf("%d: %v, %v, want 9 to remain", resp.StatusCode, d, err)
	}
}

// failing is a writer whose client is gone.
type failing struct{ *httptest.ResponseRecorder }

func (failing) FlushError() error { return net.ErrClosed }

func TestStatusRecorderReportsFlushError(t *testing.T) {
	h := httplimit.Protect(inMemory(t, "10/1h"), &httplimit.Options{After: httplimit.OnlyFailures})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want %v", err, net.ErrClosed)
		}
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	h.ServeHTTP(failing{httptest.NewRecorder()}, r)
}

// A function that panics leaves only its own charge unsettled.
func TestAfterPanicSettlesTheOtherCharges(t *testing.T) {
	first, second := inMemory(t, "10/1h"), inMemory(t, "10/1h")
	h := httplimit.Protect(first, &httplimit.Options{
		After:      func(httplimit.Response) int64 { panic("a defect") },
		Additional: []httplimit.Charge{{Limiter: second, After: httplimit.OnlyFailures}},
	})(answering)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		r := httptest.NewRequest(http.MethodPost, "/200", nil)
		r.RemoteAddr = alice
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	for lim, want := range map[*penstock.Limiter]int64{first: 9, second: 10} {
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != want {
			t.Errorf("%v, %v, want %d remaining", d, err, want)
		}
	}
}
