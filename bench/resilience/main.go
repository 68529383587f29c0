// Command resilience measures the wrappers of a Redis store: leases for hot keys, the
// deny cache for spent keys, the fallback while Redis hangs, fails over, or is killed and
// comes back empty, and their cost on a healthy path. It starts its own servers and prints Markdown.
//
//	go run ./resilience                 # some minutes
//	go run ./resilience -run 'lease'    # some cases
//	go run ./resilience -quick          # a few seconds, to see that it runs
//	go run ./resilience -run outage -csv results/outage.csv
//
// Calls to Redis are counted by Redis. Ratios are medians over rounds in which the
// contenders take turns.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct {
	*harness.Run
	span time.Duration // of a case under paced load
	csv  string        // where the samples of the outage go
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("resilience", stdout, stderr)}
	b.TurnFlags("rounds", "turn", harness.Turns{Rounds: 20, Turn: 250 * time.Millisecond}, harness.Turns{Rounds: 2, Turn: 50 * time.Millisecond})
	b.Flags.DurationVar(&b.span, "span", 5*time.Second, "length of a case with paced load")
	b.Flags.StringVar(&b.csv, "csv", "", "write the samples of the outage to this `file`, for bench/plots")
	b.Settings = func() string { return fmt.Sprintf("%d rounds of %s, paced load for %s", b.Rounds, b.Turn, b.span) }
	b.Prepare = func() {
		if b.Quick {
			b.span = 600 * time.Millisecond
		}
	}
	return b.Main(args, []harness.Case{
		{Name: "lease", Run: b.leaseHotKey},
		{Name: "overasked", Run: b.leaseAboveRate},
		{Name: "abusers", Run: b.denyAbusers},
		{Name: "saturated", Run: b.denySaturated},
		{Name: "healthy", Run: b.healthyPath},
		{Name: "hang", Run: b.hang},
		{Name: "sentinel", Run: b.sentinelFailover},
		{Name: "cluster", Run: b.clusterFailover},
		{Name: "outage", Run: b.outage},
	})
}

// The timeouts of a call: long if nothing is to fail, or the default.
const (
	patient = 10 * time.Second
	usual   = 50 * time.Millisecond
)

func limiter(store penstock.Store, text string) *penstock.Limiter {
	return harness.Must(penstock.New(store, harness.Must(penstock.ParseLimit(text))))
}
