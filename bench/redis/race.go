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

// goroutines is how many ask at once, as in a server with many requests.
const goroutines = 64

// An entrant is a limiter in a race, and what was measured of it, round by round.
type entrant struct {
	contestant
	limiter limiter
	keys    []string
	calls   int // a round

	rates          []float64 // calls a second
	client, server []float64 // microseconds of processor a call
	tally          tally
}

// A tally says what became of a number of calls.
type tally struct{ calls, denied, failed int }

func (t *tally) add(u tally) {
	t.calls += u.calls
	t.denied += u.denied
	t.failed += u.failed
}

// enter opens a limiter and takes each key once, and proves that this made as
// many keys in Redis as it should, all of which expire.
func (b *bench) enter(c contestant, keys []string) (*entrant, error) {
	before, err := b.server.census()
	if err != nil {
		return nil, err
	}
	l, err := c.open(b.server.Addr, roomy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	e := &entrant{contestant: c, limiter: l, keys: keys}
	e.lap(context.Background(), len(keys))
	after, err := b.server.census()
	if err != nil {
		return nil, err
	}
	d, want := after.since(before), c.perKey*len(keys)
	if d.keys != want || (d.expires != want && !c.lasting()) {
		return nil, fmt.Errorf("%s: %d keys came, %d with an expiry; want %d", c.name, d.keys, d.expires, want)
	}
	return e, e.prove(len(keys))
}

// lasting reports whether the contestant's keys are to have no expiry: those of
// INCR, which is no limiter.
func (c contestant) lasting() bool { return c.name == floors[1].name }

// lap makes about so many calls, shared among the goroutines, each of which
// starts elsewhere in the list of keys and goes on where it stopped.
func (e *entrant) lap(ctx context.Context, calls int) time.Duration {
	tallies := make([]tally, goroutines)
	start := make(chan struct{})
	var running sync.WaitGroup
	first, done := calls/goroutines, calls%goroutines
	at := e.tally.calls
	for i := range tallies {
		mine, from := first, at+i*first+min(i, done)
		if i < done {
			mine++
		}
		running.Go(func() {
			<-start
			tallies[i] = e.walk(ctx, from, mine)
		})
	}
	begin := time.Now()
	close(start)
	running.Wait()
	took := time.Since(begin)
	for _, t := range tallies {
		e.tally.add(t)
	}
	return took
}

// walk takes so many keys of the list in order.
func (e *entrant) walk(ctx context.Context, from, calls int) (t tally) {
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

// prove returns an error unless all calls, and at least so many, were granted.
func (e *entrant) prove(atLeast int) error {
	t := e.tally
	if t.calls < atLeast || t.denied > 0 || t.failed > 0 {
		return fmt.Errorf("%s: %d calls, %d denied, %d failed; want at least %d, all granted", e.name, t.calls, t.denied, t.failed, atLeast)
	}
	return nil
}

// calibrate finds how many calls make a round of about the given length.
func (e *entrant) calibrate(length time.Duration) {
	calls := goroutines
	for {
		took := e.lap(context.Background(), calls)
		if took >= length/4 {
			e.calls = max(int(int64(calls)*int64(length)/int64(took)), goroutines)
			return
		}
		calls *= 4
	}
}

// race lets the entrants take turns: first, second, third, first, second…
func race(srv *server, rounds int, length time.Duration, entrants []*entrant) error {
	for _, e := range entrants {
		e.calibrate(length)
	}
	for range rounds {
		for _, e := range entrants {
			if err := e.turn(srv); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *entrant) turn(srv *server) error {
	before, err := srv.census()
	if err != nil {
		return err
	}
	spent := processorTime()
	took := e.lap(context.Background(), e.calls)
	spent = processorTime() - spent
	after, err := srv.census()
	if err != nil {
		return err
	}
	calls := float64(e.calls)
	e.rates = append(e.rates, calls/took.Seconds())
	e.client = append(e.client, float64(spent.Microseconds())/calls)
	e.server = append(e.server, 1e6*(after.cpu-before.cpu)/calls)
	return nil
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocations counts the allocations per call over one more lap, of everything
// in this process: the client's own goroutines too.
func (e *entrant) allocations(ctx context.Context, calls int) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e.lap(ctx, calls)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}

// against returns how many times as fast as another this one was.
func (e *entrant) against(other *entrant) measure.Spread {
	return measure.SpreadOf(measure.Ratios(e.rates, other.rates))
}
