// Command engine measures what a decision of the daemon costs without its network: requests
// with one to ten descriptors on a memory store, and how much longer one descriptor takes
// with top keys, and with overrides of other keys. Beside them is the floor, which is what a
// token bucket without keys costs: it says how fast the machine was. Further cases are about
// 10,000 rules and 100,000 values.
//
//	go run ./engine           # two minutes
//	go run ./engine -quick    # a few seconds, to see that it runs
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

// A workload is what decisions are made with, and the most that one may take: in all, or
// longer than the first workload.
type workload struct {
	name        string
	descriptors int
	topKeys     bool
	overrides   int     // how many
	override    string  // the key of one, with the last three bytes of an address
	prefixes    bool    // whether there are as many prefixes
	most        float64 // nanoseconds, or
	mostLonger  float64
}

var workloads = []workload{
	{name: "1 descriptor", descriptors: 1, most: 450},
	{name: "2 descriptors", descriptors: 2, most: 600},
	{name: "3 descriptors", descriptors: 3, most: 750},
	{name: "5 descriptors", descriptors: 5, most: 1000},
	{name: "10 descriptors", descriptors: 10, most: 1400},
	{name: "1, with top keys", descriptors: 1, topKeys: true, mostLonger: 30},
	{name: "1, overrides of 100,000 other keys", descriptors: 1, mostLonger: 30, overrides: overrides.MaxOverrides, override: "user=10.%d.%d.%d"},
	{name: "1, overrides of 100,000 networks", descriptors: 1, mostLonger: 100, overrides: overrides.MaxOverrides, override: "user=10.%d.%d.%d/32"},
	{name: "1, overrides of 1,000 networks and 1,000 prefixes", descriptors: 1, mostLonger: 100, overrides: 1000, override: "user=10.%[2]d.%[3]d.0/24", prefixes: true},
}

// parts are the descriptors that a proxy sends, and the limits of their rules: the user, the address, the
// route, the tenant, one for all callers, and others. Those without a value are of many users.
var parts = []struct{ key, value, limit string }{
	{"user", "", bySecond},
	{"remote_address", "", byUnit + "minute}"},
	{"route", "checkout", byUnit + "hour}"},
	{"tenant", "", bySecond},
	{"generic_key", "all", "value: all, " + byUnit + "second}"},
	{"method", "POST", bySecond},
	{"region", "eu", byUnit + "minute}"},
	{"plan", "paid", bySecond},
	{"client", "web", bySecond},
	{"version", "2", byUnit + "hour}"},
}

// Limits that are never reached.
const (
	bySecond = "limit: 1000000000/1s"
	byUnit   = "rate_limit: {requests_per_unit: 4000000000, unit: "
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct{ *harness.Run }

// command measures, and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{harness.New("engine", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 5, Turn: 500 * time.Millisecond}, harness.Turns{Rounds: 1, Turn: time.Millisecond})
	b.Settings = func() string {
		return fmt.Sprintf("processor time in the fastest tenth of the chunks of %s, %d rounds of %s", harness.Thousands(chunk), b.Rounds, b.Turn)
	}
	return b.Main(args, []harness.Case{
		{Name: "decide", Run: b.decide},
		{Name: "flood", Run: b.flood},
		{Name: "rules", Run: func() { newRuleBench(b.Run).loadAndMatch() }},
		{Name: "reload", Run: func() { newRuleBench(b.Run).reloadUnderLoad() }},
	})
}

// decide measures what a decision costs in each workload.
func (b *bench) decide() {
	runtime.LockOSThread() // the time of this thread is what is measured
	defer runtime.UnlockOSThread()
	contenders := []*harness.Contender{b.contender(workload{name: "floor: a token bucket without keys"}, floor())}
	for _, w := range workloads {
		w.overrides /= b.Size(1, 100)
		contenders = append(contenders, b.contender(w, w.decider()))
	}
	harness.TakeTurns(b.Rounds, contenders...)
	t := b.Table("Decisions", "workload", "ns per decision", "to the floor", "more than 1 descriptor", "allocations")
	floor, one := nanos(contenders[0]), nanos(contenders[1])
	for i, c := range contenders {
		ns, allocations := nanos(c), slices.Max(c.Of("allocations"))
		t.Row(c.Name, harness.Decimals(0)(ns), harness.Times(ns/floor), fmt.Sprintf("%+.0f", ns-one), allocations)
		if i == 0 {
			continue
		}
		if w := workloads[i-1]; w.most > 0 {
			b.Find(w.name, fmt.Sprintf("≤ %.0f ns, 0 allocations", w.most), ns <= w.most && allocations == 0, "%.0f ns, %.0f", ns, allocations)
		} else {
			b.Find(w.name, fmt.Sprintf("≤ %.0f ns more than 1 descriptor", w.mostLonger), ns-one <= w.mostLonger, "%+.0f ns", ns-one)
		}
	}
}

// nanos returns the time of a decision in the fastest tenth of the chunks: the others shared
// the processor's core, or its caches, with other work.
func nanos(c *harness.Contender) float64 {
	chunks := slices.Sorted(slices.Values(c.Of("ns")))
	return chunks[len(chunks)/10]
}

const chunk = 20_000 // decisions

// contender returns a workload that is measured by the processor time of each chunk of decisions.
func (b *bench) contender(w workload, decide func(i int) error) *harness.Contender {
	return &harness.Contender{Name: w.name, Measure: func(c *harness.Contender) {
		if w.topKeys { // which are sampled by the rate of the last second
			spend(harness.Scale(b.Run, 1500*time.Millisecond, time.Millisecond), decide, func(float64) {})
		}
		spend(b.Turn, decide, func(nanos float64) { c.Add("ns", nanos) })
		c.Add("allocations", testing.AllocsPerRun(1000, func() { harness.Check(decide(0)) }))
	}}
}

// spend decides for a while, at least one chunk, and reports the time of a decision in each.
func spend(d time.Duration, decide func(i int) error, report func(nanos float64)) {
	for began := time.Now(); ; {
		before := threadTime()
		for i := range chunk {
			if err := decide(i % keys); err != nil {
				harness.Check(err)
			}
		}
		report(float64(threadTime()-before) / chunk)
		if time.Since(began) >= d {
			return
		}
	}
}

// threadTime returns the processor time of this thread: unlike time that passes, it does not
// count the turns of other processes.
func threadTime() time.Duration {
	var t unix.Timespec
	harness.Check(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// floor returns the least that a decision can do: read a clock and swap a word.
func floor() func(int) error {
	var word atomic.Int64
	base := time.Now()
	return func(int) error {
		now, full := int64(time.Since(base)), word.Load()
		if !word.CompareAndSwap(full, max(full, now)+1) {
			return errors.New("the word changed")
		}
		return nil
	}
}

// engine returns an engine with the overrides of the workload.
func (w *workload) engine() *engine.Engine {
	book := harness.Must(overrides.Open(nil))
	var all []overrides.Override
	for i := range w.overrides {
		all = append(all, overrides.Override{Rule: "edge/user", Key: fmt.Sprintf(w.override, i>>16, i>>8&255, i&255), Limit: "ban"})
		if w.prefixes {
			all = append(all, overrides.Override{Rule: "edge/user", Key: fmt.Sprintf("user=tenant-%d:*", i), Limit: "ban"})
		}
	}
	harness.Check(book.Put(context.Background(), all))
	o := &engine.Options{Overrides: book}
	if w.topKeys {
		o.TopKeys = topkeys.New(nil)
	}
	text := "domain: edge\ndescriptors:\n"
	for _, p := range parts[:max(w.descriptors, 5)] {
		text += fmt.Sprintf("  - {key: %s, %s}\n", p.key, p.limit)
	}
	e := engine.New(penstock.NewMemory(nil), o)
	e.SetRules(harness.Must(rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(text)})))
	return e
}

// keys is how many users decisions are about: so many that they do not fit in the caches of
// the processor together with the overrides.
const keys = 10_000

// decider returns a function that decides about key i with an engine. Its requests are of different
// users, and in the memory of the request before, as the APIs decode them.
func (w *workload) decider() func(i int) error {
	e := w.engine()
	addresses, tenants := make([]string, keys), make([]string, 100)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("203.%d.%d.9", i>>8, i&255)
	}
	for i := range tenants {
		tenants[i] = fmt.Sprint("tenant", i)
	}
	ds := make([]engine.Descriptor, w.descriptors)
	for i, p := range parts[:w.descriptors] {
		ds[i] = engine.Descriptor{Entries: []rules.Entry{{Key: p.key, Value: p.value}}, Cost: 1}
	}
	var decided engine.Result
	return func(i int) error {
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
	}
}

// flood measures how many megabytes top keys hold after decisions about many keys.
func (b *bench) flood() {
	before := harness.Heap()
	tracker := topkeys.New(nil)
	source := tracker.NewSource("edge/user")
	keys := b.Size(10_000_000, 100_000)
	for i := range keys {
		tracker.Record(source, fmt.Sprint("user=", i), topkeys.Denied, 1, 0)
	}
	held := float64(int64(harness.Heap().HeapAlloc)-int64(before.HeapAlloc)) / 1e6
	runtime.KeepAlive(tracker)
	b.Find(fmt.Sprintf("top keys after %s different keys", harness.Thousands(keys)), "≤ 8 MB", held <= 8, "%.1f MB", held)
}

// A ruleBench measures what many rules cost: how long rules, and exact values under one parent, take to
// load, what a match among them costs, and how long requests take while the rules are reloaded.
type ruleBench struct {
	*harness.Run
	rules, values int
	load          time.Duration // of requests, without reloads and with them
}

func newRuleBench(r *harness.Run) *ruleBench {
	return &ruleBench{r, r.Size(10_000, 100), r.Size(100_000, 1000), harness.Scale(r, 10*time.Second, 100*time.Millisecond)}
}

// loadAndMatch measures how long the rules take to load, and what a match costs.
func (b *ruleBench) loadAndMatch() {
	began := time.Now()
	set := harness.Must(b.parse())
	loaded := time.Since(began)
	b.Find(fmt.Sprintf("load %d rules and %d values", b.rules, b.values), "≤ 2 s", loaded <= 2*time.Second, "%.2f s", loaded.Seconds())
	for _, d := range b.descriptors() {
		nanos := matchNanos(set, d)
		b.Find("match "+strings.ReplaceAll(string(rules.AppendKey(nil, d)), "|", " and "), "≤ 300 ns", nanos <= 300, "%.0f ns", nanos)
	}
}

// domain is that of all rules.
const domain = "api"

// parse returns the rules, in two files: for the users of each route, and exact values under one parent.
func (b *ruleBench) parse() (*rules.Set, error) {
	var routes, tenants strings.Builder
	routes.WriteString("domain: " + domain + "\ndescriptors:\n")
	for i := range b.rules {
		fmt.Fprintf(&routes, "- {key: route, value: /r%d, descriptors: [{key: user, limit: 1000000000/1s}]}\n", i)
	}
	tenants.WriteString("domain: tenants\ndescriptors:\n- key: plan\n  value: paid\n  descriptors:\n")
	for i := range b.values {
		fmt.Fprintf(&tenants, "  - {key: tenant, value: t%d, limit: 1000000000/1s}\n", i)
	}
	return rules.Parse(rules.File{Name: "routes.yaml", Text: []byte(routes.String())}, rules.File{Name: "tenants.yaml", Text: []byte(tenants.String())})
}

// descriptors returns one for a route, and one for a value.
func (b *ruleBench) descriptors() [][]rules.Entry {
	return [][]rules.Entry{
		{{Key: "route", Value: fmt.Sprintf("/r%d", b.rules/2)}, {Key: "user", Value: "ada"}},
		{{Key: "plan", Value: "paid"}, {Key: "tenant", Value: fmt.Sprintf("t%d", b.values/2)}},
	}
}

// matchNanos returns what a match costs.
func matchNanos(set *rules.Set, entries []rules.Entry) float64 {
	buf, all := make([]byte, 0, 256), set.Domains()
	i := slices.IndexFunc(all, func(d *rules.Domain) bool {
		matched, _ := d.Match(entries, buf)
		return matched != nil
	})
	r := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			all[i].Match(entries, buf)
		}
	})
	return float64(r.T.Nanoseconds()) / float64(r.N)
}

// reloadUnderLoad measures how long requests take without reloads, and during them.
func (b *ruleBench) reloadUnderLoad() {
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(harness.Must(b.parse()))
	quiet := b.request(e)
	reloads := 0
	stop := harness.Background(func(stopped func() bool) error {
		for reloads == 0 || !stopped() {
			set, err := b.parse()
			if err != nil {
				return err
			}
			e.SetRules(set)
			reloads++
		}
		return nil
	})
	defer func() { _ = stop() }()
	busy := b.request(e)
	harness.Check(stop())
	b.Find("median request", "", true, "%v", harness.Quantile(quiet, 0.5))
	b.Find(fmt.Sprintf("slowest of %d requests", len(quiet)), "", true, "%v", harness.Quantile(quiet, 1))
	b.Find(fmt.Sprintf("median request, during %d reloads", reloads), "", true, "%v", harness.Quantile(busy, 0.5))
	b.Find("99.9 % of requests, during reloads", "", true, "%v", harness.Quantile(busy, 0.999))
	slowest := harness.Quantile(busy, 1)
	b.Find(fmt.Sprintf("slowest of %d requests, during reloads", len(busy)), "≤ 5 ms", slowest <= 5*time.Millisecond, "%v", slowest)
}

// pause is between two requests, so that the caller does not fill a processor.
const pause = 100 * time.Microsecond

// request makes requests, at least one, and returns how long each of them took.
func (b *ruleBench) request(e *engine.Engine) (times []time.Duration) {
	var r engine.Result
	ds := []engine.Descriptor{{Entries: b.descriptors()[0], Cost: 1}}
	for end := time.Now().Add(b.load); len(times) == 0 || time.Now().Before(end); time.Sleep(pause) {
		began := time.Now()
		harness.Check(e.Decide(context.Background(), domain, ds, &r))
		times = append(times, time.Since(began))
		if r.OverLimit || r.Statuses[0].Rule == nil {
			harness.Failf("a request was denied, or matched no rule: %+v", r)
		}
	}
	return times
}
