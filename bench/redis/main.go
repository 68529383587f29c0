// Command redis measures penstock's Redis store beside the limiters on Redis
// that Go programs use today, beside the designs that are commonly written about,
// and beside the floors: the least that a trip to Redis can cost. It starts a
// redis-server of its own and prints Markdown.
//
//	go run ./redis                      # some minutes
//	go run ./redis -run 'clients'       # some cases
//	go run ./redis -instructions        # with instructions counted, by valgrind
//	go run ./redis -tenmillion          # with ten million keys
//	go run ./redis -quick               # a few seconds, to see that it runs
//
// What matters are ratios, and these are medians over rounds in which the
// contestants take turns, so that whatever else the machine does falls on all of
// them alike. Every case proves that it measured what it says: that the keys are
// there and expire, and that every request was granted, counted by the server.
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

// options are what the command line says.
type options struct {
	rounds                   int
	length                   time.Duration
	quick, strict            bool
	instructions, tenMillion bool
	only                     *regexp.Regexp
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	fs := flag.NewFlagSet("redis", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 60, "how many rounds each case has; those by redis-benchmark a third")
	fs.DurationVar(&o.length, "round", 40*time.Millisecond, "how long one contestant's turn is")
	fs.BoolVar(&o.quick, "quick", false, "few keys and short rounds, to see that everything runs; targets are not judged")
	fs.BoolVar(&o.strict, "strict", false, "end with a non-zero status when a target is missed")
	fs.BoolVar(&o.instructions, "instructions", false, "count the server's instructions too, which needs valgrind and is slow")
	fs.BoolVar(&o.tenMillion, "tenmillion", false, "fill ten million keys too, which takes minutes and 3 GB")
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
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "redis:", err)
		}
		return 2
	}
	quietGoZero()
	b := &bench{rounds: o.rounds, length: o.length, sizes: fullSizes, progress: stderr}
	if o.quick {
		b.rounds, b.length, b.sizes = min(o.rounds, 3), 2*time.Millisecond, quickSizes
	}
	if b.server, err = startServer(nil); err != nil {
		fmt.Fprintln(stderr, "redis:", err)
		return 1
	}
	defer b.server.stop()
	failed := b.runTrials(o)
	b.writeHeader(stdout, o)
	b.report.write(stdout, !o.quick)
	return status(stderr, failed, &b.report, o)
}

// runTrials returns the errors of the cases that did not measure what they
// should. The others are still worth reading.
func (b *bench) runTrials(o options) []error {
	var failed []error
	for _, t := range trials {
		if !o.only.MatchString(t.name) || t.onlyFor != nil && !t.onlyFor(o) {
			continue
		}
		if err := t.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return failed
}

func status(stderr io.Writer, failed []error, r *report, o options) int {
	for _, err := range failed {
		fmt.Fprintln(stderr, "redis: wrong workload:", err)
	}
	missed := 0
	if o.strict && !o.quick {
		missed = r.Missed()
		fmt.Fprintf(stderr, "redis: %d targets missed\n", missed)
	}
	if len(failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}

// writeHeader says on what and how this was measured.
func (b *bench) writeHeader(w io.Writer, o options) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s, %s; %d rounds of %s a limiter, %d by redis-benchmark.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.server.version(),
		b.rounds, b.length, b.pressRounds())
	if o.quick {
		fmt.Fprintln(w, "\nA quick run: few keys, few rounds, and no figure worth quoting.")
	}
	var modules []string
	for _, c := range append(floors[:1:1], rivals...) {
		modules = append(modules, c.module)
	}
	if vs := measure.Versions(modules); vs != "" {
		fmt.Fprintf(w, "\nRivals: %s.\n", vs)
	}
}

func (s *server) version() string {
	info, _ := s.ask("INFO", "server")
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return "Redis " + v
		}
	}
	return "Redis of an unknown version"
}
