package main

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A bench is one run: how long and how large, and what it has found so far.
type bench struct {
	rounds   int
	length   time.Duration // of a round
	clients  int
	findings measure.Findings
	timings  []timing
}

// A timing is one contestant's line of the table.
type timing struct {
	title, who    string
	nanos, toOurs measure.Spread
	allocs        float64
	clients       int
	denied        float64 // their share
}

// A trial is a few lines of the table. Its error means that it did not measure
// what it should; a missed target is a finding.
type trial struct {
	name string
	run  func(b *bench) error
}

var trials = []trial{
	{"allowed", func(b *bench) error { return b.race("allowed", false) }},
	{"denied", func(b *bench) error { return b.race("denied", true) }},
	{"silent", (*bench).withoutHeaders},
}

// What an hour has for a client that is to be allowed, and for one that is to be
// denied from the second request on.
const (
	plenty = 1_000_000_000
	once   = 1
)

// race lets all middleware take turns.
func (b *bench) race(title string, denied bool) error {
	entrants, err := b.enter(append([]contestant{ours, bare}, rivals...), denied)
	if err != nil {
		return err
	}
	next, fewest := entrants[2], entrants[2].allocs
	for _, e := range entrants[2:] {
		if e.spread().Median < next.spread().Median {
			next = e
		}
		fewest = min(fewest, e.allocs)
	}
	faster := measure.SpreadOf(measure.Ratios(next.nanos, entrants[0].nanos))
	b.findings.Add(title+", "+measure.Thousands(b.clients)+" clients, X-RateLimit fields", "faster, and fewer allocations, than every rival",
		faster.Median > 1 && entrants[0].allocs < fewest-0.5,
		"%s faster than the next, %s; %.1f allocations, the next has %.1f",
		measure.TimesWithSpread(faster), next.name, entrants[0].allocs, fewest)
	b.add(title, entrants)
	return nil
}

// withoutHeaders measures what is left when clients are told nothing.
func (b *bench) withoutHeaders() error {
	entrants, err := b.enter([]contestant{silent, bare}, false)
	if err != nil {
		return err
	}
	more := entrants[0].allocs - entrants[1].allocs
	b.findings.Add("allowed, without header fields", "≤ 2 allocations more than the handler alone", more < 2.5,
		"%.1f allocations more", more)
	b.add("allowed, without header fields", entrants)
	return nil
}

func (b *bench) add(title string, entrants []*entrant) {
	for _, e := range entrants {
		b.timings = append(b.timings, timing{
			title: title, who: e.name, nanos: e.spread(), toOurs: measure.SpreadOf(measure.Ratios(e.nanos, entrants[0].nanos)),
			allocs: e.allocs, clients: len(e.seen), denied: float64(e.denied) / float64(e.calls),
		})
	}
}

// enter runs the contestants and proves that they did what they should.
func (b *bench) enter(contestants []contestant, denied bool) ([]*entrant, error) {
	var entrants []*entrant
	for _, c := range contestants {
		e, err := b.open(c, denied)
		if err != nil {
			return nil, err
		}
		entrants = append(entrants, e)
	}
	for _, e := range entrants {
		e.calibrate(b.length)
	}
	for range b.rounds {
		for _, e := range entrants {
			e.nanos = append(e.nanos, float64(e.lap(e.laps))/float64(e.laps))
		}
	}
	for _, e := range entrants {
		e.countAllocations()
		if err := e.prove(denied, b.clients); err != nil {
			return nil, err
		}
	}
	return entrants, nil
}

// An entrant is a contestant in a race.
type entrant struct {
	contestant
	handler  http.Handler
	requests []*http.Request
	response *response
	at       int // among the requests
	laps     int // requests a round

	nanos         []float64
	allocs        float64
	calls, denied int
	seen          map[string]bool // the addresses that were asked from
}

// open opens a contestant. Where all are to be denied, each client has spent what
// it had.
func (b *bench) open(c contestant, denied bool) (*entrant, error) {
	perHour := int64(plenty)
	if denied {
		perHour = once
	}
	h, err := c.open(perHour, http.HandlerFunc(greet))
	if err != nil {
		return nil, err
	}
	e := &entrant{contestant: c, handler: h, requests: clients(b.clients), response: newResponse(), seen: map[string]bool{}}
	if denied {
		e.lap(b.clients)
		if e.denied != 0 {
			return nil, fmt.Errorf("%s: %d of %d clients were denied at once", c.name, e.denied, b.clients)
		}
		e.calls, e.denied = 0, 0
	}
	return e, nil
}

func (e *entrant) spread() measure.Spread { return measure.SpreadOf(e.nanos) }

func (e *entrant) calibrate(length time.Duration) {
	n := 64
	took := e.lap(n)
	for took < length/4 {
		n *= 4
		took = e.lap(n)
	}
	e.laps = max(int(int64(n)*int64(length)/int64(took)), 1)
}

// lap sends that many requests, each from the next client.
func (e *entrant) lap(n int) time.Duration {
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

// countAllocations counts over one more lap, by which every client has asked.
func (e *entrant) countAllocations() {
	n := max(len(e.requests), 20_000)
	before := mallocs()
	e.lap(n)
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

// prove says in what the requests differed from what they should have been. A
// handler that nobody protects denies nobody.
func (e *entrant) prove(denied bool, clients int) error {
	want := 0
	if denied && e.name != bare.name {
		want = e.calls
	}
	switch {
	case e.denied != want:
		return fmt.Errorf("%s: %d of %d requests were denied, want %d", e.name, e.denied, e.calls, want)
	case len(e.seen) != clients:
		return fmt.Errorf("%s: %d clients asked, want %d", e.name, len(e.seen), clients)
	}
	if got := e.response.header.Get(e.tells); e.tells != "" && got == "" {
		return fmt.Errorf("%s: the last client was told %v, and not what remains", e.name, e.response.header)
	}
	if status := e.response.status; want > 0 && status != http.StatusTooManyRequests {
		return fmt.Errorf("%s: the last client was answered %d", e.name, status)
	}
	return nil
}
