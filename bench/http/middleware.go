package main

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/didip/tollbooth/v7"
	tollboothlimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	ulule "github.com/ulule/limiter/v3"
	ululehttp "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/httplimit"
)

// A middleware wraps a handler with a limit of so many requests an hour for each client.
type middleware struct {
	name   string
	module string // whose version is printed; "" for none
	header string // the field with what remains; "" if there is none
	open   func(perHour int64, next http.Handler) http.Handler
}

// bare is the handler without a limit.
var bare = middleware{name: "the handler alone", open: func(_ int64, next http.Handler) http.Handler { return next }}

var (
	ours      = middleware{"penstock", "", "X-Ratelimit-Remaining", openPenstock(httplimit.XRateLimit)}
	noHeaders = middleware{"penstock, without header fields", "", "", openPenstock(httplimit.NoHeaders)}
)

// rivals are the middleware that Go programs use today, configured as their
// documentation says, with the client's address as key.
var rivals = []middleware{
	{"go-chi/httprate", "github.com/go-chi/httprate", "X-Ratelimit-Remaining", openHTTPRate},
	{"didip/tollbooth", "github.com/didip/tollbooth/v7", "Ratelimit-Remaining", openTollbooth},
	{"ulule/limiter", "github.com/ulule/limiter/v3", "X-Ratelimit-Remaining", openUlule},
}

func openPenstock(form httplimit.Form) func(int64, http.Handler) http.Handler {
	return func(perHour int64, next http.Handler) http.Handler {
		lim := harness.Must(penstock.New(penstock.NewMemory(nil), penstock.PerHour(perHour)))
		return httplimit.Protect(lim, &httplimit.Options{Headers: form})(next)
	}
}

func openHTTPRate(perHour int64, next http.Handler) http.Handler {
	return httprate.LimitBy(int(perHour), time.Hour, func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	})(next)
}

func openTollbooth(perHour int64, next http.Handler) http.Handler {
	lim := tollbooth.NewLimiter(float64(perHour)/3600, &tollboothlimiter.ExpirableOptions{DefaultExpirationTTL: time.Hour})
	lim.SetIPLookups([]string{"RemoteAddr"}).SetBurst(int(perHour))
	return tollbooth.LimitHandler(lim, next)
}

// openUlule disables its cleaner during the run, which does not slow it down.
func openUlule(perHour int64, next http.Handler) http.Handler {
	store := ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: "limiter", CleanUpInterval: time.Hour})
	lim := ulule.New(store, ulule.Rate{Period: time.Hour, Limit: perHour})
	return ululehttp.NewMiddleware(lim).Handler(next)
}

// rivalModules are the modules of the rivals, for their versions.
func rivalModules() (modules []string) {
	for _, m := range rivals {
		modules = append(modules, m.module)
	}
	return modules
}

// requestsOf returns one request from each of so many addresses.
func requestsOf(n int) []*http.Request {
	requests := make([]*http.Request, n)
	for i := range requests {
		requests[i] = &http.Request{
			Method: http.MethodGet, URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Host: "api.example", Header: http.Header{},
			RemoteAddr: fmt.Sprintf("198.%d.%d.%d:%d", 18+i>>16, i>>8&255, i&255, 1024+i%50_000),
		}
	}
	return requests
}

// A response keeps only its status and header fields. It is reused for every request,
// unlike in a server, by all contenders alike.
type response struct {
	header http.Header
	status int
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) { r.status = status }

func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return len(b), nil
}

func (r *response) reset() {
	clear(r.header)
	r.status = 0
}

// helloBody is the response of the handler behind all limits.
var helloBody = []byte("hello")

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(helloBody) }
