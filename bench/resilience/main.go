// Command resilience measures what the decorators around a store on Redis are for:
// hot keys with leases, abusers before a deny cache, a Redis that hangs or fails
// over behind a fallback, and what they cost while all is well. It starts servers of
// its own and prints Markdown.
//
//	go run ./resilience                 # some minutes
//	go run ./resilience -run 'lease'    # some cases
//	go run ./resilience -quick          # a few seconds, to see that it runs
//
// Calls to Redis are counted by Redis. Ratios are medians over rounds in which the
// contestants take turns.
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
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A trial is one case.
type trial struct {
	name string
	run  func(*bench) error
}

var trials = []trial{
	{"lease", (*bench).leaseHotKey},
	{"overasked", (*bench).leaseAboveItsRate},
	{"abusers", (*bench).denyAbusers},
	{"saturated", (*bench).denySaturated},
	{"healthy", (*bench).healthyPath},
	{"hang", (*bench).hang},
	{"sentinel", (*bench).sentinelFailover},
	{"cluster", (*bench).clusterFailover},
}

// A bench is one run.
type bench struct {
	rounds   int
	turn     time.Duration // of a contestant in a round
	span     time.Duration // of a case under paced load
	findings measure.Findings
	progress io.Writer
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

type options struct {
	rounds        int
	turn, span    time.Duration
	quick, strict bool
	only          *regexp.Regexp
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	fs := flag.NewFlagSet("resilience", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 20, "how many rounds each comparison has")
	fs.DurationVar(&o.turn, "turn", 250*time.Millisecond, "how long one contestant's turn is")
	fs.DurationVar(&o.span, "span", 5*time.Second, "how long a case under paced load is")
	fs.BoolVar(&o.quick, "quick", false, "short turns, to see that everything runs; targets are not judged")
	fs.BoolVar(&o.strict, "strict", false, "end with a non-zero status when a target is missed")
	fs.StringVar(&only, "run", "", "run only the cases that match this regular expression: "+names())
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.turn <= 0 || o.span <= 0 {
		return o, fmt.Errorf("%d rounds of %s and spans of %s: all must be more than zero", o.rounds, o.turn, o.span)
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
			fmt.Fprintln(stderr, "resilience:", err)
		}
		return 2
	}
	b := &bench{rounds: o.rounds, turn: o.turn, span: o.span, progress: stderr}
	if o.quick {
		b.rounds, b.turn, b.span = 2, 50*time.Millisecond, 600*time.Millisecond
	}
	failed := b.runTrials(o.only)
	fmt.Fprintf(stdout, "%s, %d logical cores, %s %s/%s; %d rounds of %s, paced load for %s.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.rounds, b.turn, b.span)
	b.findings.Write(stdout, !o.quick)
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
		b.say("%s …", t.name)
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return failed
}

func status(stderr io.Writer, failed []error, fs measure.Findings, o options) int {
	for _, err := range failed {
		fmt.Fprintln(stderr, "resilience: wrong workload:", err)
	}
	missed := 0
	if o.strict && !o.quick {
		missed = fs.Missed()
		fmt.Fprintf(stderr, "resilience: %d targets missed\n", missed)
	}
	if len(failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}
