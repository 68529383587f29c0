package main

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

func quick() *bench { return &bench{rounds: 3, length: 50 * time.Microsecond, clients: 100} }

func TestCasesRunQuick(t *testing.T) {
	for _, trial := range cases {
		t.Run(trial.name, func(t *testing.T) {
			b := quick()
			if err := trial.run(b); err != nil {
				t.Fatal(err)
			}
			if len(b.findings) != 1 || len(b.timings) < 2 {
				t.Errorf("found %v, timed %v", b.findings, b.timings)
			}
		})
	}
}

// Allocations do not depend on the load of the machine, so these targets are checked
// even here.
func TestPenstockAllocatesLessThanRivals(t *testing.T) {
	b := quick()
	for _, trial := range cases {
		if err := trial.run(b); err != nil {
			t.Fatal(err)
		}
	}
	mine, base := map[string]float64{}, map[string]float64{}
	for _, m := range b.timings {
		switch m.name {
		case ours.name, noHeaders.name:
			mine[m.title] = m.allocs
		case bare.name:
			base[m.title] = m.allocs
		default:
			if m.allocs <= mine[m.title] {
				t.Errorf("%s: %s has %.1f allocations, penstock %.1f", m.title, m.name, m.allocs, mine[m.title])
			}
		}
	}
	const title = "allowed, without header fields"
	if more := mine[title] - base[title]; more > 0.5 {
		t.Errorf("%s: %.1f allocations more than the handler alone", title, more)
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
		if !strings.Contains(rivalVersions(), c.module+" v") {
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
	refusing := contender{name: "refusing", open: func(_ int64, _ http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }), nil
	}}
	noHeader := contender{name: "no header", header: "X-Ratelimit-Remaining", open: bare.open}
	unlimited := contender{name: "lenient", open: bare.open}
	for _, test := range []struct {
		contender contender
		denied    bool
		want      string
	}{
		{refusing, false, "were denied, want 0"},
		{refusing, true, "were denied at once"},
		{noHeader, false, "without what remains"},
		{unlimited, true, "were denied, want"},
	} {
		if _, err := quick().runAll([]contender{test.contender}, test.denied); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want something about %q", test.contender.name, err, test.want)
		}
	}
	e, err := quick().open(ours, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range e.requests {
		r.RemoteAddr = e.requests[0].RemoteAddr
	}
	e.countAllocations()
	if err := e.verify(false, 100); err == nil || !strings.Contains(err.Error(), "1 clients sent requests") {
		t.Errorf("clients that are all one: %v", err)
	}
}

// Every contender has separate state for each client.
func TestRivalsSeparateClients(t *testing.T) {
	for _, c := range append([]contender{ours, noHeaders}, rivals...) {
		e, err := quick().open(c, true)
		if err != nil {
			t.Error(err)
			continue
		}
		e.runCalls(100)
		if e.denied != 100 {
			t.Errorf("%s: %d of 100 spent clients were denied", c.name, e.denied)
		}
	}
}
