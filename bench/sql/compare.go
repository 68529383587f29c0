package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// timeout only detects hangs.
const timeout = time.Minute

// ample is a limit that no key of a run reaches, and that hardly refills during it.
var ample = penstock.PerHour(1000).WithBurst(100_000_000)

// targets are the least rate and the most latency of PostgreSQL, compared with Redis. Zero means none.
type targets struct{ rate, p99 float64 }

// A task is what one process does.
type task struct {
	Place         [3]string
	Keys, Callers int
}

// compare measures the stores of all places, with callers in so many processes.
func (b *bench) compare(processes, keys int, want targets) {
	title := fmt.Sprintf("%d process%s, %s", processes, plural(processes, "", "es"), plural(keys, "one key", harness.Thousands(keys)+" keys"))
	var all []*harness.Contender
	for _, p := range b.places {
		if processes > 1 && p.driver == "sqlite" {
			continue // which is for one
		}
		all = append(all, b.contender(p, processes, keys))
	}
	b.Logf("%s: %d rounds of %s for each of %d stores", title, b.Rounds, b.Turn, len(all))
	harness.TakeTurns(1, all...)
	for _, c := range all {
		c.Forget()
	}
	harness.TakeTurns(b.Rounds, all...)
	t := b.Table(fmt.Sprintf("%s, %d callers in all: medians of the rounds, in brackets the 10th to the 90th percentile", title, callers),
		"store", "thousand calls a second", "to Redis", "p50, ms", "p99, ms", "to Redis", "program µs a call", "server µs a call")
	redis, postgres := all[0], all[1]
	for _, c := range all {
		t.Row(c.Name, harness.Decimals(1)(c.Median("rate")/1000), c.To(redis, "rate"),
			harness.Decimals(2)(c.Median("p50")), harness.Decimals(2)(c.Median("p99")), c.To(redis, "p99"),
			harness.Decimals(1)(c.Median("program")), harness.Decimals(1)(c.Median("server")))
		b.summarize(title, c, c.To(redis, "rate"))
	}
	if want.rate > 0 {
		b.FindAtLeast("PostgreSQL, "+title, postgres.To(redis, "rate"), want.rate, "Redis's rate")
	}
	if want.p99 > 0 {
		ratio := postgres.To(redis, "p99")
		b.Find("PostgreSQL, "+title+", p99", fmt.Sprintf("≤ %s Redis's", harness.Times(want.p99)), ratio.Median <= want.p99, "%s", ratio)
	}
}

// summarize adds a cell to the table that compares all stores in all cases.
func (b *bench) summarize(title string, c *harness.Contender, ratio harness.Spread) {
	if !slices.Contains(b.titles, title) {
		b.titles = append(b.titles, title)
	}
	if b.cells == nil {
		b.cells = map[[2]string]any{}
	}
	b.cells[[2]string{c.Name, title}] = ratio
}

// summary prints the table.
func (b *bench) summary() {
	t := b.Table(fmt.Sprintf("Decisions a second to Redis's, %d callers in all", callers), append([]string{"store"}, b.titles...)...)
	for _, p := range b.places[1:] {
		row := []any{p.name}
		for _, title := range b.titles {
			row = append(row, cmp.Or(b.cells[[2]string{p.name, title}], any("")))
		}
		t.Row(row...)
	}
}

func plural(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// contender starts the processes of a place. One is this process.
func (b *bench) contender(p place, processes, keys int) *harness.Contender {
	t := task{Place: [3]string{p.name, p.driver, p.source}, Keys: keys, Callers: callers / processes}
	var workers []func(time.Duration) result
	if processes == 1 {
		w := newWorker(t)
		b.Cleanup(w.close)
		workers = append(workers, w.run)
	}
	for len(workers) < processes {
		workers = append(workers, b.startChild(t))
	}
	return &harness.Contender{Name: p.name, Measure: func(c *harness.Contender) {
		results, before := make([]result, len(workers)), p.processor()
		_, _ = harness.Concurrently(len(workers), func(i int) error {
			results[i] = workers[i](b.Turn)
			return nil
		})
		var sum result
		for _, r := range results {
			if r.Problem != "" {
				harness.Failf("%s: %s", p.name, r.Problem)
			}
			sum.Rate += r.Rate
			sum.Calls += r.Calls
			sum.Processor += r.Processor
			sum.P50, sum.P99 = max(sum.P50, r.P50), max(sum.P99, r.P99)
		}
		c.Add("rate", sum.Rate)
		c.Add("p50", sum.P50)
		c.Add("p99", sum.P99)
		c.Add("program", sum.Processor/sum.Calls)
		c.Add("server", (p.processor()-before)/sum.Calls)
	}}
}

// A result is that of one turn of one process: calls a second, and milliseconds.
type result struct {
	Rate, P50, P99   float64
	Calls, Processor float64 // processor time of the process, in microseconds
	Problem          string
}

// A worker is the callers of one process.
type worker struct {
	limiter *penstock.Limiter
	keys    []string
	callers int
	turn    int
	close   func()
}

// newWorker opens a store and takes from each key once.
func newWorker(t task) *worker {
	store, closeStore := place{name: t.Place[0], driver: t.Place[1], source: t.Place[2]}.open()
	w := &worker{limiter: harness.Must(penstock.New(store, ample)), callers: t.Callers, close: closeStore}
	for i := range t.Keys {
		w.keys = append(w.keys, fmt.Sprintf("user:%015d", i))
	}
	_, err := harness.Concurrently(w.callers, func(g int) error {
		for i := g; i < len(w.keys); i += w.callers {
			if d, err := w.limiter.Allow(context.Background(), w.keys[i]); err != nil || !d.Allowed {
				return fmt.Errorf("%s: key %d: %v, %w", t.Place[0], i, d, err)
			}
		}
		return nil
	})
	harness.Check(err)
	return w
}

// run calls for so long, in all callers at once.
func (w *worker) run(turn time.Duration) result {
	w.turn++
	next := make([]int, w.callers)
	for g := range next {
		next[g] = g*len(w.keys)/w.callers + w.turn*7919
	}
	user, system := harness.Processor()
	begin := time.Now()
	all, err := harness.CallUntil(w.callers, begin.Add(turn), func(g int) error {
		next[g]++
		d, err := w.limiter.Allow(context.Background(), w.keys[next[g]%len(w.keys)])
		if err != nil || !d.Allowed {
			return fmt.Errorf("%v, %w", d, err)
		}
		return nil
	})
	if err != nil {
		return result{Problem: err.Error()}
	}
	calls, took := float64(len(all)), time.Since(begin)
	userAfter, systemAfter := harness.Processor()
	return result{
		Calls: calls, Processor: userAfter - user + systemAfter - system, Rate: calls / took.Seconds(),
		P50: harness.Millis(harness.Quantile(all, 0.5)), P99: harness.Millis(harness.Quantile(all, 0.99)),
	}
}

// startChild starts a process for a task. What it returns lets it take a turn.
func (b *bench) startChild(t task) func(time.Duration) result {
	cmd := harness.Child(string(harness.Must(json.Marshal(t))))
	in, out := harness.Must(cmd.StdinPipe()), harness.Must(cmd.StdoutPipe())
	harness.Check(cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := json.NewDecoder(out)
	var ready result
	harness.Check(lines.Decode(&ready))
	return func(turn time.Duration) result {
		var r result
		if _, err := fmt.Fprintln(in, turn); err != nil {
			return result{Problem: err.Error()}
		}
		if err := lines.Decode(&r); err != nil {
			return result{Problem: err.Error()}
		}
		return r
	}
}

// child does the turns that it reads.
func child(text string) {
	var t task
	harness.Check(json.Unmarshal([]byte(text), &t))
	w := newWorker(t)
	defer w.close()
	report := json.NewEncoder(os.Stdout)
	harness.Check(report.Encode(result{}))
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return
		}
		harness.Check(err)
		turn := harness.Must(time.ParseDuration(line[:len(line)-1]))
		harness.Check(report.Encode(w.run(turn)))
	}
}

// newDirectory returns a directory that is removed after the case.
func newDirectory(b *bench) (string, error) {
	dir, err := os.MkdirTemp("", "bench-sql")
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, err
}
