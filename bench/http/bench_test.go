package main

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func quick() *bench {
	b := newBench(io.Discard, io.Discard)
	b.Quick, b.Rounds, b.Turn = true, 3, 50*time.Microsecond
	return b
}

// Allocations do not depend on the load of the machine, so these targets are checked
// even here.
func TestPenstockAllocatesLessThanRivals(t *testing.T) {
	for _, denied := range []bool{false, true} {
		subjects := quick().measure("", append([]middleware{ours, bare}, rivals...), denied)
		for _, s := range subjects[2:] {
			if mine := subjects[0].allocs; s.allocs <= mine {
				t.Errorf("denied %t: %s has %.1f allocations, penstock %.1f", denied, s.Name, s.allocs, mine)
			}
		}
	}
	silent := quick().measure("", []middleware{noHeaders, bare}, false)
	if more := silent[0].allocs - silent[1].allocs; more > 0.5 {
		t.Errorf("without header fields: %.1f allocations more than the handler alone", more)
	}
}

func TestCommandPrintsTable(t *testing.T) {
	var out, progress bytes.Buffer
	if got := command([]string{"-quick", "-run", "denied|silent"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		`\| denied, 100 clients, X-RateLimit fields \| faster, and fewer allocations, than every rival \| [\d.]+× .* \| not checked \|`,
		`\| denied \| go-chi/httprate \| \d+ \| [\d.]+× \([\d.]+–[\d.]+\) \| [\d.]+ \| 100 \| 100 % \|`,
		`\| allowed, without header fields \| the handler alone \| \d+ \|.*\| 0 % \|`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("no line like %s in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "| allowed |") {
		t.Errorf("-run ran other cases too:\n%s", &out)
	}
	for _, c := range rivals {
		if !strings.Contains(harness.Versions([]string{c.module}), c.module+" v") {
			t.Errorf("no version of %s", c.module)
		}
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-run", "("}, {"-rounds", "0"}, {"-round", "-1s"}, {"-fast"}} {
		var out, stderr bytes.Buffer
		if got := command(args, &out, &stderr); got != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exit status %d and %q, want 2 and a reason", args, got, &stderr)
		}
	}
}

// Each check is tested with a wrong workload.
func TestVerifyCatchesWrongWorkloads(t *testing.T) {
	refusing := middleware{name: "refusing", open: func(_ int64, _ http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
	}}
	noHeader := middleware{name: "no header", header: "X-Ratelimit-Remaining", open: bare.open}
	unlimited := middleware{name: "lenient", open: bare.open}
	for _, test := range []struct {
		middleware middleware
		denied     bool
		want       string
	}{
		{refusing, false, "denied, 0 failed; want at least 0, and 0 denied"},
		{refusing, true, "were denied at once"},
		{noHeader, false, "without what remains"},
		{unlimited, true, "0 denied, 0 failed; want at least 0, and"},
	} {
		if err := harness.Try(func() { quick().measure("", []middleware{test.middleware}, test.denied) }); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want something about %q", test.middleware.name, err, test.want)
		}
	}
	e := quick().open(ours, false)
	for _, r := range e.requests {
		r.RemoteAddr = e.requests[0].RemoteAddr
	}
	e.Run(100)
	if err := harness.Try(func() { e.verify(false, 100) }); err == nil || !strings.Contains(err.Error(), "1 clients sent requests") {
		t.Errorf("clients that are all one: %v", err)
	}
}

// Every contender has separate state for each client.
func TestRivalsSeparateClients(t *testing.T) {
	for _, c := range append([]middleware{ours, noHeaders}, rivals...) {
		e := quick().open(c, true)
		e.Run(100)
		if e.Total.Denied != 100 {
			t.Errorf("%s: %d of 100 spent clients were denied", c.name, e.Total.Denied)
		}
	}
}
