// Command doors measures the daemon through its doors, each beside the floor under
// it: a bare gRPC server that answers a constant, redis-server's own INCR, a bare
// net/http server. Servers are processes of their own and share the machine with
// the load. Floor and daemon take turns, and what counts is the ratio within a
// pair of turns.
package main

import (
	"errors"
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

func main() {
	if floor := os.Getenv(floorVariable); floor != "" {
		os.Exit(serveFloor(floor))
	}
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A trial is one case.
type trial struct {
	name string
	run  func(*bench) error
}

var trials = []trial{
	{"rls", (*bench).rls},
	{"rlsredis", (*bench).rlsOnRedis},
	{"resp", (*bench).resp},
	{"http", (*bench).http},
	{"weight", (*bench).weigh},
}

// A bench is one run.
type bench struct {
	pairs    int
	turn     time.Duration
	keys     int // that are live when the daemon is weighed
	quick    bool
	daemon   string
	findings measure.Findings
	results  []result
	progress io.Writer
}

// A result is a line of the table of rates.
type result struct {
	title, who string
	rates      []float64
	p99        []float64 // milliseconds
	processor  []float64 // microseconds of the server a call
	beyond     []float64 // microseconds of what it asks in turn
	load       []float64 // microseconds of those who ask
	toFloor    measure.Spread
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

type options struct {
	pairs         int
	turn          time.Duration
	quick, strict bool
	only          *regexp.Regexp
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	fs := flag.NewFlagSet("doors", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.pairs, "pairs", 10, "how many pairs of turns each case has")
	fs.DurationVar(&o.turn, "turn", 2*time.Second, "how long one turn is")
	fs.BoolVar(&o.quick, "quick", false, "short turns, to see that everything runs; targets are not judged")
	fs.BoolVar(&o.strict, "strict", false, "end with a non-zero status when a target is missed")
	fs.StringVar(&only, "run", "", "run only the cases that match this regular expression: "+names())
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.pairs < 1 || o.turn <= 0 {
		return o, fmt.Errorf("%d pairs of %s: both must be more than zero", o.pairs, o.turn)
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
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "doors:", err)
		}
		return 2
	}
	b := &bench{pairs: o.pairs, turn: o.turn, keys: 1_000_000, quick: o.quick, progress: stderr}
	if o.quick {
		b.pairs, b.turn, b.keys = 1, 50*time.Millisecond, 10_000
	}
	done, err := b.build()
	if err != nil {
		fmt.Fprintln(stderr, "doors:", err)
		return 1
	}
	defer done()
	failed := b.runTrials(o.only)
	b.write(stdout, !o.quick)
	return status(stderr, failed, b.findings, o)
}

// runTrials returns the errors of the cases that did not measure what they should.
// The others are still worth reading.
func (b *bench) runTrials(only *regexp.Regexp) []error {
	var failed []error
	for _, t := range trials {
		if !only.MatchString(t.name) {
			continue
		}
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return failed
}

func status(stderr io.Writer, failed []error, fs measure.Findings, o options) int {
	for _, err := range failed {
		fmt.Fprintln(stderr, "doors: wrong workload:", err)
	}
	missed := 0
	if o.strict && !o.quick {
		missed = fs.Missed()
		fmt.Fprintf(stderr, "doors: %d targets missed\n", missed)
	}
	if len(failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}

func (b *bench) write(w io.Writer, judged bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d pairs of turns of %s.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.pairs, b.turn)
	b.findings.Write(w, judged)
	if len(b.results) == 0 {
		return
	}
	t := measure.Table{"case", "server", "thousand a second", "to its floor", "p99, ms", "server µs a call", "redis-server", "load"}
	t.Begin(w, "Rates: medians of the turns, in brackets the 10th to the 90th percentile of the pairs")
	for _, r := range b.results {
		t.Row(w, r.title, r.who, fmt.Sprintf("%.1f", measure.SpreadOf(r.rates).Median/1000),
			measure.TimesWithSpread(r.toFloor), medianOrDash(r.p99), medianOrDash(r.processor), medianOrDash(r.beyond), medianOrDash(r.load))
	}
}

func medianOrDash(xs []float64) string {
	if len(xs) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", measure.SpreadOf(xs).Median)
}
