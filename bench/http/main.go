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
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct{ *harness.Run }

// clients is how many there are.
func (b *bench) clients() int { return b.Size(10_000, 100) }

func newBench(stdout, stderr io.Writer) *bench {
	b := &bench{harness.New("http", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 80, Turn: 10 * time.Millisecond}, harness.Turns{Rounds: 5, Turn: 200 * time.Microsecond})
	b.Rivals = rivalModules()
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

// The hourly limits of clients that are always allowed, and of clients that are denied
// from the second request on.
const (
	plenty = 1_000_000_000
	once   = 1
)

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

// open opens middleware. If all requests are to be denied, each client has spent its
// limit.
func (b *bench) open(m middleware, denied bool) *subject {
	perHour := int64(plenty)
	if denied {
		perHour = once
	}
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
