package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// goroutines is the number of concurrent callers, as in a busy server.
const goroutines = 64

// A runner calls a limiter, and holds its measurements, round by round.
type runner struct {
	contender
	limiter limiter
	keys    []string
	calls   int // a round

	rates          []float64 // calls a second
	client, server []float64 // microseconds of processor a call
	counts         counts
}

// A counts is the results of a number of calls.
type counts struct{ calls, denied, failed int }

func (t *counts) add(u counts) {
	t.calls += u.calls
	t.denied += u.denied
	t.failed += u.failed
}

// newRunner opens a limiter and takes each key once, and verifies that this created the
// expected number of keys in Redis, with an expiry.
func (b *bench) newRunner(c contender, keys []string) (*runner, error) {
	before, err := b.server.stats()
	if err != nil {
		return nil, err
	}
	l, err := c.open(b.server.Addr, ample)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	e := &runner{contender: c, limiter: l, keys: keys}
	e.runCalls(context.Background(), len(keys))
	after, err := b.server.stats()
	if err != nil {
		return nil, err
	}
	d, want := after.since(before), c.perKey*len(keys)
	if d.keys != want || (d.expires != want && !c.lasting()) {
		return nil, fmt.Errorf("%s: %d new keys, %d with an expiry; want %d", c.name, d.keys, d.expires, want)
	}
	return e, e.verify(len(keys))
}

// lasting reports whether the contender's keys have no expiry: those of INCR, which is
// no limiter.
func (c contender) lasting() bool { return c.name == floors[1].name }

// runCalls makes about so many calls, split among the goroutines, each of which starts
// at another key and continues where it stopped.
func (e *runner) runCalls(ctx context.Context, calls int) time.Duration {
	all := make([]counts, goroutines)
	start := make(chan struct{})
	var running sync.WaitGroup
	first, done := calls/goroutines, calls%goroutines
	at := e.counts.calls
	for i := range all {
		mine, from := first, at+i*first+min(i, done)
		if i < done {
			mine++
		}
		running.Go(func() {
			<-start
			all[i] = e.walk(ctx, from, mine)
		})
	}
	begin := time.Now()
	close(start)
	running.Wait()
	took := time.Since(begin)
	for _, t := range all {
		e.counts.add(t)
	}
	return took
}

// walk takes so many keys of the list in order.
func (e *runner) walk(ctx context.Context, from, calls int) (t counts) {
	for i := range calls {
		ok, err := e.limiter.take(ctx, e.keys[(from+i)%len(e.keys)])
		switch {
		case err != nil:
			t.failed++
		case !ok:
			t.denied++
		}
	}
	t.calls = calls
	return t
}

// verify returns an error unless all calls, and at least so many, were granted.
func (e *runner) verify(atLeast int) error {
	t := e.counts
	if t.calls < atLeast || t.denied > 0 || t.failed > 0 {
		return fmt.Errorf("%s: %d calls, %d denied, %d failed; want at least %d, all granted", e.name, t.calls, t.denied, t.failed, atLeast)
	}
	return nil
}

// calibrate finds how many calls make a round of about the given length.
func (e *runner) calibrate(length time.Duration) {
	calls := goroutines
	for {
		took := e.runCalls(context.Background(), calls)
		if took >= length/4 {
			e.calls = max(int(int64(calls)*int64(length)/int64(took)), goroutines)
			return
		}
		calls *= 4
	}
}

// runRounds runs the runners in turns: first, second, third, first, second…
func runRounds(srv *server, rounds int, length time.Duration, runners []*runner) error {
	for _, e := range runners {
		e.calibrate(length)
	}
	for range rounds {
		for _, e := range runners {
			if err := e.turn(srv); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *runner) turn(srv *server) error {
	before, err := srv.stats()
	if err != nil {
		return err
	}
	spent := processorTime()
	took := e.runCalls(context.Background(), e.calls)
	spent = processorTime() - spent
	after, err := srv.stats()
	if err != nil {
		return err
	}
	calls := float64(e.calls)
	e.rates = append(e.rates, calls/took.Seconds())
	e.client = append(e.client, float64(spent.Microseconds())/calls)
	e.server = append(e.server, 1e6*(after.cpu-before.cpu)/calls)
	return nil
}

// processorTime is the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocations returns the allocations per call of the whole process, the client's
// goroutines included.
func (e *runner) allocations(ctx context.Context, calls int) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e.runCalls(ctx, calls)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}

// ratioTo returns how many times as fast as another this runner was.
func (e *runner) ratioTo(other *runner) measure.Spread {
	return measure.SpreadOf(measure.Ratios(e.rates, other.rates))
}
