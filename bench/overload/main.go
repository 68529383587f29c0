// Command overload compares penstock's gate and breaker with others: what a server serves
// under overload, and what a service that fails or hangs is sent. It prints Markdown.
//
//	go run ./overload                              # everything, more than an hour
//	go run ./overload -run breaker                 # some cases
//	go run ./overload -quick                       # seconds, to see that it runs
//	go run ./overload -run offered -csv results/overload.csv
//
// Servers and clients are simulated in virtual time, with the limiters' own code: it reads
// the clock of a testing/synctest bubble. Limiters that go by the processor are told how busy
// the simulated workers are, through their own averages. hystrix-go leaves goroutines behind,
// so it runs in real time. The case "virtual server" is an HTTP server in virtual time; "real" starts
// servers as processes of their own, and sends them requests at a fixed rate.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// A bench is one run.
type bench struct {
	*harness.Run
	t        *testing.T
	csv      string
	realCSV  string
	only     string
	realTurn time.Duration
	under    string // the command that starts real servers
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
	b.Flags.StringVar(&b.csv, "csv", "", "write goodput and p99 by offered load to this `file`, for bench/plots")
	b.Flags.StringVar(&b.realCSV, "real-csv", "", "write goodput of real servers by offered load to this `file`, for bench/plots")
	b.Flags.DurationVar(&b.realTurn, "real-turn", 10*time.Second, "how long a real server has each load")
	b.Flags.StringVar(&b.under, "real-under", "", "start real servers by this `command`, such as taskset -c 0")
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

// phases are when the overload begins, when it is measured, and when it ends.
type phases struct{ begin, from, until time.Duration }

func (b *bench) phases(workers int) phases {
	switch {
	case b.Quick:
		return phases{time.Second, 2 * time.Second, 3 * time.Second}
	case workers == 100: // ten times the calls: a shorter time says as much
		return phases{2 * time.Second, 12 * time.Second, 17 * time.Second}
	}
	return phases{5 * time.Second, 15 * time.Second, 40 * time.Second}
}

const good = 10 * mean // how soon a response is of use

// A simulation is what a library is measured with, in virtual time.
type simulation struct {
	server      newServer
	load        load
	from, until time.Duration
	good        time.Duration // how soon a response is of use
	runs        int           // of which the result is the mean; small servers vary by chance
	gates       int           // before the server; 0 is one
	cpuIdle     bool
	critical    bool // whether only critical calls are of interest
}

// run returns what a library serves.
func (b *bench) run(l library, s simulation) (mean summary) {
	b.each(l, s, func(w *world) { mean.add(w.summary(s.from, s.until, s.good, s.critical), s.runs) })
	return mean
}

// each calls a function after each run.
func (b *bench) each(l library, s simulation, do func(*world)) {
	for seed := range s.runs {
		b.simulate(func() {
			w := &world{clients: clients{patience: s.good}, load: s.load, cpuIdle: s.cpuIdle}
			for range max(s.gates, 1) {
				w.limiters = append(w.limiters, l.make())
			}
			w.run(s.server, s.until, seed+1)
			do(w)
		})
	}
}

// atCapacity compares what libraries serve at multiples of the capacity of a server, with ours and
// with the best of the rivals.
func (b *bench) atCapacity(title string, workers int, server newServer, libraries []library, find func(title string, share, p99, best float64)) {
	p := b.phases(workers)
	capacity, runs, offers := float64(workers)/mean.Seconds(), 1, harness.Scale(b.Run, []float64{2, 5, 10}, []float64{5})
	if workers <= 2 {
		runs = b.Size(8, 1)
	}
	type result struct{ share, p99 float64 }
	mine, best := map[float64]result{}, map[float64]float64{}
	head := fmt.Sprintf("%s, from %s to %s after the overload began: share of the capacity served within 100 ms, and p99 beside that of an idle server",
		title, p.from-p.begin, p.until-p.begin)
	b.grid(head, offers, libraries, func(l library, times float64) string {
		s := b.run(l, simulation{
			server: server, load: load{rate: overloaded(capacity, times, p.begin), work: exponential},
			from: p.from, until: p.until, good: good, runs: runs,
		})
		r := result{s.good / capacity, float64(s.p99) / float64(idleP99)}
		if l.name == ours {
			mine[times] = r
		} else {
			best[times] = max(best[times], r.share)
		}
		return fmt.Sprintf("%.2f, %.1f×", r.share, r.p99)
	})
	for _, times := range offers {
		find(fmt.Sprintf("%s, %g× the capacity", title, times), mine[times].share, mine[times].p99, best[times])
	}
}

// capacity is what a server of so many workers serves at multiples of its capacity.
func (b *bench) capacity(workers int) {
	if b.Quick && workers != 10 {
		return
	}
	most, some := 2.0, libraries
	switch workers {
	case 2:
		most = 2.5
	case 100:
		some = libraries[:len(libraries)-1] // without a limiter, a queue grows to a hundred thousand
	}
	find := func(title string, share, p99, best float64) {
		best = min(best, 1) // more than the capacity is chance
		b.Find(title, fmt.Sprintf("≥ 0.95 of the capacity and of the best − 0.02, p99 ≤ %g× idle", most),
			share >= 0.95 && share >= best-0.02 && p99 <= most, "%.3f, the best rival %.3f; p99 %.2f×", share, best, p99)
	}
	b.atCapacity(fmt.Sprintf("%d workers, pool", workers), workers, newPool(workers), some, find)
	b.atCapacity(fmt.Sprintf("%d workers, shared processors", workers), workers, newShared(workers), some, find)
}

// processor is a process of one busy processor, whose limiter sees calls only when it is their
// turn.
func (b *bench) processor() {
	b.atCapacity("One processor with a run queue", 1, newProcessor, libraries,
		func(title string, share, _, best float64) {
			b.Find(title, "≥ the best rival − 0.02", share >= best-0.02, "%.3f, the best %.3f", share, best)
		})
}

// offered is goodput by offered load: ten workers that keep the processor busy, and ten that
// wait for something else.
func (b *bench) offered() {
	lines := [][]string{{"case", "limiter", "offered", "goodput", "p99"}}
	add := func(processor string, libraries []library) {
		offers := harness.Scale(b.Run, []float64{0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10}, []float64{0.5, 3})
		p := harness.Scale(b.Run, phases{5 * time.Second, 20 * time.Second, 35 * time.Second}, phases{0, time.Second, 2 * time.Second})
		b.grid("Served within 100 ms of 1,000/s, 10 workers, processor "+processor, offers, libraries, func(l library, times float64) string {
			s := b.run(l, simulation{
				server: newPool(10), load: load{rate: overloaded(1000, times, p.begin), work: exponential},
				from: p.from, until: p.until, good: good, runs: 1, cpuIdle: processor == "idle",
			})
			if times == 0.8 && l.name == ours {
				b.Find("refused at 0.8 of the capacity, processor "+processor, "≤ 0.2 %", s.refused <= 0.002, "%.2f %%", 100*s.refused)
			}
			served := strconv.FormatFloat(s.good, 'f', 0, 64)
			p99 := strconv.FormatFloat(float64(s.p99)/float64(time.Millisecond), 'f', 0, 64)
			lines = append(lines, []string{processor, l.name, strconv.FormatFloat(1000*times, 'f', 0, 64), served, p99})
			return served
		})
	}
	add("busy", libraries)
	add("idle", slices.DeleteFunc(slices.Clone(libraries), func(l library) bool { // the others know nothing of the processor
		return !strings.HasSuffix(l.name, cpuLimiter) && l.name != ours && l.name != noLimiter
	}))
	harness.WriteCSV(b.csv, lines)
}

// changes are servers that change, and calls that take their time or never end.
func (b *bench) changes() {
	t := b.Table("Servers that change",
		"limiter", "refused when latency alone rises tenfold: first 5 s, later", "service time ×3: served of 333/s",
		"21 calls hang: served of 700/s", "heavy tail: served of 1,000/s", "refused at 0.8 of the capacity")
	long, some := harness.Scale(b.Run, 60*time.Second, 11*time.Second), libraries[:b.Size(len(libraries), 1)]
	for _, l := range some {
		serve := func(load load, from, good time.Duration, runs int) summary {
			return b.run(l, simulation{server: newPool(10), load: load, from: from, until: long, good: good, runs: runs})
		}
		first, later := b.latencyAlone(l, long)
		step := serve(load{rate: simserver.Steady(2000), work: simserver.Stepped(exponential, 10e9, 3)}, 10*time.Second, 30*mean, 1).good
		hung := serve(load{rate: simserver.Steady(2000), work: exponential, hangAt: 10 * time.Second, hang: 21, working: 3}, 10*time.Second, good, 1).good
		tail := serve(load{rate: simserver.Steady(2000), work: simserver.HeavyTail}, 10*time.Second, 3*91*time.Millisecond, 8).good // one run in ten serves 0.93 by chance
		below := serve(load{rate: simserver.Steady(800), work: exponential}, 5*time.Second, good, 1).refused
		t.Row(l.name, fmt.Sprintf("%.0f %%, %.1f %%", 100*first, 100*later), harness.Decimals(0)(step), harness.Decimals(0)(hung),
			harness.Decimals(0)(tail), fmt.Sprintf("%.2f %%", 100*below))
		if l.name == ours {
			b.Find("latency alone rises tenfold: refused", "≤ 20 % for 5 s, then none", first <= 0.2 && later <= 0.001, "%.1f %%, %.2f %%", 100*first, 100*later)
			b.Find("service time ×3", "≥ 0.95 of 333/s", step >= 0.95*333, "%.3f", step/333)
			b.Find("21 calls hang, 3 of them at a worker", "≥ 0.95 of 700/s", hung >= 0.95*700, "%.3f", hung/700)
			b.Find("heavy tail, 90 % 1 ms and 10 % 91 ms", "≥ 0.95 of 1,000/s", tail >= 950, "%.3f", tail/1000)
			b.Find("0.8 of the capacity: refused", "≤ 0.2 %", below <= 0.002, "%.2f %%", 100*below)
		}
	}
}

// latencyAlone is the mean of eight runs: what is refused before a probe shows that calls do
// not queue depends on when it begins.
func (b *bench) latencyAlone(l library, until time.Duration) (first, later float64) {
	const runs = 8
	rises := load{rate: simserver.Steady(500), work: simserver.Stepped(exponential, 5e9, 10)}
	b.each(l, simulation{server: newRemote, load: rises, until: until, runs: runs}, func(w *world) {
		first += w.summary(5*time.Second, 10*time.Second, good, false).refused / runs
		later += w.summary(10*time.Second, until, good, false).refused / runs
	})
	return first, later
}
