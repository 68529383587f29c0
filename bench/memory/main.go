// Command memory measures penstock's memory store beside the rate limiters that
// Go programs use today, and beside the floor: the least that any of them could
// do. It prints Markdown.
//
//	go run ./memory                     # everything, some minutes
//	go run ./memory -run 'hot|many'     # some cases
//	go run ./memory -quick              # a few seconds, to see that it runs
//
// What matters are ratios, and these are medians over many short rounds in
// which the contestants take turns, so that whatever else the machine does
// falls on all of them alike. Every case proves that it measured what it says:
// how many different keys were asked about, and how many calls were denied.
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

func main() {
	if asked, err := weighIfAsked(); asked {
		exitOn(err)
		return
	}
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

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
	fs := flag.NewFlagSet("memory", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 80, "how many rounds each case has")
	fs.DurationVar(&o.length, "round", 10*time.Millisecond, "how long one contestant's turn is")
	fs.BoolVar(&o.quick, "quick", false, "few keys and short rounds, to see that everything runs; targets are not judged")
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
		fmt.Fprintln(stderr, "memory:", err)
		return 2
	}
	b := &bench{rounds: o.rounds, length: o.length, sizes: fullSizes, progress: stderr}
	if o.quick {
		b.rounds, b.length, b.sizes = min(o.rounds, 5), 200*time.Microsecond, quickSizes
	}
	failed := b.runTrials(o.only)
	writeHeader(stdout, b, o)
	b.report.write(stdout, !o.quick)
	return status(stderr, failed, &b.report, o)
}

// runTrials returns the errors of the cases that did not measure what they
// should. The others are still worth reading.
func (b *bench) runTrials(only *regexp.Regexp) []error {
	var failed []error
	for _, t := range trials {
		if !only.MatchString(t.name) {
			continue
		}
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
		runtime.GC()
	}
	return failed
}

func status(stderr io.Writer, failed []error, r *report, o options) int {
	for _, err := range failed {
		fmt.Fprintln(stderr, "memory: wrong workload:", err)
	}
	missed := 0
	if o.strict && !o.quick {
		missed = r.Missed()
		fmt.Fprintf(stderr, "memory: %d targets missed\n", missed)
	}
	if len(failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}

// writeHeader says on what and how this was measured.
func writeHeader(w io.Writer, b *bench, o options) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d rounds of %s a contestant, %d-byte keys.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.rounds, b.length, keySize)
	if o.quick {
		fmt.Fprintln(w, "\nA quick run: few keys, few rounds, and no figure worth quoting.")
	}
	if vs := rivalVersions(); vs != "" {
		fmt.Fprintf(w, "\nRivals: %s.\n", vs)
	}
}

// rivalVersions lists the rivals' modules as this program was built with them.
func rivalVersions() string {
	var modules []string
	for _, c := range rivals {
		modules = append(modules, c.module)
	}
	return measure.Versions(modules)
}
