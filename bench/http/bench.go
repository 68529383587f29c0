package main

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A bench is one run: its length, its sizes and its results so far.
type bench struct {
	rounds   int
	length   time.Duration // of a round
	clients  int
	findings measure.Findings
	timings  []timing
}

// A timing is one contender's row of the table.
type timing struct {
	title, name   string
	nanos, toOurs measure.Spread
	allocs        float64
	clients       int
	denied        float64 // their share
}

// A benchCase is a few rows of the table. Its error means that the workload was wrong; a
// missed target is a finding.
type benchCase struct {
	name string
	run  func(b *bench) error
}

var cases = []benchCase{
	{"allowed", func(b *bench) error { return b.compare("allowed", false) }},
	{"denied", func(b *bench) error { return b.compare("denied", true) }},
	{"silent", (*bench).withoutHeaders},
}

// The hourly limits of clients that are always allowed, and of clients that are denied
// from the second request on.
const (
	plenty = 1_000_000_000
	once   = 1
)

// compare measures all middleware in turns.
func (b *bench) compare(title string, denied bool) error {
	runners, err := b.runAll(append([]contender{ours, bare}, rivals...), denied)
	if err != nil {
		return err
	}
	next, fewest := runners[2], runners[2].allocs
	for _, e := range runners[2:] {
		if e.spread().Median < next.spread().Median {
			next = e
		}
		fewest = min(fewest, e.allocs)
	}
	faster := measure.SpreadOf(measure.Ratios(next.nanos, runners[0].nanos))
	b.findings.Add(title+", "+measure.Thousands(b.clients)+" clients, X-RateLimit fields", "faster, and fewer allocations, than every rival",
		faster.Median > 1 && runners[0].allocs < fewest-0.5,
		"%s faster than the next, %s; %.1f allocations, the next has %.1f",
		measure.TimesWithSpread(faster), next.name, runners[0].allocs, fewest)
	b.add(title, runners)
	return nil
}

// withoutHeaders measures the cost without header fields.
func (b *bench) withoutHeaders() error {
	runners, err := b.runAll([]contender{noHeaders, bare}, false)
	if err != nil {
		return err
	}
	more := runners[0].allocs - runners[1].allocs
	b.findings.Add("allowed, without header fields", "≤ 2 allocations more than the handler alone", more < 2.5,
		"%.1f allocations more", more)
	b.add("allowed, without header fields", runners)
	return nil
}

func (b *bench) add(title string, runners []*runner) {
	for _, e := range runners {
		b.timings = append(b.timings, timing{
			title: title, name: e.name, nanos: e.spread(), toOurs: measure.SpreadOf(measure.Ratios(e.nanos, runners[0].nanos)),
			allocs: e.allocs, clients: len(e.seen), denied: float64(e.denied) / float64(e.calls),
		})
	}
}

// runAll runs the contenders and verifies the workload.
func (b *bench) runAll(contenders []contender, denied bool) ([]*runner, error) {
	var runners []*runner
	for _, c := range contenders {
		e, err := b.open(c, denied)
		if err != nil {
			return nil, err
		}
		runners = append(runners, e)
	}
	for _, e := range runners {
		e.calibrate(b.length)
	}
	for range b.rounds {
		for _, e := range runners {
			e.nanos = append(e.nanos, float64(e.runCalls(e.laps))/float64(e.laps))
		}
	}
	for _, e := range runners {
		e.countAllocations()
		if err := e.verify(denied, b.clients); err != nil {
			return nil, err
		}
	}
	return runners, nil
}

// A runner sends requests to a contender, and holds its measurements.
type runner struct {
	contender
	handler  http.Handler
	requests []*http.Request
	response *response
	at       int // among the requests
	laps     int // requests a round

	nanos         []float64
	allocs        float64
	calls, denied int
	seen          map[string]bool // of client addresses
}

// open opens a contender. If all requests are to be denied, each client has spent its
// limit.
func (b *bench) open(c contender, denied bool) (*runner, error) {
	perHour := int64(plenty)
	if denied {
		perHour = once
	}
	h, err := c.open(perHour, http.HandlerFunc(hello))
	if err != nil {
		return nil, err
	}
	e := &runner{contender: c, handler: h, requests: clients(b.clients), response: newResponse(), seen: map[string]bool{}}
	if denied {
		e.runCalls(b.clients)
		if e.denied != 0 {
			return nil, fmt.Errorf("%s: %d of %d clients were denied at once", c.name, e.denied, b.clients)
		}
		e.calls, e.denied = 0, 0
	}
	return e, nil
}

func (e *runner) spread() measure.Spread { return measure.SpreadOf(e.nanos) }

func (e *runner) calibrate(length time.Duration) {
	n := 64
	took := e.runCalls(n)
	for took < length/4 {
		n *= 4
		took = e.runCalls(n)
	}
	e.laps = max(int(int64(n)*int64(length)/int64(took)), 1)
}

// runCalls sends that many requests, each from the next client.
func (e *runner) runCalls(n int) time.Duration {
	denied, w := 0, e.response
	begin := time.Now()
	for range n {
		w.reset()
		e.handler.ServeHTTP(w, e.requests[e.at])
		if w.status != http.StatusOK {
			denied++
		}
		if e.at++; e.at == len(e.requests) {
			e.at = 0
		}
	}
	took := time.Since(begin)
	e.calls += n
	e.denied += denied
	return took
}

// countAllocations counts during one more request of every client.
func (e *runner) countAllocations() {
	n := max(len(e.requests), 20_000)
	before := mallocs()
	e.runCalls(n)
	e.allocs = float64(mallocs()-before) / float64(n)
	for _, r := range e.requests[:min(e.calls, len(e.requests))] {
		e.seen[r.RemoteAddr[:strings.LastIndexByte(r.RemoteAddr, ':')]] = true
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// verify returns an error if the requests differ from the workload. A handler without
// limit never denies.
func (e *runner) verify(denied bool, clients int) error {
	want := 0
	if denied && e.name != bare.name {
		want = e.calls
	}
	switch {
	case e.denied != want:
		return fmt.Errorf("%s: %d of %d requests were denied, want %d", e.name, e.denied, e.calls, want)
	case len(e.seen) != clients:
		return fmt.Errorf("%s: %d clients sent requests, want %d", e.name, len(e.seen), clients)
	}
	if got := e.response.header.Get(e.header); e.header != "" && got == "" {
		return fmt.Errorf("%s: the last response has the fields %v, without what remains", e.name, e.response.header)
	}
	if status := e.response.status; want > 0 && status != http.StatusTooManyRequests {
		return fmt.Errorf("%s: the last response has the status %d", e.name, status)
	}
	return nil
}
