// Command resilience measures the wrappers of a Redis store: leases for hot keys, the
// deny cache for spent keys, the fallback while Redis hangs or fails over, and their
// cost on a healthy path. It starts its own servers and prints Markdown.
//
//	go run ./resilience                 # some minutes
//	go run ./resilience -run 'lease'    # some cases
//	go run ./resilience -quick          # a few seconds, to see that it runs
//
// Calls to Redis are counted by Redis. Ratios are medians over rounds in which the
// contenders take turns.
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
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A benchCase is one case.
type benchCase struct {
	name string
	run  func(*bench) error
}

var cases = []benchCase{
	{"lease", (*bench).leaseHotKey},
	{"overasked", (*bench).leaseAboveRate},
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
	turn     time.Duration // of a contender in a round
	span     time.Duration // of a case under paced load
	findings measure.Findings
	progress io.Writer
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
	b := &bench{progress: stderr}
	c := measure.NewCommand("resilience", stderr, names())
	c.Flags.IntVar(&b.rounds, "rounds", 20, "number of rounds of each comparison")
	c.Flags.DurationVar(&b.turn, "turn", 250*time.Millisecond, "length of one contender's turn")
	c.Flags.DurationVar(&b.span, "span", 5*time.Second, "length of a case with paced load")
	if !c.Parse(args, b.check) {
		return 2
	}
	if c.Quick {
		b.rounds, b.turn, b.span = 2, 50*time.Millisecond, 600*time.Millisecond
	}
	for _, t := range cases {
		if c.Wants(t.name) {
			b.logf("%s …", t.name)
			c.Record(t.name, t.run(b))
		}
	}
	fmt.Fprintf(stdout, "%s, %d logical cores, %s %s/%s; %d rounds of %s, paced load for %s.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.rounds, b.turn, b.span)
	b.findings.Write(stdout, !c.Quick)
	return c.Status(b.findings)
}

func (b *bench) check() error {
	if b.rounds < 1 || b.turn <= 0 || b.span <= 0 {
		return fmt.Errorf("%d rounds of %s and spans of %s: all must be more than zero", b.rounds, b.turn, b.span)
	}
	return nil
}
