// Command overrides measures what overrides cost the decisions about keys that have none:
// the engine of the daemon on a memory store, without overrides, with 100,000 of other keys,
// and with networks and prefixes.
//
//	go run ./overrides           # half a minute
//	go run ./overrides -quick    # a few seconds, to see that it runs
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"testing"
	"text/tabwriter"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rules"
)

// A workload is a set of overrides, and the most that a decision may take longer under it.
type workload struct {
	name  string
	set   func(i int) overrides.Override
	n     int
	bound float64 // nanoseconds
}

var workloads = []workload{
	{name: "no overrides"},
	{name: "100,000 other keys", n: overrides.MaxOverrides, bound: 30, set: func(i int) overrides.Override {
		return override(fmt.Sprintf("remote_address=10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}},
	{name: "100,000 networks", n: overrides.MaxOverrides, bound: 100, set: func(i int) overrides.Override {
		return override(fmt.Sprintf("remote_address=10.%d.%d.%d/32", i>>16, i>>8&255, i&255))
	}},
	{name: "1,000 networks and 1,000 prefixes", n: 2000, bound: 100, set: func(i int) overrides.Override {
		if i%2 == 0 {
			return override(fmt.Sprintf("remote_address=10.%d.%d.0/24", i>>8, i&255))
		}
		return override(fmt.Sprintf("remote_address=tenant-%d:*", i))
	}},
}

func override(key string) overrides.Override {
	return overrides.Override{Rule: ruleName, Key: key, Limit: "ban"}
}

const (
	ruleName = "edge/remote_address"
	ruleFile = "domain: edge\ndescriptors: [{key: remote_address, limit: 1000000000/1s}]\n"
)

func main() {
	quick := flag.Bool("quick", false, "measure once, with a hundredth of the overrides")
	flag.Parse()
	rounds := 5
	if *quick {
		rounds = 1
		for i := range workloads {
			workloads[i].n /= 100
		}
	}
	if err := run(rounds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "overrides:", err)
		os.Exit(1)
	}
}

// run prints what a decision costs in the best round of each workload.
func run(rounds int, out io.Writer) (err error) {
	best := make([]float64, len(workloads))
	engines := make([]*engine.Engine, len(workloads))
	for i := range workloads {
		best[i] = math.Inf(1)
		if engines[i], err = workloads[i].engine(); err != nil {
			return err
		}
	}
	for range rounds { // in turn, so that a busy machine disturbs all of them
		for i, e := range engines {
			nanos, err := measure(e)
			if err != nil {
				return fmt.Errorf("%s: %w", workloads[i].name, err)
			}
			best[i] = min(best[i], nanos)
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "overrides\tns per decision\tmore than without\tat most\t")
	for i, w := range workloads {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.0f\t\n", w.name, best[i], best[i]-best[0], w.bound)
	}
	return table.Flush()
}

// engine returns an engine with the overrides of the workload.
func (w *workload) engine() (*engine.Engine, error) {
	book, err := overrides.Open(nil)
	if err != nil {
		return nil, err
	}
	all := make([]overrides.Override, w.n)
	for i := range all {
		all[i] = w.set(i)
	}
	if err := book.Put(context.Background(), all); err != nil {
		return nil, err
	}
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		return nil, err
	}
	e := engine.New(penstock.NewMemory(nil), &engine.Options{Overrides: book})
	e.SetRules(set)
	return e, nil
}

// keys is how many keys decisions are about: so many that they do not fit in the caches of
// the processor together with the overrides.
const keys = 10_000

// measure returns the nanoseconds of a decision about a key without an override.
func measure(e *engine.Engine) (nanos float64, err error) {
	descriptors := make([][]engine.Descriptor, keys)
	for i := range descriptors {
		address := fmt.Sprintf("203.%d.%d.9", i>>8, i&255)
		descriptors[i] = []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: address}}, Cost: 1}}
	}
	var result engine.Result
	r := testing.Benchmark(func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			decideErr := e.Decide(context.Background(), "edge", descriptors[i%keys], &result)
			if decideErr != nil || result.OverLimit {
				err = fmt.Errorf("a key without an override was denied: %w", decideErr)
				b.FailNow()
			}
		}
	})
	return float64(r.T.Nanoseconds()) / float64(max(r.N, 1)), err
}
