// Command http measures penstock's middleware beside that of other limiters: what a
// request costs on top of its handler, in time and in allocations. It prints
// Markdown.
//
//	go run ./http                    # everything, about a minute
//	go run ./http -run denied        # some cases
//	go run ./http -quick             # a moment, to see that it runs
//
// All limit each client by its address, in memory, and tell it in X-RateLimit
// fields how it stands. They take turns in short rounds, so that whatever else the
// machine does falls on all of them alike. Every case proves that it measured what
// it says: how many clients asked, how many were denied, and what they were told.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// options are what the command line says.
type options struct {
	rounds        int
	length        time.Duration
	quick, strict bool
	only          *regexp.Regexp
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	fs := flag.NewFlagSet("http", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 80, "how many rounds each case has")
	fs.DurationVar(&o.length, "round", 10*time.Millisecond, "how long one contestant's turn is")
	fs.BoolVar(&o.quick, "quick", false, "few clients and short rounds, to see that everything runs; targets are not judged")
	fs.BoolVar(&o.strict, "strict", false, "end with a non-zero status when a target is missed")
	fs.StringVar(&only, "run", "", "run only the cases that match this regular expression: "+names())
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.length <= 0 {
		return o, fmt.Errorf("rounds %d of %s: both must be more than zero", o.rounds, o.length)
	}
	var err error
	o.only, err = regexp.Compile(only)
	return o, err
}

func names() string {
	var ns []string
	for _, t := range trials {
		ns = append(ns, t.name)
	}
	return strings.Join(ns, ", ")
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "http:", err)
		return 2
	}
	b := &bench{rounds: o.rounds, length: o.length, clients: 10_000}
	if o.quick {
		b.rounds, b.length, b.clients = min(o.rounds, 5), 200*time.Microsecond, 100
	}
	var failed []error
	for _, t := range trials {
		if !o.only.MatchString(t.name) {
			continue
		}
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
		runtime.GC()
	}
	b.write(stdout, o)
	return b.status(stderr, failed, o)
}

func (b *bench) status(stderr io.Writer, failed []error, o options) int {
	for _, err := range failed {
		fmt.Fprintln(stderr, "http: wrong workload:", err)
	}
	missed := 0
	if o.strict && !o.quick {
		missed = b.findings.Missed()
		fmt.Fprintf(stderr, "http: %d targets missed\n", missed)
	}
	if len(failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}

// write prints what was found, and on what and how it was measured.
func (b *bench) write(w io.Writer, o options) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d rounds of %s a contestant, %s clients.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		b.rounds, b.length, measure.Thousands(b.clients))
	if o.quick {
		fmt.Fprintln(w, "\nA quick run: few clients, few rounds, and no figure worth quoting.")
	}
	if vs := rivalVersions(); vs != "" {
		fmt.Fprintf(w, "\nRivals: %s.\n", vs)
	}
	b.findings.Write(w, !o.quick)
	t := measure.Table{"case", "middleware", "ns a request", "to penstock", "allocations", "clients", "denied"}
	t.Begin(w, "Speed: medians of the rounds, in brackets the 10th to the 90th percentile")
	for _, m := range b.timings {
		t.Row(w, m.title, m.who, fmt.Sprintf("%.0f", m.nanos.Median), measure.TimesWithSpread(m.toOurs),
			fmt.Sprintf("%.1f", m.allocs), measure.Thousands(m.clients), fmt.Sprintf("%.0f %%", 100*m.denied))
	}
}
