// Command redis compares penstock's Redis store with the limiters on Redis that Go
// programs use today, with common designs, and with the floors: the least that a round
// trip to Redis can cost. It starts its own redis-server and prints Markdown.
//
//	go run ./redis                      # some minutes
//	go run ./redis -run 'clients'       # some cases
//	go run ./redis -instructions        # with instructions counted, by valgrind
//	go run ./redis -tenmillion          # with ten million keys
//	go run ./redis -quick               # a few seconds, to see that it runs
//
// The results are ratios: medians over rounds in which the contenders take turns, so
// that other load on the machine affects all of them alike. Every case verifies its
// workload: that the keys exist and expire, and that every request was granted, counted
// by the server.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

func main() {
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags of this command only.
type options struct{ instructions, tenMillion bool }

func names() (all []string) {
	for _, t := range cases {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	var o options
	b := &bench{sizes: fullSizes, progress: stderr}
	c := measure.NewCommand("redis", stderr, names())
	c.Flags.IntVar(&b.rounds, "rounds", 60, "number of rounds of each case; a third with redis-benchmark")
	c.Flags.DurationVar(&b.length, "round", 40*time.Millisecond, "length of one contender's turn")
	c.Flags.BoolVar(&o.instructions, "instructions", false, "count the server's instructions too, which needs valgrind and is slow")
	c.Flags.BoolVar(&o.tenMillion, "tenmillion", false, "fill ten million keys too, which takes minutes and 3 GB")
	if !c.Parse(args, b.check) {
		return 2
	}
	quietGoZero()
	if c.Quick {
		b.rounds, b.length, b.sizes = min(b.rounds, 3), 2*time.Millisecond, quickSizes
	}
	server, err := startServer(nil)
	if err != nil {
		c.PrintError(err)
		return 1
	}
	defer server.stop()
	b.server = server
	for _, t := range cases {
		if c.Wants(t.name) && (t.onlyFor == nil || t.onlyFor(o)) {
			c.Record(t.name, t.run(b))
		}
	}
	b.writeHeader(stdout, c.Quick)
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
func (b *bench) writeHeader(w io.Writer, quick bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s, %s; %d rounds of %s a limiter, %d by redis-benchmark.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.server.version(),
		b.rounds, b.length, b.benchmarkRounds())
	if quick {
		fmt.Fprintln(w, "\nA quick run: few keys, few rounds, no meaningful figures.")
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
	info, _ := s.command("INFO", "server")
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return "Redis " + v
		}
	}
	return "Redis, unknown version"
}
