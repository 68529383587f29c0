// Command outage shows what two processes admit of one key while Redis is killed
// and comes back empty. It writes CSV that bench/plots draws, and fails if more
// was admitted than docs/reliability.md states, or if there was no outage.
//
//	go run ./outage -csv results/outage.csv
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// The run: its limit, the number of processes that share it, and when Redis is down.
const (
	rate      = 100 // a second, and the burst
	processes = 2
	offered   = 250 // requests a second of each process
	sample    = 100 * time.Millisecond
)

// phases are fractions of the run.
const (
	killAt    = 1.0 / 3
	restartAt = 2.0 / 3
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// command measures, writes the samples and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	r := harness.New("outage", stdout, stderr)
	file := r.Flags.String("csv", "", "write the samples to this `file`; default standard output")
	length := r.Flags.Duration("length", 12*time.Second, "`duration` of the run")
	r.Prepare = func() {
		r.Done = true // there is no report
		if r.Quick {
			*length /= 2
		}
		samples, out := measure(r, *length), stdout
		if *file != "" {
			f := harness.Must(os.Create(*file))
			defer func() { harness.Check(f.Close()) }()
			out = f
		}
		harness.Check(write(out, samples))
		harness.Check(check(samples))
	}
	return r.Main(args, nil)
}

// A point is what had been admitted at a time of the run.
type point struct {
	at                 time.Duration
	admitted, fallback int64
	bound              float64
	down               bool
}

type counters struct{ admitted, fallback atomic.Int64 }

func measure(r *harness.Run, length time.Duration) (samples []point) {
	server := redistest.StartForTest(r, redistest.Options{})
	var limiters []*penstock.Limiter
	for range processes {
		store := harness.Must(redisstore.Open(context.Background(), "redis://"+server.Addr, nil))
		r.Cleanup(store.Close)
		fallback := penstock.WithFallback(store, nil, &penstock.FallbackOptions{Share: 1.0 / processes})
		limiters = append(limiters, harness.Must(penstock.New(fallback, penstock.PerSecond(rate))))
	}
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var c counters
	begin := time.Now()
	_, err := harness.Concurrently(processes+1, func(i int) error {
		if i == processes {
			samples = c.watch(ctx, server, begin, length)
			return nil
		}
		return c.call(ctx, limiters[i])
	})
	if err != nil {
		r.Fatalf("a caller saw an error: %w", err)
	}
	return samples
}

// call takes one unit after the other, at the offered rate.
func (c *counters) call(ctx context.Context, lim *penstock.Limiter) error {
	tick := time.NewTicker(time.Second / offered)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d, err := lim.Allow(context.WithoutCancel(ctx), "user:42")
		switch {
		case err != nil:
			return err
		case d.Allowed && d.Source == penstock.SourceFallback:
			c.fallback.Add(1)
			c.admitted.Add(1)
		case d.Allowed:
			c.admitted.Add(1)
		}
	}
}

// watch samples the counters, and kills and restarts Redis in between, after the fallback has
// decided. A Redis that is late is an outage too.
func (c *counters) watch(ctx context.Context, server *redistest.Server, begin time.Time, length time.Duration) (samples []point) {
	tick := time.NewTicker(sample)
	defer tick.Stop()
	killed, restarted := time.Duration(-1), time.Duration(-1)
	outages, decided, last, before := 0, false, int64(0), int64(0) // decided is whether the fallback did in the last sample
	for {
		// The clock is read last, so that nothing is admitted after the time of a sample.
		admitted, fallback := c.admitted.Load(), c.fallback.Load()
		at := time.Since(begin)
		if fallback > last && !decided {
			outages++
		}
		decided, last = fallback > last, fallback
		samples = append(samples, point{
			at: at, admitted: admitted, fallback: fallback,
			bound: boundAt(at, outages, restarted >= 0), down: killed >= 0 && restarted < 0,
		})
		switch {
		case killed < 0 && at >= fraction(length, killAt):
			server.Kill()
			killed, before = at, c.fallback.Load()
		case killed >= 0 && restarted < 0 && at >= fraction(length, restartAt) && fallback > before:
			if server.Restart() == nil {
				restarted = at
			}
		}
		select {
		case <-ctx.Done():
			return samples
		case <-tick.C:
		}
	}
}

func fraction(d time.Duration, f float64) time.Duration { return time.Duration(f * float64(d)) }

// boundAt is the bound of docs/reliability.md, F1 with a fallback: one burst and
// the rate, one burst of all shares together for each outage, one burst for the lost state.
func boundAt(at time.Duration, outages int, lost bool) float64 {
	bound := rate + rate*at.Seconds() + float64(rate*outages)
	if lost {
		bound += rate
	}
	return bound
}

// write writes CSV.
func write(w io.Writer, samples []point) error {
	lines := [][]string{{"seconds", "admitted", "bound", "down"}}
	for _, s := range samples {
		down := "0"
		if s.down {
			down = "1"
		}
		lines = append(lines, []string{fmt.Sprintf("%.1f", s.at.Seconds()), strconv.FormatInt(s.admitted, 10), fmt.Sprintf("%.0f", s.bound), down})
	}
	return csv.NewWriter(w).WriteAll(lines)
}

func check(samples []point) error {
	for _, s := range samples {
		const slack = 1 // the clock of Redis counts milliseconds
		if float64(s.admitted) > s.bound+slack {
			return fmt.Errorf("at %v %d were admitted, and the bound is %.0f", s.at, s.admitted, s.bound)
		}
	}
	if last := samples[len(samples)-1]; last.fallback == 0 {
		return errors.New("the fallback decided nothing: there was no outage")
	}
	return nil
}
