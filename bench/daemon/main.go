// Command daemon measures the daemon through each of its APIs, beside a floor: a bare
// gRPC server with a constant response, redis-server's own INCR, a bare net/http server.
// Servers run in their own processes, on one processor, and the load on the others. Floor and
// daemon take turns, and the result is the ratio within a pair of turns.
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

// A benchCase is one case.
type benchCase struct {
	name string
	run  func(*bench) error
}

var cases = []benchCase{
	{"rls", separated((*bench).rls)},
	{"rlsredis", separated((*bench).rlsOnRedis)},
	{"rlscluster", separated((*bench).rlsOnCluster)},
	{"resp", separated((*bench).resp)},
	{"http", separated((*bench).http)},
	{"overrides", (*bench).overrides},
	{"weight", (*bench).weigh},
}

// A bench is one run.
type bench struct {
	pairs    int
	turn     time.Duration
	keys     int // that are live when memory is measured
	quick    bool
	shared   bool // whether servers share all processors with their Redis and the load
	daemon   string
	findings measure.Findings
	results  []result
	progress io.Writer

	placement *placement // nil if servers share all processors
}

// A result is a line of the table of rates.
type result struct {
	title, name string
	rates       []float64
	p99         []float64 // milliseconds
	serverCPU   []float64 // microseconds of the server a call
	backendCPU  []float64 // microseconds of its backend a call
	loadCPU     []float64 // microseconds of the load generator a call
	toFloor     measure.Spread
}

func (b *bench) logf(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

func names() (all []string) {
	for _, t := range cases {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{keys: 1_000_000, progress: stderr}
	c := measure.NewCommand("daemon", stderr, names())
	c.Flags.IntVar(&b.pairs, "pairs", 10, "number of pairs of turns of each case")
	c.Flags.DurationVar(&b.turn, "turn", 2*time.Second, "length of one turn")
	c.Flags.BoolVar(&b.shared, "shared", false, "let servers share all processors with their Redis and the load, instead of having one of their own")
	if !c.Parse(args, b.check) {
		return 2
	}
	if c.Quick {
		b.quick, b.pairs, b.turn, b.keys = true, 1, 50*time.Millisecond, 10_000
	}
	done, err := b.build()
	if err != nil {
		c.PrintError(err)
		return 1
	}
	defer done()
	for _, t := range cases {
		if c.Wants(t.name) {
			c.Record(t.name, t.run(b))
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

func (b *bench) write(w io.Writer, checked bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d pairs of turns of %s.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.pairs, b.turn)
	b.findings.Write(w, checked)
	if len(b.results) == 0 {
		return
	}
	t := measure.Table{"case", "server", "thousand a second", "to the first row", "p99, ms", "server µs a call", "redis-server", "load"}
	t.Begin(w, "Rates: medians of the turns, in brackets the 10th to the 90th percentile of the pairs")
	for _, r := range b.results {
		t.Row(w, r.title, r.name, fmt.Sprintf("%.1f", measure.SpreadOf(r.rates).Median/1000),
			measure.TimesWithSpread(r.toFloor), medianOrDash(r.p99), medianOrDash(r.serverCPU), medianOrDash(r.backendCPU), medianOrDash(r.loadCPU))
	}
}

func medianOrDash(xs []float64) string {
	if len(xs) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", measure.SpreadOf(xs).Median)
}
