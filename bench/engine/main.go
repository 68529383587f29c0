// Command engine measures what a decision of the daemon costs without its network: requests
// with one to five descriptors on a memory store, and how much longer one descriptor takes
// with top keys, and with overrides of other keys. Beside them is the floor, which is what a
// token bucket without keys costs: it says how fast the machine was.
//
//	go run ./engine           # a minute
//	go run ./engine -quick    # a few seconds, to see that it runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

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
	p := plan{rounds: 5, warmUp: 1500 * time.Millisecond, time: 500 * time.Millisecond, flood: 10_000_000}
	if *quick {
		p = quickPlan()
	}
	if err := run(p, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

// A plan is how long is measured.
type plan struct {
	rounds int
	warmUp time.Duration // before a workload with top keys, which are sampled by the rate of the last second
	time   time.Duration // of a workload in a round
	flood  int           // keys
}

// quickPlan returns a plan for tests, and makes the workloads small.
func quickPlan() plan {
	for i := range workloads {
		workloads[i].overrides /= 100
	}
	return plan{rounds: 1, warmUp: time.Millisecond, time: time.Millisecond, flood: 100_000}
}

// run prints what a decision costs in each workload, and what top keys cost in memory.
func run(p plan, out io.Writer) error {
	runtime.LockOSThread() // the time of this thread is what is measured
	defer runtime.UnlockOSThread()
	var contenders []*contender
	for i := range workloads {
		c, err := workloads[i].contender()
		if err != nil {
			return err
		}
		contenders = append(contenders, c)
	}
	contenders = append(contenders, floorContender())
	for range p.rounds { // in turn, so that a busy machine disturbs all of them
		for _, c := range contenders {
			if err := c.run(p); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	if err := printTable(contenders, out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\ntop keys after %d different keys: %.1f MB, at most 8\n", p.flood, floodTopKeys(p.flood))
	return err
}

func printTable(all []*contender, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "workload\tns per decision\tat most\tto the floor\tmore than 1 descriptor\tat most\tallocations\t")
	figure := func(bound float64) string {
		if bound == 0 {
			return ""
		}
		return fmt.Sprintf("%.0f", bound)
	}
	one, floor := all[0].nanos(), all[len(all)-1].nanos()
	for _, c := range all {
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%.1f×\t%+.0f\t%s\t%.0f\t\n",
			c.name, c.nanos(), figure(c.most), c.nanos()/floor, c.nanos()-one, figure(c.mostLonger), c.allocations)
	}
	return table.Flush()
}

// A contender is measured in chunks.
type contender struct {
	workload
	decide      func(i int) error // about key i
	chunks      []float64         // nanoseconds of processor time for a decision, on average
	allocations float64
}

const chunk = 20_000 // decisions

// nanos returns the time of a decision in the fastest tenth of the chunks: the others shared
// the processor's core, or its caches, with other work.
func (c *contender) nanos() float64 {
	slices.Sort(c.chunks)
	return c.chunks[len(c.chunks)/10]
}

// run measures for one round.
func (c *contender) run(p plan) error {
	if c.topKeys {
		if err := c.spend(p.warmUp, func(float64) {}); err != nil {
			return err
		}
	}
	err := c.spend(p.time, func(nanos float64) { c.chunks = append(c.chunks, nanos) })
	c.allocations = max(c.allocations, testing.AllocsPerRun(1000, func() { err = errors.Join(err, c.decide(0)) }))
	return err
}

// spend decides for a while, at least one chunk, and reports each.
func (c *contender) spend(d time.Duration, report func(nanos float64)) error {
	for began := time.Now(); ; {
		nanos, err := c.timeChunk()
		if err != nil {
			return err
		}
		report(nanos)
		if time.Since(began) >= d {
			return nil
		}
	}
}

// timeChunk returns the time of a decision in one chunk.
func (c *contender) timeChunk() (nanos float64, err error) {
	before, err := threadTime()
	for i := 0; i < chunk && err == nil; i++ {
		err = c.decide(i % keys)
	}
	if err != nil {
		return 0, err
	}
	after, err := threadTime()
	return float64(after-before) / chunk, err
}

// threadTime returns the processor time of this thread: unlike time that passes, it does not
// count the turns of other processes.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// floorContender returns the least that a decision can do: read a clock and swap a word.
func floorContender() *contender {
	var word atomic.Int64
	base := time.Now()
	return &contender{workload: workload{name: "floor: a token bucket without keys"}, decide: func(int) error {
		now, full := int64(time.Since(base)), word.Load()
		if !word.CompareAndSwap(full, max(full, now)+1) {
			return errors.New("the word changed")
		}
		return nil
	}}
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

// descriptors returns the first n descriptors that a proxy sends: the user, the address, the
// route, the tenant, and one for all callers.
func descriptors(n int) []engine.Descriptor {
	ds := make([]engine.Descriptor, n)
	for i, e := range []rules.Entry{
		{Key: "user"}, {Key: "remote_address"}, {Key: "route", Value: "checkout"}, {Key: "tenant"}, {Key: "generic_key", Value: "all"},
	}[:n] {
		ds[i] = engine.Descriptor{Entries: []rules.Entry{e}, Cost: 1}
	}
	return ds
}

// contender returns the workload with an engine. Its requests are of different users, and in
// the memory of the request before, as the APIs decode them.
func (w *workload) contender() (*contender, error) {
	e, err := w.engine()
	if err != nil {
		return nil, err
	}
	addresses, tenants := make([]string, keys), make([]string, 100)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("203.%d.%d.9", i>>8, i&255)
	}
	for i := range tenants {
		tenants[i] = fmt.Sprint("tenant", i)
	}
	ds := descriptors(w.descriptors)
	var decided engine.Result
	return &contender{workload: *w, decide: func(i int) error {
		for j := range ds {
			switch e := &ds[j].Entries[0]; e.Key {
			case "user", "remote_address":
				e.Value = addresses[i]
			case "tenant":
				e.Value = tenants[i%len(tenants)]
			}
		}
		err := e.Decide(context.Background(), "edge", ds, &decided)
		if err != nil || decided.OverLimit || len(decided.Statuses) != len(ds) {
			return errors.Join(errors.New("a request was not granted"), err)
		}
		return nil
	}}, nil
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
