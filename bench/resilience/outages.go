package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// An outageTimer records the latencies that callers see during an outage.
type outageTimer struct {
	mu        sync.Mutex
	before    []time.Duration // that calls took until the first store was given up
	after     []time.Duration // and since then
	down      atomic.Bool
	fallback  atomic.Int64 // when it last decided, in nanoseconds since the epoch
	recording atomic.Bool
}

// load calls a limiter with a thousand keys until it is stopped.
func (w *outageTimer) load(lim *penstock.Limiter, perSecond float64, callers int) (stop func() counts) {
	return inBackground(perSecond, callers, func(rng *rand.Rand) (penstock.Decision, error) {
		down, start := w.down.Load(), time.Now()
		d, err := lim.Allow(context.Background(), strconv.Itoa(rng.IntN(1000)))
		end := time.Now()
		if d.Source == penstock.SourceFallback {
			w.fallback.Store(max(w.fallback.Load(), end.UnixNano()))
		}
		if w.recording.Load() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if down {
				w.after = append(w.after, end.Sub(start))
			} else {
				w.before = append(w.before, end.Sub(start))
			}
		}
		return d, err
	})
}

// pause begins to record, and stops a server that is up. On a busy machine it may have been late by
// itself, and so be down already when it is stopped; then it is tried again.
func (w *outageTimer) pause(b *bench, f *penstock.Fallback, server *redistest.Server) {
	up := func() bool {
		down, _ := f.Down() // callers are told of it later
		return down == 0 && !w.down.Load()
	}
	redistest.WaitFor(b, "Redis is stopped while it is up", func() bool {
		if !up() {
			return false
		}
		w.recording.Store(true)
		harness.Check(server.Pause())
		if up() {
			return true
		}
		w.stop()
		harness.Check(server.Resume())
		return false
	})
}

// stop ends the recording, and returns what was recorded.
func (w *outageTimer) stop() (before, after []time.Duration) {
	w.recording.Store(false)
	w.mu.Lock()
	defer w.mu.Unlock()
	before, after = slices.Clone(w.before), slices.Clone(w.after)
	w.before, w.after = nil, nil
	return before, after
}

// hasBoth reports whether there were calls until the first store was given up, and since then.
func (w *outageTimer) hasBoth() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.before) > 0 && len(w.after) > 0
}

func p99(ds []time.Duration) time.Duration { return harness.Quantile(ds, 0.99) }

// hang stops Redis under load.
func (b *bench) hang() {
	server, store := b.StartStore(usual)
	w := &outageTimer{}
	fallback := penstock.WithFallback(store, nil, &penstock.FallbackOptions{
		OnChange: func(c penstock.FallbackChange) { w.down.Store(c.Down) },
	})
	stop := w.load(limiter(fallback, "1000000/1s"), 5000, callers)
	defer stop()
	<-time.After(b.span / 2)
	goroutines, bytes := runtime.NumGoroutine(), harness.Heap().HeapAlloc
	w.pause(b, fallback, server)
	most := 0
	start := time.Now()
	redistest.WaitFor(b, "calls have met the outage", func() bool {
		most = max(most, runtime.NumGoroutine())
		return time.Since(start) >= b.span && w.hasBoth()
	})
	until, after := w.stop()
	still := runtime.NumGoroutine()
	grown := int64(harness.Heap().HeapAlloc-bytes) - int64(8*(cap(until)+cap(after)))
	harness.Check(server.Resume())
	<-time.After(b.span / 2)
	if err := stop().First; err != nil {
		b.Fatalf("a caller saw an error: %w", err)
	}
	b.Find("Redis hung (SIGSTOP), 64 callers, deadline 50 ms", "p99 ≤ 60 ms until detected, ≤ 1 ms after",
		p99(until) <= 60*time.Millisecond && p99(after) <= time.Millisecond,
		"%.1f ms of %d calls, %.3f ms of %d", harness.Millis(p99(until)), len(until), harness.Millis(p99(after)), len(after))
	b.Find("the same: goroutines and memory", "flat: two more per caller at any time, 8 more at the end, 2 MB",
		most <= goroutines+2*callers && still <= goroutines+8 && grown <= 2<<20,
		"%+d goroutines at most, %+d at the end, %+.2f MB", most-goroutines, still-goroutines, float64(grown)/(1<<20))
}

func (b *bench) sentinelFailover() {
	g := redistest.StartSentinelGroup(b)
	old := strconv.Itoa(g.Servers[0].Port)
	b.failover("Sentinel", g.URL(), g.Servers[0], func() { g.AllowFailover(b) }, func() bool {
		return slices.ContainsFunc(g.Sentinels, func(s *redistest.Server) bool {
			named, err := s.Command("SENTINEL", "get-master-addr-by-name", redistest.MasterName)
			return err == nil && !strings.Contains(named, old)
		})
	})
}

func (b *bench) clusterFailover() {
	c := redistest.StartCluster(b)
	b.failover("Cluster", c.URL(), c.Nodes[0], func() { c.AllowFailover(b) }, func() bool {
		role, err := c.Nodes[redistest.Shards].Command("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
}

// stableFor is how long all shards must be up to count as recovered.
const stableFor = 500 * time.Millisecond

// failover kills a server under load, and measures the time from its replacement
// until all shards are up. In a Cluster the replica reports its promotion itself; with
// Sentinel the sentinels do, up to a second later. The replacement is allowed when callers have met
// the outage: a machine that stalls must not be taken for one, nor hide it.
func (b *bench) failover(title, url string, primary *redistest.Server, allow func(), replaced func() bool) {
	w := &outageTimer{}
	fallback := penstock.WithFallback(b.OpenStore(url, usual), nil, nil)
	stop := w.load(limiter(fallback, "1000000/1s"), 8000, 16)
	defer stop()
	<-time.After(b.span / 5)
	primary.Kill()
	killed := time.Now()
	redistest.WaitFor(b, "the fallback decides", func() bool { return w.fallback.Load() >= killed.UnixNano() })
	allow()
	redistest.WaitFor(b, "another primary is promoted", replaced)
	promoted := time.Now()
	up := promoted
	redistest.WaitFor(b, "all shards have been up for a while", func() bool {
		if down, _ := fallback.Down(); down > 0 {
			up = time.Now()
		}
		return time.Since(up) >= stableFor
	})
	back := up.Sub(promoted).Seconds()
	t := stop()
	b.Find("failover, "+title, "exact again ≤ 1 s after the new primary, no caller sees an error",
		back <= 1 && t.Failed == 0,
		"%.2f s after it, %.1f s after the old one was killed; %d errors in %d calls",
		back, promoted.Sub(killed).Seconds()+back, t.Failed, t.Calls)
}

// The outage: the limit of one key, the number of processes that share it, and their requests.
const (
	outageRate      = 100 // a second, and the burst
	outageProcesses = 2
	outageOffered   = 500 // a second, of all processes
	outageSample    = 100 * time.Millisecond
)

// A point is what had been admitted at a time of the outage.
type point struct {
	at                 time.Duration
	admitted, fallback int64
	bound              float64
	down               bool
}

// outage shows what two processes admit of one key while Redis is killed and comes back empty. It is a
// wrong workload if more was admitted than docs/reliability.md states, or if there was no outage.
func (b *bench) outage() {
	length := harness.Scale(b.Run, 12*time.Second, 6*time.Second)
	server := redistest.StartForTest(b, redistest.Options{})
	var lims []*penstock.Limiter
	for range outageProcesses {
		store := b.OpenStore("redis://"+server.Addr, usual)
		lims = append(lims, limiter(penstock.WithFallback(store, nil, &penstock.FallbackOptions{Share: 1.0 / outageProcesses}), fmt.Sprintf("%d/1s", outageRate)))
	}
	var next, admitted, fallback atomic.Int64
	begin := time.Now()
	stop := inBackground(outageOffered, outageProcesses, func(*rand.Rand) (penstock.Decision, error) {
		d, err := lims[next.Add(1)%outageProcesses].Allow(context.Background(), "user:42")
		if d.Allowed && d.Source == penstock.SourceFallback {
			fallback.Add(1)
		}
		admitted.Add(d.Granted)
		return d, err
	})
	defer stop()
	samples := watchOutage(server, begin, length, &admitted, &fallback)
	if err := stop().First; err != nil {
		b.Fatalf("a caller saw an error: %w", err)
	}
	harness.Check(checkOutage(samples))
	last := samples[len(samples)-1]
	b.Find("Redis is killed and comes back empty, two processes", "no more than docs/reliability.md states, no caller sees an error", true,
		"%d admitted, the bound is %.0f", last.admitted, last.bound)
	lines := [][]string{{"seconds", "admitted", "bound", "down"}}
	for _, s := range samples {
		down := map[bool]string{false: "0", true: "1"}[s.down]
		lines = append(lines, []string{fmt.Sprintf("%.1f", s.at.Seconds()), strconv.FormatInt(s.admitted, 10), fmt.Sprintf("%.0f", s.bound), down})
	}
	harness.WriteCSV(b.csv, lines)
}

// watchOutage samples the counters, and kills and restarts Redis in between, in the second third of
// the time and after the fallback has decided. A Redis that is late is an outage too.
func watchOutage(server *redistest.Server, begin time.Time, length time.Duration, admitted, fallback *atomic.Int64) (samples []point) {
	killed, restarted := false, false
	outages, decided, before := 0, false, int64(0) // decided is whether the fallback did in the last sample
	for last := int64(0); ; <-time.After(outageSample) {
		// The clock is read last, so that nothing is admitted after the time of a sample.
		p := point{admitted: admitted.Load(), fallback: fallback.Load(), down: killed && !restarted}
		if p.at = time.Since(begin); p.at >= length {
			return samples
		}
		if p.fallback > last && !decided {
			outages++
		}
		decided, last = p.fallback > last, p.fallback
		p.bound = outageBound(p.at, outages, restarted)
		samples = append(samples, p)
		switch {
		case !killed && p.at >= length/3:
			server.Kill()
			killed, before = true, fallback.Load()
		case killed && !restarted && p.at >= 2*length/3 && p.fallback > before:
			restarted = server.Restart() == nil
		}
	}
}

// outageBound is the bound of docs/reliability.md, F1 with a fallback: one burst and the rate, one
// burst of all shares together for each outage, one burst for the lost state.
func outageBound(at time.Duration, outages int, lost bool) float64 {
	bound := outageRate + outageRate*at.Seconds() + float64(outageRate*outages)
	if lost {
		bound += outageRate
	}
	return bound
}

func checkOutage(samples []point) error {
	for _, s := range samples {
		const slack = 1 // the clock of Redis counts milliseconds
		if float64(s.admitted) > s.bound+slack {
			return fmt.Errorf("at %v %d were admitted, and the bound is %.0f", s.at, s.admitted, s.bound)
		}
	}
	if samples[len(samples)-1].fallback == 0 {
		return errors.New("the fallback decided nothing: there was no outage")
	}
	return nil
}
