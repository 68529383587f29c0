// Command overload compares penstock's gate and breaker with others: what a server serves
// under overload, and what a service that fails or hangs is sent. It prints Markdown.
//
//	go run ./overload                              # everything, about twenty minutes
//	go run ./overload -run breaker                 # some cases
//	go run ./overload -quick                       # seconds, to see that it runs
//	go run ./overload -run offered -csv results/overload.csv
//
// Servers and clients are simulated in virtual time, with the limiters' own code: it reads
// the clock of a testing/synctest bubble. Limiters that go by the processor are told how busy
// the simulated workers are, through their own averages. hystrix-go leaves goroutines behind,
// so it runs in real time. The case "virtual server" is a real HTTP server in virtual time; "server"
// and "busy server" start some as processes of their own, and send them requests at a fixed rate.
package main

import (
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A bench collects what the cases find.
type bench struct {
	t        *testing.T
	quick    bool
	csv      string
	findings measure.Findings
	tables   []table
	runs     int // bubbles, each of which begins later than the one before
}

// A benchCase is a part of the benchmark.
type benchCase struct {
	name string
	run  func(*bench) error
}

// cases have what is measured in real time first: after simulations the statistics of Sentinel
// are ahead of the clock, and it logs an error for each call.
var cases = []benchCase{
	{"cost", (*bench).cost},
	{"permits", (*bench).permits},
	{"server", (*bench).waitingServers},
	{"busy server", (*bench).busyServers},
	{"virtual server", (*bench).virtualServers},
	{"one processor", (*bench).processor},
	{"2 workers", capacity(2)},
	{"10 workers", capacity(10)},
	{"100 workers", capacity(100)},
	{"offered", (*bench).offered},
	{"changes", (*bench).changes},
	{"priorities", (*bench).priorities},
	{"breaker", (*bench).breakers},
}

func names() (all []string) {
	for _, c := range cases {
		all = append(all, c.name)
	}
	return all
}

// main runs as a test, because only tests have bubbles. What the testing package prints is
// discarded.
func main() {
	serveIfAsked()
	args, stdout := os.Args[1:], os.Stdout
	os.Args = os.Args[:1]
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		os.Stdout = null
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "overload", F: func(t *testing.T) {
		if status := command(t, args, stdout, os.Stderr); status != 0 {
			os.Exit(status)
		}
	}}}, nil, nil)
}

// command runs the cases and returns the exit status.
func command(t *testing.T, args []string, stdout, stderr io.Writer) int {
	silenceLogs()
	b := &bench{t: t}
	c := measure.NewCommand("overload", stderr, names())
	c.Flags.StringVar(&b.csv, "csv", "", "write goodput by offered load to this `file`, for bench/plots")
	if !c.Parse(args, func() error { return nil }) {
		return 2
	}
	b.quick = c.Quick
	for _, one := range cases {
		if c.Wants(one.name) {
			begin := time.Now()
			c.Record(one.name, one.run(b))
			fmt.Fprintf(stderr, "%s: %s\n", one.name, time.Since(begin).Round(time.Second))
		}
	}
	b.write(stdout)
	return c.Status(b.findings)
}

// simulate runs f in virtual time. Each bubble begins two days after the one before, because
// some limiters have statistics for the whole process.
func (b *bench) simulate(f func()) {
	b.runs++
	begin := time.Now().Add(time.Duration(b.runs) * 48 * time.Hour)
	synctest.Test(b.t, func(*testing.T) {
		time.Sleep(time.Until(begin))
		f()
	})
}
