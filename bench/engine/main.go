// Command engine measures what a decision of the daemon costs without its network: requests
// with one to five descriptors on a memory store, and how much longer one descriptor takes
// with top keys, and with overrides of other keys.
//
//	go run ./engine           # two minutes
//	go run ./engine -quick    # a few seconds, to see that it runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"testing"
	"text/tabwriter"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rules"
)

// A workload is what decisions are made with, and the most that one may take: in all, or
// longer than the first workload.
type workload struct {
	name        string
	descriptors int
	topKeys     bool
	override    func(i int) string // the key of an override
	overrides   int
	most        float64 // nanoseconds, or
	mostLonger  float64
}

var workloads = []workload{
	{name: "1 descriptor", descriptors: 1, most: 350},
	{name: "2 descriptors", descriptors: 2, most: 500},
	{name: "3 descriptors", descriptors: 3, most: 650},
	{name: "5 descriptors", descriptors: 5, most: 950},
	{name: "1, with top keys", descriptors: 1, topKeys: true, mostLonger: 30},
	{
		name: "1, overrides of 100,000 other keys", descriptors: 1, mostLonger: 30, overrides: overrides.MaxOverrides,
		override: func(i int) string { return fmt.Sprintf("user=10.%d.%d.%d", i>>16, i>>8&255, i&255) },
	},
	{
		name: "1, overrides of 100,000 networks", descriptors: 1, mostLonger: 100, overrides: overrides.MaxOverrides,
		override: func(i int) string { return fmt.Sprintf("user=10.%d.%d.%d/32", i>>16, i>>8&255, i&255) },
	},
	{
		name: "1, overrides of 1,000 networks and 1,000 prefixes", descriptors: 1, mostLonger: 100, overrides: 2000,
		override: func(i int) string {
			if i%2 == 0 {
				return fmt.Sprintf("user=10.%d.%d.0/24", i>>8, i&255)
			}
			return fmt.Sprintf("user=tenant-%d:*", i)
		},
	},
}

const ruleFile = `
domain: edge
descriptors:
  - {key: user, limit: 1000000000/1s}
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
  - {key: route, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: tenant, limit: 1000000000/1s}
  - {key: generic_key, value: all, rate_limit: {unit: second, requests_per_unit: 4000000000}}
`

func main() {
	quick := flag.Bool("quick", false, "measure once, with a hundredth of the keys and overrides")
	flag.Parse()
	rounds, flood := 5, 10_000_000
	if *quick {
		rounds, flood = 1, flood/100
		for i := range workloads {
			workloads[i].overrides /= 100
		}
	}
	if err := run(rounds, flood, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

// A result is the best of some rounds.
type result struct {
	nanos  float64
	allocs int64
}

// run prints what a decision costs in the best round of each workload, and what top keys
// cost in memory.
func run(rounds, flood int, out io.Writer) (err error) {
	best := make([]result, len(workloads))
	engines := make([]*engine.Engine, len(workloads))
	for i := range workloads {
		best[i].nanos = math.Inf(1)
		if engines[i], err = workloads[i].engine(); err != nil {
			return err
		}
	}
	for range rounds { // in turn, so that a busy machine disturbs all of them
		for i, e := range engines {
			r, err := measure(e, workloads[i].descriptors)
			if err != nil {
				return fmt.Errorf("%s: %w", workloads[i].name, err)
			}
			best[i].nanos, best[i].allocs = min(best[i].nanos, r.nanos), max(best[i].allocs, r.allocs)
		}
	}
	if err := printTable(best, out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\ntop keys after %d different keys: %.1f MB, at most 8\n", flood, floodTopKeys(flood))
	return err
}

func printTable(best []result, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "workload\tns per decision\tat most\tmore than 1 descriptor\tat most\tallocations\t")
	figure := func(bound float64) string {
		if bound == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f", bound)
	}
	for i, w := range workloads {
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%.0f\t%s\t%d\t\n", w.name, best[i].nanos, figure(w.most), best[i].nanos-best[0].nanos, figure(w.mostLonger), best[i].allocs)
	}
	return table.Flush()
}

// engine returns an engine with the overrides of the workload.
func (w *workload) engine() (*engine.Engine, error) {
	book, err := overrides.Open(nil)
	if err != nil {
		return nil, err
	}
	all := make([]overrides.Override, w.overrides)
	for i := range all {
		all[i] = overrides.Override{Rule: "edge/user", Key: w.override(i), Limit: "ban"}
	}
	if err := book.Put(context.Background(), all); err != nil {
		return nil, err
	}
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		return nil, err
	}
	o := &engine.Options{Overrides: book}
	if w.topKeys {
		o.TopKeys = topkeys.New(nil)
	}
	e := engine.New(penstock.NewMemory(nil), o)
	e.SetRules(set)
	return e, nil
}

// keys is how many users decisions are about: so many that they do not fit in the caches of
// the processor together with the overrides.
const keys = 10_000

// requestsOf returns requests of different users with the first n descriptors that a proxy
// sends: the user, the address, the route, the tenant, and one for all callers.
func requestsOf(n int) [][]engine.Descriptor {
	requests := make([][]engine.Descriptor, keys)
	for i := range requests {
		address := fmt.Sprintf("203.%d.%d.9", i>>8, i&255)
		entries := []rules.Entry{
			{Key: "user", Value: address},
			{Key: "remote_address", Value: address},
			{Key: "route", Value: "checkout"},
			{Key: "tenant", Value: fmt.Sprint("tenant", i%100)},
			{Key: "generic_key", Value: "all"},
		}
		for _, e := range entries[:n] {
			requests[i] = append(requests[i], engine.Descriptor{Entries: []rules.Entry{e}, Cost: 1})
		}
	}
	return requests
}

// measure returns what a decision about keys without overrides costs.
func measure(e *engine.Engine, descriptors int) (best result, err error) {
	requests := requestsOf(descriptors)
	var decided engine.Result
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			decideErr := e.Decide(context.Background(), "edge", requests[i%keys], &decided)
			if decideErr != nil || decided.OverLimit || len(decided.Statuses) != descriptors {
				err = errors.Join(errors.New("a request was not granted"), decideErr)
				b.FailNow()
			}
		}
	})
	return result{float64(r.T.Nanoseconds()) / float64(max(r.N, 1)), r.AllocsPerOp()}, err
}

// floodTopKeys returns how many megabytes top keys hold after decisions about n keys.
func floodTopKeys(n int) float64 {
	before := heap()
	tracker := topkeys.New(nil)
	source := tracker.NewSource("edge/user")
	for i := range n {
		tracker.Record(source, fmt.Sprint("user=", i), topkeys.Denied, 1, 0)
	}
	held := heap() - before
	runtime.KeepAlive(tracker)
	return float64(held) / 1e6
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
