package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/internal/redistest"
)

// healthyPath compares a store with each wrapper and without, in turns.
func (b *bench) healthyPath() error {
	s, store, err := openRedis(patient)
	if err != nil {
		return err
	}
	defer s.stop()
	stores := []penstock.Store{
		store,
		penstock.WithFallback(store, nil, &penstock.FallbackOptions{Timeout: patient}),
		penstock.WithDenyCache(store, nil),
	}
	rates := make([][]float64, len(stores))
	for range b.rounds {
		for _, i := range rand.Perm(len(stores)) {
			lim, err := limiter(stores[i], "1000000/1s")
			if err != nil {
				return err
			}
			t := callFreely(b.turn, func(rng *rand.Rand) (penstock.Decision, error) {
				return lim.Allow(context.Background(), strconv.Itoa(rng.IntN(10_000)))
			})
			if err := t.failed(); err != nil {
				return err
			}
			rates[i] = append(rates[i], t.rate())
		}
	}
	for i, c := range []struct {
		name string
		most float64
	}{{"fallback", 10}, {"deny cache", 5}} {
		kept := measure.SpreadOf(measure.Ratios(rates[i+1], rates[0]))
		b.findings.Add(c.name+" on a healthy path, 64 callers", fmt.Sprintf("costs ≤ %.0f %% of throughput", c.most),
			kept.Median >= 1-c.most/100, "%s of the throughput without", measure.TimesWithSpread(kept))
	}
	return nil
}

// An outageTimer records the latencies that callers see during an outage.
type outageTimer struct {
	mu        sync.Mutex
	before    []time.Duration // that calls took until the first store was given up
	after     []time.Duration // and since then
	down      atomic.Bool
	fallback  atomic.Int64 // when it last decided, in nanoseconds since the epoch
	recording atomic.Bool
}

func (w *outageTimer) take(lim *penstock.Limiter, key string) (penstock.Decision, error) {
	down, start := w.down.Load(), time.Now()
	d, err := lim.Allow(context.Background(), key)
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
}

// pause begins to record, and stops a server that is up. On a busy machine it may have been late by
// itself, and so be down already when it is stopped; then it is tried again.
func (w *outageTimer) pause(f *penstock.Fallback, server *redistest.Server) (err error) {
	up := func() bool {
		down, _ := f.Down() // callers are told of it later
		return down == 0 && !w.down.Load()
	}
	late := waitUntil("Redis is stopped while it is up", func() bool {
		if !up() {
			return false
		}
		w.recording.Store(true)
		if err = server.Pause(); err != nil || up() {
			return true
		}
		w.stop()
		err = server.Resume()
		return err != nil
	})
	return errors.Join(err, late)
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

func p99(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[len(ds)*99/100]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// hang stops Redis under load.
func (b *bench) hang() error {
	s, store, err := openRedis(usual)
	if err != nil {
		return err
	}
	defer s.stop()
	w := &outageTimer{}
	fallback := penstock.WithFallback(store, nil, &penstock.FallbackOptions{
		OnChange: func(c penstock.FallbackChange) { w.down.Store(c.Down) },
	})
	lim, err := limiter(fallback, "1000000/1s")
	if err != nil {
		return err
	}
	var over atomic.Bool
	done := make(chan *counts)
	go func() {
		done <- callWhile(func(time.Duration) bool { return !over.Load() }, 5000, callers, func(rng *rand.Rand) (penstock.Decision, error) {
			return w.take(lim, strconv.Itoa(rng.IntN(1000)))
		})
	}()
	<-time.After(b.span / 2)
	goroutines, bytes := runtime.NumGoroutine(), heap()
	if err := w.pause(fallback, s.servers[0]); err != nil {
		return err
	}
	most := 0
	start := time.Now()
	err = waitUntil("calls have met the outage", func() bool {
		most = max(most, runtime.NumGoroutine())
		return time.Since(start) >= b.span && w.hasBoth()
	})
	if err != nil {
		return err
	}
	until, after := w.stop()
	still := runtime.NumGoroutine()
	grown := int64(heap()-bytes) - int64(8*(cap(until)+cap(after)))
	if err := s.servers[0].Resume(); err != nil {
		return err
	}
	<-time.After(b.span / 2)
	over.Store(true)
	t := <-done
	if err := t.failed(); err != nil {
		return fmt.Errorf("a caller saw an error: %w", err)
	}
	b.findings.Add("Redis hung (SIGSTOP), 64 callers, deadline 50 ms", "p99 ≤ 60 ms until detected, ≤ 1 ms after",
		p99(until) <= 60*time.Millisecond && p99(after) <= time.Millisecond,
		"%.1f ms of %d calls, %.3f ms of %d", millis(p99(until)), len(until), millis(p99(after)), len(after))
	b.findings.Add("the same: goroutines and memory", "flat: two more per caller at any time, 8 more at the end, 2 MB",
		most <= goroutines+2*callers && still <= goroutines+8 && grown <= 2<<20,
		"%+d goroutines at most, %+d at the end, %+.2f MB", most-goroutines, still-goroutines, float64(grown)/(1<<20))
	return nil
}
