// Command http compares penstock's middleware with that of other limiters: the cost of a
// request on top of its handler, in time and in allocations. It prints Markdown.
//
//	go run ./http                    # everything, about a minute
//	go run ./http -run denied        # some cases
//	go run ./http -quick             # a moment, to see that it runs
//
// All limit each client by its address, in memory, and respond with X-RateLimit fields.
// They take turns in short rounds, so that other load on the machine affects all of them
// alike. Every case verifies its workload: how many clients sent requests, how many were
// denied, and the header fields.
package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
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

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct{ *harness.Run }

// clients is how many there are.
func (b *bench) clients() int { return b.Size(10_000, 100) }

func newBench(stdout, stderr io.Writer) *bench {
	b := &bench{harness.New("http", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 80, Turn: 10 * time.Millisecond}, harness.Turns{Rounds: 5, Turn: 200 * time.Microsecond})
	for _, m := range rivals {
		b.Rivals = append(b.Rivals, m.module)
	}
	b.Settings = func() string {
		return fmt.Sprintf("%d rounds of %s a contender, %s clients", b.Rounds, b.Turn, harness.Thousands(b.clients()))
	}
	return b
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := newBench(stdout, stderr)
	return b.Main(args, []harness.Case{
		{Name: "allowed", Run: func() { b.compare("allowed", false) }},
		{Name: "denied", Run: func() { b.compare("denied", true) }},
		{Name: "silent", Run: b.withoutHeaders},
	})
}

// compare measures all middleware in turns.
func (b *bench) compare(title string, denied bool) {
	subjects := b.measure(title, append([]middleware{ours, bare}, rivals...), denied)
	mine, others := subjects[0], subjects[2:]
	next := slices.MinFunc(others, func(s, t *subject) int { return cmp.Compare(s.Median("ns"), t.Median("ns")) })
	fewest := slices.MinFunc(others, func(s, t *subject) int { return cmp.Compare(s.allocs, t.allocs) }).allocs
	faster := next.To(mine, "ns")
	b.Find(title+", "+harness.Thousands(b.clients())+" clients, X-RateLimit fields", "faster, and fewer allocations, than every rival",
		faster.Median > 1 && mine.allocs < fewest-0.5,
		"%s faster than the next, %s; %.1f allocations, the next has %.1f", faster, next.Name, mine.allocs, fewest)
}

// withoutHeaders measures the cost without header fields.
func (b *bench) withoutHeaders() {
	const title = "allowed, without header fields"
	subjects := b.measure(title, []middleware{noHeaders, bare}, false)
	more := subjects[0].allocs - subjects[1].allocs
	b.Find(title, "≤ 2 allocations more than the handler alone", more < 2.5, "%.1f allocations more", more)
}

// measure measures middleware in turns, verifies the workload and adds rows to the table.
func (b *bench) measure(title string, all []middleware, denied bool) (subjects []*subject) {
	for _, m := range all {
		s := b.open(m, denied)
		s.Calibrate(b.Turn, 1)
		subjects = append(subjects, s)
	}
	harness.TakeTurns(b.Rounds, subjects...)
	t := b.Table("Speed: medians of the rounds, in brackets the 10th to the 90th percentile",
		"case", "middleware", "ns a request", "to penstock", "allocations", "clients", "denied")
	for _, s := range subjects {
		s.allocs = s.Allocations(max(b.clients(), 20_000))
		s.verify(denied, b.clients())
		t.Row(title, s.Name, harness.Decimals(0)(s.Median("ns")), s.To(subjects[0], "ns"),
			harness.Decimals(1)(s.allocs), harness.Thousands(s.clients()), fmt.Sprintf("%.0f %%", 100*float64(s.Total.Denied)/float64(s.Total.Calls)))
	}
	return subjects
}

// A subject is middleware that is measured.
type subject struct {
	*harness.Load
	middleware
	requests []*http.Request
	response *response
	allocs   float64
}

// open opens middleware, with a limit that allows all requests. If they are to be denied, each client has spent a
// limit of one.
func (b *bench) open(m middleware, denied bool) *subject {
	perHour := map[bool]int64{false: 1_000_000_000, true: 1}[denied]
	handler, w, requests := m.open(perHour, http.HandlerFunc(hello)), &response{header: http.Header{}}, requestsOf(b.clients())
	s := &subject{middleware: m, requests: requests, response: w}
	s.Load = harness.NewLoad(m.name, 1, nil, func(_, from, calls int) (t harness.Counts) {
		for i := from; i < from+calls; i++ {
			w.reset()
			handler.ServeHTTP(w, requests[i%len(requests)])
			t.Count(w.status == http.StatusOK, nil)
		}
		return t
	})
	if denied {
		s.Run(b.clients())
		if s.Total.Denied != 0 {
			harness.Failf("%s: %d of %d clients were denied at once", m.name, s.Total.Denied, b.clients())
		}
		s.Total = harness.Counts{}
	}
	return s
}

// clients counts the clients that have sent requests.
func (s *subject) clients() int {
	seen := map[string]bool{}
	for _, r := range s.requests[:min(s.Total.Calls, len(s.requests))] {
		seen[r.RemoteAddr[:strings.LastIndexByte(r.RemoteAddr, ':')]] = true
	}
	return len(seen)
}

// verify ends the case if the requests differ from the workload. A handler without
// limit never denies.
func (s *subject) verify(denied bool, clients int) {
	denied = denied && s.Name != bare.name
	harness.Check(s.Total.Verify(s.Name, 0, denied))
	switch {
	case s.clients() != clients:
		harness.Failf("%s: %d clients sent requests, want %d", s.Name, s.clients(), clients)
	case s.header != "" && s.response.header.Get(s.header) == "":
		harness.Failf("%s: the last response has the fields %v, without what remains", s.Name, s.response.header)
	case denied && s.response.status != http.StatusTooManyRequests:
		harness.Failf("%s: the last response has the status %d", s.Name, s.response.status)
	}
}

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
