// Command http compares penstock's middleware with that of other limiters: the cost of a
// request on top of its handler, in time and in allocations. It prints Markdown.
//
//	go run ./http                    # everything, about a minute
//	go run ./http -run denied        # some cases
//	go run ./http -quick             # a moment, to see that it runs
//
// All limit each client by its address, in memory, and respond with X-RateLimit fields.
// They take turns in short rounds, so that other load on the machine affects all of them
// alike. Every case verifies its workload: how many clients sent requests, how many were
// denied, and the header fields.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

func names() (all []string) {
	for _, t := range cases {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{clients: 10_000}
	c := measure.NewCommand("http", stderr, names())
	c.Flags.IntVar(&b.rounds, "rounds", 80, "number of rounds of each case")
	c.Flags.DurationVar(&b.length, "round", 10*time.Millisecond, "length of one contender's turn")
	if !c.Parse(args, b.check) {
		return 2
	}
	if c.Quick {
		b.rounds, b.length, b.clients = min(b.rounds, 5), 200*time.Microsecond, 100
	}
	for _, t := range cases {
		if c.Wants(t.name) {
			c.Record(t.name, t.run(b))
			runtime.GC()
		}
	}
	b.write(stdout, c.Quick)
	return c.Status(b.findings)
}

func (b *bench) check() error {
	if b.rounds < 1 || b.length <= 0 {
		return fmt.Errorf("rounds %d of %s: both must be more than zero", b.rounds, b.length)
	}
	return nil
}

// write prints the results, the machine and the settings.
func (b *bench) write(w io.Writer, quick bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d rounds of %s a contender, %s clients.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		b.rounds, b.length, measure.Thousands(b.clients))
	if quick {
		fmt.Fprintln(w, "\nA quick run: few clients, few rounds, no meaningful figures.")
	}
	if vs := rivalVersions(); vs != "" {
		fmt.Fprintf(w, "\nRivals: %s.\n", vs)
	}
	b.findings.Write(w, !quick)
	t := measure.Table{"case", "middleware", "ns a request", "to penstock", "allocations", "clients", "denied"}
	t.Begin(w, "Speed: medians of the rounds, in brackets the 10th to the 90th percentile")
	for _, m := range b.timings {
		t.Row(w, m.title, m.name, fmt.Sprintf("%.0f", m.nanos.Median), measure.TimesWithSpread(m.toOurs),
			fmt.Sprintf("%.1f", m.allocs), measure.Thousands(m.clients), fmt.Sprintf("%.0f %%", 100*m.denied))
	}
}
