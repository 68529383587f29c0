package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// logCount is the limit of the sliding logs here.
const logCount = 100

// A turningLog keeps many sliding logs full and yet admitting, so that every call drops
// the oldest entry and records a new one. Each lap takes every key once. A lap starts
// when the lap a hundred before it has just expired, so it is admitted; the ninety-nine
// in between have not expired, so the log is full again.
type turningLog struct {
	lim    *penstock.Limiter
	walk   *walk
	period time.Duration
	floor  *subject // runs between laps
	base   time.Time
	expiry [logCount]time.Duration // when the lap at this place of the cycle expires
	laps   int

	calls, denied int
	remaining     int64 // summed over calls
}

// turningLog times the sliding log against the floor.
func (b *bench) turningLog() {
	n := b.many
	title := harness.Thousands(n) + " keys, sliding-log of 100, full and turning over"
	b.Logf("%s", title)
	harness.Check(checkSeparateKeys(slidingLog.library(), n))
	timings := harness.Must(measureLog(n, b.Rounds, max(4*timeLogLap(n), time.Millisecond)))
	b.addTimings(title, timings...)
	b.findAgainstFloor(title, timings[1], 4)
}

// A machine that stalls for several laps leaves logs that are not full. Then measureLog tries
// again at half the pace, for stalls that are short and frequent, down to a slowest one. Then it
// begins anew, because long ones seldom hit a short measurement.
const (
	logTries = 30
	logPaces = 6
)

// measureLog measures laps that start every so often.
func measureLog(n, rounds int, every time.Duration) ([]timing, error) {
	for try := 0; ; try++ {
		timings, err := newTurningLog(n, every<<(try%logPaces)).measure(rounds)
		if try == logTries-1 || !errors.Is(err, errNotFull) {
			return timings, err
		}
	}
}

// slidingLog is the variant of the log for keys that are taken once or twice.
var slidingLog = variant{
	name:  "sliding-log",
	ample: penstock.PerHour(logCount).WithAlgorithm(penstock.SlidingLog),
	once:  penstock.PerHour(1).WithAlgorithm(penstock.SlidingLog),
}

// timeLogLap returns about how long one lap takes, which sets the pace.
func timeLogLap(n int) time.Duration {
	l := newTurningLog(n, time.Minute)
	took := make([]float64, 20)
	for i := range took {
		took[i] = float64(l.lap())
	}
	return time.Duration(harness.SpreadOf(took).Median)
}

// newTurningLog returns n empty logs for laps that start every so often.
func newTurningLog(n int, every time.Duration) *turningLog {
	period := logCount * every
	limit := penstock.Limit{Algorithm: penstock.SlidingLog, Count: logCount, Period: period}
	r := newRing(0, n)
	return &turningLog{
		lim: harness.Must(penstock.New(memoryFor(n), limit)), walk: r.walks(1)[0], period: period, base: time.Now(),
		floor: newSubject("floor", newFloor(ample(1)), r, 1),
	}
}

// lap takes every key once, and records when these units expire.
func (l *turningLog) lap() time.Duration {
	begin := time.Since(l.base)
	for range l.walk.ring.len() {
		d := harness.Must(l.lim.Allow(context.Background(), l.walk.key()))
		if !d.Allowed {
			l.denied++
		}
		l.remaining += d.Remaining
	}
	end := time.Since(l.base)
	l.calls += l.walk.ring.len()
	l.walk.steps += l.walk.ring.len()
	l.expiry[l.laps%logCount] = end + l.period
	l.laps++
	return end - begin
}

// await runs the floor until the next lap is due.
func (l *turningLog) await() {
	due := l.expiry[l.laps%logCount]
	for l.laps >= logCount && time.Since(l.base) < due {
		l.floor.runCalls(100)
	}
}

// fill runs the laps that fill the logs, evenly spaced over one period, so that they
// also expire evenly.
func (l *turningLog) fill() {
	for i := range logCount {
		for time.Since(l.base) < time.Duration(i)*l.period/logCount {
			l.floor.runCalls(100)
		}
		l.lap()
	}
	l.calls, l.denied, l.remaining = 0, 0, 0
}

// measure fills the logs, turns them over and returns the timings of the floor
// and of penstock.
func (l *turningLog) measure(rounds int) ([]timing, error) {
	l.fill()
	n := l.walk.ring.len()
	mine := &harness.Contender{Name: ours.name, Measure: func(c *harness.Contender) {
		l.await()
		c.Add("ns", float64(l.lap())/float64(n))
	}}
	l.floor.calls = n
	allocated := harness.Allocations(func() { harness.TakeTurns(rounds, &l.floor.Contender, mine) })
	var timings []timing
	for _, c := range []*harness.Contender{&l.floor.Contender, mine} {
		timings = append(timings, timing{name: c.Name, nanos: harness.SpreadOf(c.Of("ns")), toFloor: c.To(&l.floor.Contender, "ns"), toOurs: c.To(mine, "ns")})
	}
	timings[1].allocs, timings[1].keys = allocated/float64(l.calls), n
	return timings, l.verify()
}

// errNotFull means that there was room in the logs.
var errNotFull = errors.New("sliding-log: not full")

// verify returns an error unless every key was used, every call admitted, the floor's
// too, and the logs were full or nearly so.
func (l *turningLog) verify() error {
	const slack = 5
	if l.denied > 0 {
		return fmt.Errorf("sliding-log: %d of %d calls were denied, want 0", l.denied, l.calls)
	}
	if free := float64(l.remaining) / float64(l.calls); free > slack {
		return fmt.Errorf("%w: %.1f of %d units were free, want at most %d", errNotFull, free, logCount, slack)
	}
	if keys, err := distinct([]*walk{l.walk}); err != nil || keys != l.walk.ring.len() {
		return fmt.Errorf("sliding-log: %d different keys were used, want %d: %w", keys, l.walk.ring.len(), err)
	}
	_, err := l.floor.verify(workload{})
	return err
}
