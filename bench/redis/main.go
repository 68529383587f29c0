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

// options are what only this command line says.
type options struct{ instructions, tenMillion bool }

func names() (all []string) {
	for _, t := range trials {
		all = append(all, t.name)
	}
	return all
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	var o options
	b := &bench{sizes: fullSizes, progress: stderr}
	c := measure.NewCommand("redis", stderr, names())
	c.Flags.IntVar(&b.rounds, "rounds", 60, "how many rounds each case has; those by redis-benchmark a third")
	c.Flags.DurationVar(&b.length, "round", 40*time.Millisecond, "how long one contestant's turn is")
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
		c.Complain(err)
		return 1
	}
	defer server.stop()
	b.server = server
	for _, t := range trials {
		if c.Wants(t.name) && (t.onlyFor == nil || t.onlyFor(o)) {
			c.Note(t.name, t.run(b))
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

// writeHeader says on what and how this was measured.
func (b *bench) writeHeader(w io.Writer, quick bool) {
	fmt.Fprintf(w, "%s, %d logical cores, %s %s/%s, %s; %d rounds of %s a limiter, %d by redis-benchmark.\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, b.server.version(),
		b.rounds, b.length, b.pressRounds())
	if quick {
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
