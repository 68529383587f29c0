package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// must lets examples be short.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// show sends a request and prints what comes back, but for times, which depend on
// how fast this machine is.
func show(h http.Handler, method, path string, fields ...string) {
	r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
	r.Header.Set("X-API-Key", "ada")
	h.ServeHTTP(w, r)
	fmt.Print(w.Code)
	for _, name := range fields {
		value, _, _ := strings.Cut(w.Header().Get(name), ";t=")
		fmt.Printf(" %s: %s", name, value)
	}
	fmt.Println()
}

// One line protects a service.
func ExampleProtect() {
	store := penstock.NewMemory(nil)
	lim := must(penstock.New(store, penstock.PerHour(2)))
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})

	protected := httplimit.Protect(lim, nil)(mux)

	for range 3 {
		show(protected, http.MethodGet, "/", "RateLimit")
	}
	// Output:
	// 200 RateLimit: "default";r=1
	// 200 RateLimit: "default";r=0
	// 429 RateLimit: "default";r=0
}

// A request is charged to an address, a customer and the whole service, or to none.
func ExampleProtect_several() {
	store := penstock.NewMemory(nil)
	perAddress := must(penstock.New(store, penstock.PerSecond(10).WithName("address")))
	perCustomer := must(penstock.New(store, penstock.PerHour(1).WithName("customer")))
	forAll := must(penstock.New(store, penstock.PerSecond(1000).WithName("all")))

	protect := httplimit.Protect(perAddress, &httplimit.Options{
		Additional: []httplimit.Charge{
			{Limiter: perCustomer, Key: httplimit.Header("X-API-Key")},
			{Limiter: forAll, Key: httplimit.Global},
		},
		Headers: httplimit.XRateLimit,
	})

	h := protect(http.NotFoundHandler())
	show(h, http.MethodGet, "/", "X-RateLimit-Limit")
	show(h, http.MethodGet, "/", "X-RateLimit-Limit")
	// Output:
	// 404 X-RateLimit-Limit: 1
	// 429 X-RateLimit-Limit: 1
}

// A login form counts wrong passwords, and forgets them after a right one.
func ExampleResetOnSuccess() {
	lim := must(penstock.New(penstock.NewMemory(nil), penstock.Per(2, 15*time.Minute)))
	protect := httplimit.Protect(lim, &httplimit.Options{
		Key:   func(r *http.Request) string { return r.FormValue("user") },
		After: httplimit.ResetOnSuccess,
	})
	login := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "right" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))

	for _, password := range []string{"wrong", "right", "wrong", "wrong", "right"} {
		show(login, http.MethodPost, "/?user=alice&password="+password)
	}
	// Output:
	// 401
	// 200
	// 401
	// 401
	// 429
}

// What an answer cost is known when it was given: an estimate is taken first, and
// what was not used is refunded.
func ExampleSetCost() {
	store := penstock.NewMemory(nil)
	tokens := must(penstock.New(store, penstock.PerDay(1000).WithName("tokens")))
	protect := httplimit.Protect(tokens, &httplimit.Options{
		Key:   httplimit.Header("X-API-Key"),
		Cost:  func(*http.Request) int64 { return 400 },
		After: httplimit.ReportedCost,
	})
	answer := protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		httplimit.SetCost(r.Context(), 50)
	}))

	for range 3 {
		show(answer, http.MethodPost, "/", "RateLimit")
	}
	// Output:
	// 200 RateLimit: "tokens";r=600
	// 200 RateLimit: "tokens";r=550
	// 200 RateLimit: "tokens";r=500
}

// A client that keeps to two requests a second, together with all other processes
// if the store is on Redis.
func ExamplePace() {
	lim := must(penstock.New(penstock.NewMemory(nil), penstock.PerSecond(2).WithBurst(1)))
	client := &http.Client{Transport: httplimit.Pace(lim, nil)}

	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	resp := must(client.Get(server.URL))
	fmt.Println(resp.StatusCode, resp.Body.Close())
	// Output:
	// 404 <nil>
}

// A request is sent again within a budget, and answered from a cache if that fails as well, or if the
// breaker is open.
func ExampleRetry() {
	sent := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent++; r.URL.Path == "/down" || sent == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, "fresh")
	}))
	defer server.Close()

	client := &http.Client{Transport: httplimit.Retry(nil, &httplimit.RetryOptions{
		Transport: httplimit.Break(nil, nil),
		Instead: func(r *http.Request, resp *http.Response, _ error) (*http.Response, error) {
			if resp != nil { // nil if the breaker is open
				_ = resp.Body.Close()
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("stale")), Request: r}, nil
		},
	})}
	for _, path := range []string{"/", "/down"} {
		sent = 0
		resp := must(client.Get(server.URL + path))
		body := must(io.ReadAll(resp.Body))
		fmt.Printf("%s after %d requests, %v\n", body, sent, resp.Body.Close())
	}
	// Output:
	// fresh after 2 requests, <nil>
	// stale after 3 requests, <nil>
}

// SetHeaders works with any decision.
func ExampleForm_SetHeaders() {
	h := http.Header{}
	httplimit.IETF.SetHeaders(h, []httplimit.Answer{{
		Policy:   "reads",
		Limit:    penstock.PerMinute(100),
		Decision: penstock.Decision{Limit: 100, RetryAfter: 600 * time.Millisecond, ResetAfter: time.Minute},
	}})
	fmt.Println(h.Get("RateLimit-Policy"))
	fmt.Println(h.Get("RateLimit"))
	fmt.Println("Retry-After:", h.Get("Retry-After"))
	// Output:
	// "reads";q=100;w=60
	// "reads";r=0;t=1
	// Retry-After: 1
}
