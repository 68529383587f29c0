package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
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

// AddCalls adds the figures of calls that were made in some time: the rate, the nanoseconds of a call,
// and what one has spent since the meter was read before, by figure and in all.
func (c *Contender) AddCalls(calls int, took time.Duration, meter Meter, before map[string]float64) {
	each, total := 1/float64(calls), 0.0
	c.Add("rate", float64(calls)/took.Seconds())
	c.Add("ns", float64(took)*each)
	for figure, spent := range meter() {
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
	if meter == nil {
		meter = func() map[string]float64 { return nil }
	}
	l := &Load{goroutines: goroutines, each: each}
	l.Name = name
	l.Measure = func(c *Contender) {
		if l.Before != nil {
			l.Before()
		}
		before := meter()
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

// StartStore starts a server without persistence for the rest of the case, and opens a store on it.
func (r *Run) StartStore(timeout time.Duration) (*redistest.Server, *redisstore.Store) {
	server := redistest.StartForTest(r, redistest.Options{})
	return server, r.OpenStore("redis://"+server.Addr, timeout)
}

// OpenStore opens a store with its own client for the rest of the case.
func (r *Run) OpenStore(url string, timeout time.Duration) *redisstore.Store {
	store := Must(redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: timeout}))
	r.Cleanup(store.Close)
	return store
}

// A RedisBenchmark is the settings of redis-benchmark.
type RedisBenchmark struct {
	Connections, Pipeline int
	Requests              int
	Keys                  int // of which each request takes one at random
}

// Run sends a command to the server at a port and returns the requests a second.
func (b RedisBenchmark) Run(port int, command []string) float64 {
	words := append([]string{
		"-p", strconv.Itoa(port), "--csv", "-c", strconv.Itoa(b.Connections), "-P", strconv.Itoa(b.Pipeline),
		"-n", strconv.Itoa(b.Requests), "-r", strconv.Itoa(b.Keys),
	}, command...)
	return Must(benchmarkRate(Output(exec.Command("redis-benchmark", words...))))
}

// Sent returns how many requests are sent: whole pipelines.
func (b RedisBenchmark) Sent() int { return (b.Requests + b.Pipeline - 1) / b.Pipeline * b.Pipeline }

// ratePattern finds the requests a second: the first of seven figures at the end of the output of
// redis-benchmark --csv, after the command, which has unescaped quotes and commas.
var ratePattern = regexp.MustCompile(`"([0-9.]+)"(?:,"[0-9.]+"){6}\s*$`)

func benchmarkRate(out string) (float64, error) {
	rate := ratePattern.FindStringSubmatch(out)
	if rate == nil {
		return 0, fmt.Errorf("unexpected output of redis-benchmark: %q", out)
	}
	return strconv.ParseFloat(rate[1], 64)
}

// Info is the numbers in the INFO of a Redis server, by name; those in lists such as db0:keys=3,expires=3 by
// the names of both, "db0.keys".
type Info map[string]float64

// InfoOf returns the INFO of a server.
func InfoOf(s *redistest.Server) Info { return ParseInfo(Must(s.Command("INFO", "everything"))) }

// ParseInfo parses the reply to INFO.
func ParseInfo(text string) Info {
	i := Info{}
	for line := range strings.Lines(text) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, value := range strings.Split(values, ",") {
			field, number, inList := strings.Cut(value, "=")
			if !inList {
				field, number = "", value
			}
			if x, err := strconv.ParseFloat(number, 64); err == nil {
				i[strings.TrimSuffix(name+"."+field, ".")] = x
			}
		}
	}
	return i
}

// Since returns the difference to an earlier one.
func (i Info) Since(before Info) Info {
	d := Info{}
	for name, x := range i {
		d[name] = x - before[name]
	}
	for name, x := range before { // a database without keys has no line
		if _, still := i[name]; !still {
			d[name] = -x
		}
	}
	return d
}

// Keys returns how many keys there are.
func (i Info) Keys() int { return int(i["db0.keys"]) }

// Expires returns how many keys expire.
func (i Info) Expires() int { return int(i["db0.expires"]) }

// Processor returns the processor time, of the system's too, in microseconds.
func (i Info) Processor() float64 { return 1e6 * (i["used_cpu_user"] + i["used_cpu_sys"]) }

// Calls returns how often a command was called, from scripts too.
func (i Info) Calls(command string) int { return int(i["cmdstat_"+command+".calls"]) }

// Micros returns for how many microseconds a command ran.
func (i Info) Micros(command string) int { return int(i["cmdstat_"+command+".usec"]) }

// Failed counts the commands that ended in an error.
func (i Info) Failed() (n int) {
	for name, x := range i {
		if strings.HasSuffix(name, ".failed_calls") || strings.HasSuffix(name, ".rejected_calls") {
			n += int(x)
		}
	}
	return n
}

// Scripts returns how many scripts the server has run, and for how many microseconds.
func (i Info) Scripts() (calls, micros int) {
	for _, name := range []string{"eval", "evalsha", "fcall"} {
		calls += i.Calls(name)
		micros += i.Micros(name)
	}
	return calls, micros
}

// StoreCall returns the call that the Redis store makes for a request.
func StoreCall(r penstock.Request) redisstore.Call {
	recorder := &recordingClient{}
	store := Must(redisstore.New(recorder, nil))
	if _, err := store.Take(context.Background(), r); !errors.Is(err, errRecorded) {
		Check(fmt.Errorf("recording the store's command: %w", err))
	}
	return recorder.call
}

// A recordingClient records what the store would send.
type recordingClient struct{ call redisstore.Call }

var errRecorded = errors.New("recorded, not sent")

func (r *recordingClient) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	r.call = redisstore.Call{Script: c.Script, Keys: slices.Clone(c.Keys), Args: slices.Clone(c.Args)}
	c.Err = errRecorded
}

func (r *recordingClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"node": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

// Sharded keeps the store from looking for what a server behind it does with scripts.
func (r *recordingClient) Sharded() bool { return true }
