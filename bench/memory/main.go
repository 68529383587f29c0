// Command memory compares penstock's memory store with the rate limiters that Go
// programs use today, and with the floor: the least that any of them could do. It
// prints Markdown.
//
//	go run ./memory                     # everything, some minutes
//	go run ./memory -run 'hot|many'     # some cases
//	go run ./memory -quick              # a few seconds, to see that it runs
//
// The results are ratios: medians over many short rounds in which the contenders take
// turns, so that other load on the machine affects all of them alike. Every case
// verifies its workload: how many different keys were used, and how many calls were
// denied.
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
	if isChild, err := runIfChild(); isChild {
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

func names() (all []string) {
	for _, t := range cases {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{sizes: fullSizes, progress: stderr}
	c := measure.NewCommand("memory", stderr, names())
	c.Flags.IntVar(&b.rounds, "rounds", 80, "number of rounds of each case")
	c.Flags.DurationVar(&b.length, "round", 10*time.Millisecond, "length of one contender's turn")
	series := c.Flags.String("series", "", "only measure decisions at growing numbers of keys, and write CSV to this `file`")
	if !c.Parse(args, b.check) {
		return 2
	}
	if c.Quick {
		b.rounds, b.length, b.sizes = min(b.rounds, 5), 200*time.Microsecond, quickSizes
	}
	if *series != "" {
		exitOn(b.writeSeries(*series))
		return 0
	}
	for _, t := range cases {
		if c.Wants(t.name) {
			c.Record(t.name, t.run(b))
			runtime.GC()
		}
	}
	writeHeader(stdout, b, c.Quick)
	b.report.write(stdout, !c.Quick)
	return c.Status(b.report.Findings)
}

func (b *bench) check() error {
	if b.rounds < 1 || b.length <= 0 {
		return fmt.Errorf("rounds %d of %s: both must be more than zero", b.rounds, b.length)
	}
	return nil
}

// writeHeader prints the machine and the settings.
func writeHeader(w io.Writer, b *bench, quick bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s; %d rounds of %s a contender, %d-byte keys.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.rounds, b.length, keySize)
	if quick {
		fmt.Fprintln(w, "\nA quick run: few keys, few rounds, no meaningful figures.")
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
