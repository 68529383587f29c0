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

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A bench is one run.
type bench struct {
	*harness.Run
	t        *testing.T
	csv      string
	realCSV  string
	only     string
	realTurn time.Duration
	seeds    int
	bubbles  int // each of which begins later than the one before
}

// main runs as a test, because only tests have bubbles. What the testing package prints is
// discarded.
func main() {
	harness.RunIfChild(serveHTTP)
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

// command runs the cases and returns the exit status. What is measured in real time comes first:
// after simulations the statistics of Sentinel are ahead of the clock, and it logs an error for each
// call.
func command(t *testing.T, args []string, stdout, stderr io.Writer) int {
	silenceLogs()
	b := &bench{Run: harness.New("overload", stdout, stderr), t: t}
	b.Flags.StringVar(&b.csv, "csv", "", "write goodput by offered load to this `file`, for bench/plots")
	b.Flags.StringVar(&b.realCSV, "real-csv", "", "write goodput of real servers by offered load to this `file`, for bench/plots")
	b.Flags.DurationVar(&b.realTurn, "real-turn", 10*time.Second, "how long a real server has each load")
	b.Flags.StringVar(&b.only, "only", "", "only scenarios whose names contain this `text`")
	b.Flags.IntVar(&b.seeds, "seeds", 4, "how many runs a scenario is the mean of")
	b.Rivals = modules
	b.Settings = func() string { return "Envoy's gradient after its documentation" }
	return b.Main(args, []harness.Case{
		{Name: "cost", Run: b.cost},
		{Name: "real", Run: b.realServers},
		{Name: "virtual server", Run: b.virtualServers},
		{Name: "one processor", Run: b.processor},
		{Name: "scenarios 1", Run: func() { b.scenarios(1) }},
		{Name: "scenarios 2", Run: func() { b.scenarios(2) }},
		{Name: "scenarios 4", Run: func() { b.scenarios(4) }},
		{Name: "2 workers", Run: func() { b.capacity(2) }},
		{Name: "10 workers", Run: func() { b.capacity(10) }},
		{Name: "100 workers", Run: func() { b.capacity(100) }},
		{Name: "offered", Run: b.offered},
		{Name: "changes", Run: b.changes},
		{Name: "priorities", Run: b.priorities},
		{Name: "breaker", Run: b.breakers},
	})
}

// simulate runs f in virtual time. Each bubble begins two days after the one before, because
// some limiters have statistics for the whole process.
func (b *bench) simulate(f func()) {
	b.bubbles++
	begin := time.Now().Add(time.Duration(b.bubbles) * 48 * time.Hour)
	synctest.Test(b.t, func(*testing.T) {
		time.Sleep(time.Until(begin))
		f()
	})
}

// grid adds a table with a row for each library and a column for each offered load, as a multiple of
// the capacity.
func (b *bench) grid(title string, offers []float64, libraries []library, cell func(l library, times float64) string) {
	head := []string{"limiter"}
	for _, times := range offers {
		head = append(head, fmt.Sprintf("%g×", times))
	}
	t := b.Table(title, head...)
	for _, l := range libraries {
		row := []any{l.name}
		for _, times := range offers {
			row = append(row, cell(l, times))
		}
		t.Row(row...)
	}
}
