package harness

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Contender is something that is measured beside others. Its figures are lists by name, such as
// the rate, with a measurement of each turn.
type Contender struct {
	Name    string
	Measure func(c *Contender) // takes a turn, and adds to the figures
	figures map[string][]float64
}

// Add adds a measurement to a figure.
func (c *Contender) Add(figure string, value float64) {
	if c.figures == nil {
		c.figures = map[string][]float64{}
	}
	c.figures[figure] = append(c.figures[figure], value)
}

// A Meter reads what was spent so far, such as processor time in microseconds, by figure.
type Meter func() map[string]float64

// read returns nothing if there is no meter.
func (m Meter) read() map[string]float64 {
	if m == nil {
		return nil
	}
	return m()
}

// AddCalls adds the figures of calls that were made in some time: the rate, the nanoseconds of a call,
// and what one has spent since the meter was read before, by figure and in all.
func (c *Contender) AddCalls(calls int, took time.Duration, meter Meter, before map[string]float64) {
	each, total := 1/float64(calls), 0.0
	c.Add("rate", float64(calls)/took.Seconds())
	c.Add("ns", float64(took)*each)
	for figure, spent := range meter.read() {
		spent = (spent - before[figure]) * each
		c.Add(figure, spent)
		total += spent
	}
	c.Add("in all", total)
}

// Medians returns cells with the medians of figures.
func (c *Contender) Medians(digits int, figures ...string) (cells []any) {
	for _, f := range figures {
		cells = append(cells, Decimals(digits)(c.Median(f)))
	}
	return cells
}

// Of returns the measurements of a figure.
func (c *Contender) Of(figure string) []float64 { return c.figures[figure] }

// Median returns the median of a figure.
func (c *Contender) Median(figure string) float64 { return SpreadOf(c.figures[figure]).Median }

// To returns the ratio of a figure to that of another contender, in the same turns.
func (c *Contender) To(other interface{ Of(figure string) []float64 }, figure string) Spread {
	return SpreadOf(Ratios(c.figures[figure], other.Of(figure)))
}

// Forget drops all measurements, such as those of a warm-up.
func (c *Contender) Forget() { c.figures = nil }

// TakeTurns measures all contenders in turns: first, second, third, first, second… So other load on
// the machine affects all of them alike.
func TakeTurns[C interface{ takeTurn() }](rounds int, contenders ...C) {
	for range rounds {
		for _, c := range contenders {
			c.takeTurn()
		}
	}
}

func (c *Contender) takeTurn() { c.Measure(c) }

// WarmUp lets all contenders take a turn that does not count.
func WarmUp[C interface {
	takeTurn()
	Forget()
}](contenders ...C) {
	TakeTurns(1, contenders...)
	for _, c := range contenders {
		c.Forget()
	}
}

// Counts are the results of a number of calls.
type Counts struct {
	Calls, Denied, Failed int
	First                 error // of those that failed
}

// Count counts a call. It is small enough to be inlined.
func (t *Counts) Count(ok bool, err error) {
	t.Calls++
	if !ok {
		t.countRefused(err)
	}
}

func (t *Counts) countRefused(err error) {
	if err != nil {
		t.Failed++
		t.First = cmp.Or(t.First, err)
	} else {
		t.Denied++
	}
}

// Add adds the results of other calls.
func (t *Counts) Add(u Counts) {
	t.Calls += u.Calls
	t.Denied += u.Denied
	t.Failed += u.Failed
	t.First = cmp.Or(t.First, u.First)
}

// Verify returns an error unless there were at least so many calls, none of which failed, and either
// all were denied or none was.
func (t Counts) Verify(name string, least int, denied bool) error {
	want := 0
	if denied {
		want = t.Calls
	}
	if t.Calls < least || t.Failed > 0 || t.Denied != want {
		err := fmt.Errorf("%s: %d calls, %d denied, %d failed; want at least %d, and %d denied", name, t.Calls, t.Denied, t.Failed, least, want)
		return errors.Join(err, t.First)
	}
	return nil
}

// A Load is calls by some goroutines, so many in a turn. Its figures are those of [Contender.AddCalls].
type Load struct {
	Contender
	Total      Counts // of all calls so far
	Calls      int    // in a turn
	Before     func() // is called before each turn; nil for nothing
	goroutines int
	each       func(g, from, calls int) Counts
}

// NewLoad returns a load. In a goroutine, each makes so many calls, of which the first is the from-th of all.
func NewLoad(name string, goroutines int, meter Meter, each func(g, from, calls int) Counts) *Load {
	l := &Load{goroutines: goroutines, each: each}
	l.Name = name
	l.Measure = func(c *Contender) {
		if l.Before != nil {
			l.Before()
		}
		before := meter.read()
		c.AddCalls(l.Calls, l.Run(l.Calls), meter, before)
	}
	return l
}

// Run makes so many calls, split among the goroutines, and returns how long they took.
func (l *Load) Run(calls int) (took time.Duration) {
	all, from := make([]Counts, l.goroutines), l.Total.Calls
	if l.goroutines == 1 {
		begin := time.Now()
		all[0] = l.each(0, from, calls)
		took = time.Since(begin)
	} else {
		took, _ = Concurrently(l.goroutines, func(g int) error {
			first := g * calls / l.goroutines
			all[g] = l.each(g, from+first, (g+1)*calls/l.goroutines-first)
			return nil
		})
	}
	for _, t := range all {
		l.Total.Add(t)
	}
	return took
}

// Calibrate lets a turn have as many calls as take about as long as that, and at least so many.
func (l *Load) Calibrate(length time.Duration, least int) {
	for calls := 64; ; calls *= 4 {
		if took := l.Run(calls); took >= length/4 {
			l.Calls = max(int(int64(calls)*int64(length)/int64(took)), least)
			return
		}
	}
}

// Allocations returns the allocations of a call, those of other goroutines included.
func (l *Load) Allocations(calls int) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.Run(calls)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(calls)
}

// Concurrently calls a function in so many goroutines that begin at the same time, and returns how
// long it took until all had ended, and their errors.
func Concurrently(goroutines int, f func(i int) error) (time.Duration, error) {
	errs, start := make([]error, goroutines), make(chan struct{})
	var running sync.WaitGroup
	for i := range goroutines {
		running.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	begin := time.Now()
	close(start)
	running.Wait()
	return time.Since(begin), errors.Join(errs...)
}

// Background runs a function in the background. What it returns stops it, and waits for its result.
func Background[T any](run func(stopped func() bool) T) (stop func() T) {
	var over atomic.Bool
	done := make(chan T, 1)
	go func() { done <- run(over.Load) }()
	return sync.OnceValue(func() T {
		over.Store(true)
		return <-done
	})
}

// CallUntil lets so many callers make one call after the other until a time, each at least one, and returns
// how long the calls took.
func CallUntil(callers int, until time.Time, call func(caller int) error) ([]time.Duration, error) {
	latencies := make([][]time.Duration, callers)
	_, err := Concurrently(callers, func(i int) error {
		for at := time.Now(); len(latencies[i]) == 0 || at.Before(until); {
			if err := call(i); err != nil {
				return err
			}
			now := time.Now()
			latencies[i] = append(latencies[i], now.Sub(at))
			at = now
		}
		return nil
	})
	return slices.Concat(latencies...), err
}

// Processor returns the processor time of this process, and of the kernel on its behalf, in microseconds.
func Processor() (user, system float64) {
	var u syscall.Rusage
	Check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()) / 1e3, float64(u.Stime.Nano()) / 1e3
}

// Heap returns the state of the heap after a collection.
func Heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
