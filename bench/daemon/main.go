// Command doors measures the daemon through its doors, each beside the floor under
// it: a bare gRPC server that answers a constant, redis-server's own INCR, a bare
// net/http server. Servers are processes of their own and share the machine with
// the load. Floor and daemon take turns, and what counts is the ratio within a
// pair of turns.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
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

func names() (all []string) {
	for _, t := range trials {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{keys: 1_000_000, progress: stderr}
	c := measure.NewCommand("doors", stderr, names())
	c.Flags.IntVar(&b.pairs, "pairs", 10, "how many pairs of turns each case has")
	c.Flags.DurationVar(&b.turn, "turn", 2*time.Second, "how long one turn is")
	if !c.Parse(args, b.check) {
		return 2
	}
	if c.Quick {
		b.quick, b.pairs, b.turn, b.keys = true, 1, 50*time.Millisecond, 10_000
	}
	done, err := b.build()
	if err != nil {
		c.Complain(err)
		return 1
	}
	defer done()
	for _, t := range trials {
		if c.Wants(t.name) {
			c.Note(t.name, t.run(b))
		}
	}
	b.write(stdout, !c.Quick)
	return c.Status(b.findings)
}

func (b *bench) check() error {
	if b.pairs < 1 || b.turn <= 0 {
		return fmt.Errorf("%d pairs of %s: both must be more than zero", b.pairs, b.turn)
	}
	return nil
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
