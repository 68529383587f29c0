package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// benchOptions say what to load a door with.
type benchOptions struct {
	door     string
	addr     string
	domain   string
	duration time.Duration
	callers  int
	pipeline int
	keys     int
	each     int
	json     bool
}

const longestBench = time.Hour

func benchCommand() *cobra.Command {
	var o benchOptions
	bench := &cobra.Command{
		Use:   "bench grpc|http|resp",
		Short: "Load one door of a running server",
		Long: `Bench asks one door as fast as its callers can, each of them for one unit of a key
at a time, and tells how long the answers took. It checks what it is told: of
each key, no more units may be granted than there are, and no fewer.

The keys are new ones in every run. On the gRPC door the limit comes with the
request, and the server must have rules for the domain.`,
		Example: `  penstock bench http
  penstock bench resp --addr localhost:6380 --callers 50 --pipeline 16
  penstock bench grpc --domain shop --duration 30s --json > result.json`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"grpc", "http", "resp"},
		RunE: func(c *cobra.Command, args []string) error {
			o.door = args[0]
			if err := o.check(); err != nil {
				return err
			}
			return bench(c.Context(), o, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := bench.Flags()
	f.SortFlags = false
	f.StringVar(&o.addr, "addr", "", "HOST:PORT where the door listens, without TLS (default: on this machine, at its usual port)")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long to ask, up to an hour")
	f.IntVar(&o.callers, "callers", 64, "how many ask at once")
	f.IntVar(&o.pipeline, "pipeline", 1, "how many questions a caller of the RESP door sends at once")
	f.IntVar(&o.keys, "keys", 10_000, "how many keys are asked about")
	f.IntVar(&o.each, "each", 100, "how many units a key has for the day")
	f.StringVar(&o.domain, "domain", "bench", "domain to ask for, on the gRPC door")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return bench
}

var usualAddr = map[string]string{"grpc": "127.0.0.1:8081", "http": "127.0.0.1:8080", "resp": "127.0.0.1:6380"}

func (o *benchOptions) check() error {
	if o.addr == "" {
		o.addr = usualAddr[o.door]
	}
	switch {
	case strings.Contains(o.addr, "://"):
		return fmt.Errorf("--addr %s: want HOST:PORT of a door without TLS", o.addr)
	case o.duration <= 0 || o.duration > longestBench:
		return fmt.Errorf("--duration %v: want more than zero, and at most %v", o.duration, longestBench)
	case o.callers < 1 || o.callers > 10_000:
		return fmt.Errorf("--callers %d: want from 1 to 10000", o.callers)
	case o.keys < 1 || o.keys > 10_000_000:
		return fmt.Errorf("--keys %d: want from 1 to 10000000", o.keys)
	case o.each < 1 || o.each > 1_000_000:
		return fmt.Errorf("--each %d: want from 1 to 1000000", o.each)
	case o.pipeline < 1 || o.pipeline > 1000:
		return fmt.Errorf("--pipeline %d: want from 1 to 1000", o.pipeline)
	case o.pipeline > 1 && o.door != "resp":
		return fmt.Errorf("--pipeline: only the door resp has pipelines")
	}
	return nil
}

// A load is a bench under way.
type load struct {
	benchOptions
	names   []string // of the keys
	asked   []atomic.Int64
	granted []atomic.Int64
	times   []*histogram // of the callers
	begin   time.Time
}

func bench(ctx context.Context, o benchOptions, stdout, stderr io.Writer) error {
	l := newLoad(o)
	openAsker, hangUp, err := dial(o)
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := context.WithTimeoutCause(ctx, o.duration, errTimeIsUp)
	defer cancel()

	stopProgress := l.showProgress(stderr)
	err = l.run(ctx, openAsker)
	stopProgress()
	if err != nil {
		return fmt.Errorf("bench %s at %s: %w", o.door, o.addr, err)
	}
	return l.report(stdout)
}

var errTimeIsUp = errors.New("time is up")

func newLoad(o benchOptions) *load {
	l := &load{
		benchOptions: o,
		names:        make([]string, o.keys),
		asked:        make([]atomic.Int64, o.keys),
		granted:      make([]atomic.Int64, o.keys),
		times:        make([]*histogram, o.callers),
		begin:        time.Now(),
	}
	run := rand.Uint64()
	for i := range l.names {
		l.names[i] = fmt.Sprintf("bench:%016x:%d", run, i)
	}
	for i := range l.times {
		l.times[i] = &histogram{}
	}
	return l
}

// run lets the callers ask until ctx ends, or until one of them gets no answer.
func (l *load) run(ctx context.Context, open func() (asker, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var callers sync.WaitGroup
	for i := range l.callers {
		callers.Go(func() {
			if err := l.call(ctx, open, l.times[i]); err != nil {
				cancel(err)
			}
		})
	}
	callers.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errTimeIsUp) {
		return err
	}
	return nil
}

// answerTime is how long an answer may take.
const answerTime = 10 * time.Second

// call asks until ctx ends. What has been asked is waited for.
func (l *load) call(ctx context.Context, open func() (asker, error), times *histogram) error {
	a, err := open()
	if err != nil {
		return err
	}
	defer a.close()
	batch := make([]question, l.pipeline)
	for ctx.Err() == nil {
		for i := range batch {
			batch[i].index = rand.IntN(l.keys)
			batch[i].key = l.names[batch[i].index]
		}
		begin := time.Now()
		if err := a.ask(batch); err != nil {
			return err
		}
		times.add(time.Since(begin))
		for _, q := range batch {
			l.asked[q.index].Add(1)
			if q.granted {
				l.granted[q.index].Add(1)
			}
		}
	}
	return nil
}

// showProgress writes a line a second, until it is stopped.
func (l *load) showProgress(w io.Writer) (stop func()) {
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		before := int64(0)
		for {
			select {
			case <-tick.C:
				asked, _ := l.totals()
				all := &histogram{}
				all.merge(l.times)
				fmt.Fprintf(w, "%4.0fs of %v  %8d/s  p50 %-8s p99 %s\n", time.Since(l.begin).Seconds(), l.duration,
					asked-before, short(all.quantile(.5)), short(all.quantile(.99)))
				before = asked
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		showing.Wait()
	}
}

func (l *load) totals() (asked, granted int64) {
	for i := range l.asked {
		asked += l.asked[i].Load()
		granted += l.granted[i].Load()
	}
	return asked, granted
}

// A benchResult is what a bench found. Times are in nanoseconds.
type benchResult struct {
	Door      string  `json:"door"`
	Addr      string  `json:"addr"`
	Callers   int     `json:"callers"`
	Pipeline  int     `json:"pipeline"`
	Keys      int     `json:"keys"`
	Each      int     `json:"each"`
	Seconds   float64 `json:"seconds"`
	Asked     int64   `json:"asked"`
	Granted   int64   `json:"granted"`
	Denied    int64   `json:"denied"`
	PerSecond float64 `json:"per_second"`
	Mean      int64   `json:"mean_ns"`
	P50       int64   `json:"p50_ns"`
	P90       int64   `json:"p90_ns"`
	P99       int64   `json:"p99_ns"`
	P999      int64   `json:"p999_ns"`
	Max       int64   `json:"max_ns"`
	Histogram []row   `json:"histogram"`
	Wrong     string  `json:"wrong,omitempty"` // what the answers should not have been
}

func (l *load) report(w io.Writer) error {
	all := &histogram{}
	all.merge(l.times)
	r := l.result(all)
	if l.json {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return err
		}
	} else {
		r.print(w, all)
	}
	if r.Wrong != "" {
		return errNo
	}
	return nil
}

func (l *load) result(all *histogram) benchResult {
	elapsed := time.Since(l.begin)
	asked, granted := l.totals()
	return benchResult{
		Door: l.door, Addr: l.addr, Callers: l.callers, Pipeline: l.pipeline, Keys: l.keys, Each: l.each,
		Seconds: elapsed.Seconds(), Asked: asked, Granted: granted, Denied: asked - granted,
		PerSecond: float64(asked) / elapsed.Seconds(),
		Mean:      int64(all.mean()), P50: int64(all.quantile(.5)), P90: int64(all.quantile(.9)),
		P99: int64(all.quantile(.99)), P999: int64(all.quantile(.999)), Max: all.max.Load(),
		Histogram: all.rows(), Wrong: l.wrong(elapsed),
	}
}

func (r benchResult) print(w io.Writer, all *histogram) {
	fmt.Fprintf(w, "%s at %s, %s, %s\n", r.Door, r.Addr, plural(r.Callers, "caller"), plural(r.Keys, "key"))
	all.draw(w)
	fmt.Fprintf(w, "p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n", short(time.Duration(r.P50)), short(time.Duration(r.P90)),
		short(time.Duration(r.P99)), short(time.Duration(r.P999)), short(time.Duration(r.Max)))
	fmt.Fprintf(w, "%d asked in %.1fs, %.0f a second; %d granted, %d denied\n", r.Asked, r.Seconds, r.PerSecond, r.Granted, r.Denied)
	if r.Wrong != "" {
		fmt.Fprintln(w, "wrong:", r.Wrong)
	}
}

// wrong says what the answers should not have been. A key has so many units for the
// day; they come back evenly, or all of them when a day begins.
func (l *load) wrong(elapsed time.Duration) string {
	most := int64(l.each) + 1 + int64(float64(l.each)*elapsed.Hours()/24)
	if now := time.Now().UTC(); now.YearDay() != now.Add(-elapsed).YearDay() {
		most += int64(l.each)
	}
	for i := range l.names {
		asked, granted := l.asked[i].Load(), l.granted[i].Load()
		if granted > most || granted < min(asked, int64(l.each)) {
			return fmt.Sprintf("key %s asked for %d and was granted %d of the %d it had", l.names[i], asked, granted, l.each)
		}
	}
	return ""
}
