package main

import (
	"cmp"
	"context"
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

// benchOptions configure the load on one API of a server.
type benchOptions struct {
	api      string
	addr     string
	domain   string
	duration time.Duration
	callers  int
	pipeline int
	keys     int
	units    int // of each key
	json     bool
}

const maxBenchDuration = time.Hour

func benchCommand() *cobra.Command {
	var o benchOptions
	bench := &cobra.Command{
		Use:   "bench grpc|http|resp",
		Short: "Load-test one API of a running server",
		Long: `Bench sends requests to one API as fast as its callers can, each for one unit of a
random key, and prints the latencies. It also checks the decisions: of each key, the
server must allow exactly as many units as the limit has.

Every run uses new keys. On the gRPC API, the request carries its limit, and the
server must have rules for the domain.`,
		Example: `  penstock bench http
  penstock bench resp --addr localhost:6380 --callers 50 --pipeline 16
  penstock bench grpc --domain shop --duration 30s --json > result.json`,
		Args:      oneOfArgs("API", "grpc", "http", "resp"),
		ValidArgs: []string{"grpc", "http", "resp"},
		RunE: func(c *cobra.Command, args []string) error {
			o.api = args[0]
			if err := o.setAddr(); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			return bench(c.Context(), o, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := bench.Flags()
	f.SortFlags = false
	f.StringVar(&o.addr, "addr", "", "HOST:PORT of the listener, without TLS; by default derived from the settings of penstock serve on this machine")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long to send requests, at most 1h")
	f.IntVar(&o.callers, "callers", 64, "number of concurrent callers")
	f.IntVar(&o.pipeline, "pipeline", 1, "requests that a caller sends at once; RESP only")
	f.IntVar(&o.keys, "keys", 10_000, "number of keys")
	f.IntVar(&o.units, "units", 100, "units per key and day")
	f.StringVar(&o.domain, "domain", "bench", "domain of the requests; gRPC only")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return bench
}

// setAddr sets the address of the listener from the settings of the server on this
// machine, unless --addr is set.
func (o *benchOptions) setAddr() error {
	if o.addr != "" {
		return nil
	}
	at, err := (&connectFlags{withoutToken: true}).connect(o.api)
	if err != nil {
		return err
	}
	if at.socket != "" {
		return fmt.Errorf("the %s listener is on a Unix socket: set --addr to HOST:PORT of another", o.api)
	}
	o.addr = at.url.Host
	return nil
}

func (o *benchOptions) check() error {
	switch {
	case strings.Contains(o.addr, "://"):
		return fmt.Errorf("--addr %s: want HOST:PORT of a listener without TLS", o.addr)
	case o.duration <= 0 || o.duration > maxBenchDuration:
		return fmt.Errorf("--duration %v: want more than 0 and at most %v", o.duration, maxBenchDuration)
	}
	for _, flag := range []struct {
		name        string
		value, most int
	}{
		{"callers", o.callers, 10_000}, {"keys", o.keys, 10_000_000}, {"units", o.units, 1_000_000}, {"pipeline", o.pipeline, 1000},
	} {
		if flag.value < 1 || flag.value > flag.most {
			return fmt.Errorf("--%s %d: want from 1 to %d", flag.name, flag.value, flag.most)
		}
	}
	if o.pipeline > 1 && o.api != "resp" {
		return errors.New("--pipeline: only the RESP API has pipelines")
	}
	return nil
}

// A benchRun holds the counts of a running bench. Slices are indexed by key, latencies
// by caller.
type benchRun struct {
	benchOptions
	keyNames  []string
	requests  []atomic.Int64
	allowed   []atomic.Int64
	latencies []*histogram
	started   time.Time
}

func bench(ctx context.Context, o benchOptions, stdout, stderr io.Writer) error {
	b := newBenchRun(o)
	open, closeAll, err := openAPI(o)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx, cancel := context.WithTimeoutCause(ctx, o.duration, errBenchDone)
	defer cancel()

	var progress sync.WaitGroup
	progress.Go(func() { b.showProgress(ctx, stderr, time.Second) })
	err = b.run(ctx, open)
	cancel()
	progress.Wait()
	if err != nil {
		return fmt.Errorf("bench %s at %s: %w", o.api, o.addr, err)
	}
	return b.report(stdout)
}

var errBenchDone = errors.New("duration is over")

func newBenchRun(o benchOptions) *benchRun {
	b := &benchRun{
		benchOptions: o,
		keyNames:     make([]string, o.keys),
		requests:     make([]atomic.Int64, o.keys),
		allowed:      make([]atomic.Int64, o.keys),
		latencies:    make([]*histogram, o.callers),
		started:      time.Now(),
	}
	run := rand.Uint64()
	for i := range b.keyNames {
		b.keyNames[i] = fmt.Sprintf("bench:%016x:%d", run, i)
	}
	for i := range b.latencies {
		b.latencies[i] = &histogram{}
	}
	return b
}

// run runs the callers until ctx ends or one of them fails.
func (b *benchRun) run(ctx context.Context, open func() (loadClient, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var callers sync.WaitGroup
	failures := make([]error, b.callers)
	for i := range b.callers {
		callers.Go(func() {
			if failures[i] = b.runCaller(ctx, open, b.latencies[i]); failures[i] != nil {
				cancel(failures[i])
			}
		})
	}
	callers.Wait()
	if err := cmp.Or(failures...); err != nil { // the last requests may fail after the time is over
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, errBenchDone) {
		return err
	}
	return nil
}

// requestTimeout bounds every request of this command.
const requestTimeout = 10 * time.Second

// runCaller sends requests until ctx ends, and at least one batch. It waits for the response to the last one.
func (b *benchRun) runCaller(ctx context.Context, open func() (loadClient, error), latencies *histogram) error {
	c, err := open()
	if err != nil {
		return err
	}
	defer c.close()
	batch := make([]loadRequest, b.pipeline)
	for first := true; first || ctx.Err() == nil; first = false { // a run without requests would check nothing
		for i := range batch {
			batch[i].keyIndex = rand.IntN(b.keys)
			batch[i].key = b.keyNames[batch[i].keyIndex]
		}
		started := time.Now()
		if err := c.send(batch); err != nil {
			return err
		}
		latencies.add(time.Since(started))
		for _, r := range batch {
			b.requests[r.keyIndex].Add(1)
			if r.allowed {
				b.allowed[r.keyIndex].Add(1)
			}
		}
	}
	return nil
}

// showProgress writes a line at each interval until ctx ends.
func (b *benchRun) showProgress(ctx context.Context, w io.Writer, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	before := int64(0)
	for {
		select {
		case <-tick.C:
			before = b.printProgress(w, before, interval)
		case <-ctx.Done():
			return
		}
	}
}

// printProgress writes a line with the rate in the last interval, and returns the number of
// requests so far. before is that number at the start of the interval.
func (b *benchRun) printProgress(w io.Writer, before int64, interval time.Duration) (requests int64) {
	requests, _ = b.totals()
	all := merged(b.latencies)
	fmt.Fprintf(w, "%4.0fs of %v  %8.0f/s  p50 %-8s p99 %s\n", time.Since(b.started).Seconds(), b.duration,
		float64(requests-before)/interval.Seconds(), shortDuration(all.quantile(.5)), shortDuration(all.quantile(.99)))
	return requests
}

func (b *benchRun) totals() (requests, allowed int64) {
	for i := range b.requests {
		requests += b.requests[i].Load()
		allowed += b.allowed[i].Load()
	}
	return requests, allowed
}
