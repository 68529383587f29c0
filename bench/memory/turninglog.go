package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
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
	floor  *runner // runs between laps
	base   time.Time
	expiry [logCount]time.Duration // when the lap at this place of the cycle expires
	laps   int

	calls, denied int
	remaining     int64 // summed over calls
}

// turningLog times the sliding log against the floor.
func (b *bench) turningLog() error {
	n := b.sizes.many
	title := measure.Thousands(n) + " keys, sliding-log of 100, full and turning over"
	b.logf("%s", title)
	if err := checkSeparateKeys(slidingLog.contender(), n); err != nil {
		return err
	}
	lap, err := timeLogLap(n)
	if err != nil {
		return err
	}
	timings, err := measureLog(title, n, b.rounds, max(4*lap, time.Millisecond))
	if err != nil {
		return err
	}
	b.report.addTimings(timings...)
	b.report.findAgainstFloor(title, timings[1], 4)
	return nil
}

// A machine that stalls for several laps leaves logs that are not full. Then measureLog tries
// again at half the pace, for stalls that are short and frequent, down to a slowest one. Then it
// begins anew, because long ones seldom hit a short measurement.
const (
	logTries = 30
	logPaces = 6
)

// measureLog measures laps that start every so often.
func measureLog(title string, n, rounds int, every time.Duration) ([]timing, error) {
	for try := 0; ; try++ {
		l, err := newTurningLog(n, every<<(try%logPaces))
		if err != nil {
			return nil, err
		}
		timings, err := l.measure(title, rounds)
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
func timeLogLap(n int) (time.Duration, error) {
	l, err := newTurningLog(n, time.Minute)
	if err != nil {
		return 0, err
	}
	took := make([]float64, 0, 20)
	for range cap(took) {
		lap, err := l.lap()
		if err != nil {
			return 0, err
		}
		took = append(took, float64(lap))
	}
	return time.Duration(measure.SpreadOf(took).Median), nil
}

// newTurningLog returns n empty logs for laps that start every so often.
func newTurningLog(n int, every time.Duration) (*turningLog, error) {
	period := logCount * every
	limit := penstock.Limit{Algorithm: penstock.SlidingLog, Count: logCount, Period: period}
	lim, err := penstock.New(memoryFor(n), limit)
	if err != nil {
		return nil, err
	}
	r := newRing(0, n)
	return &turningLog{
		lim: lim, walk: r.walks(1)[0], period: period, base: time.Now(),
		floor: newRunner("floor", newFloor(ample(1)), r, 1),
	}, nil
}

// lap takes every key once, and records when these units expire.
func (l *turningLog) lap() (time.Duration, error) {
	begin := time.Since(l.base)
	for range l.walk.ring.len() {
		d, err := l.lim.Allow(context.Background(), l.walk.key())
		if err != nil {
			return 0, err
		}
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
	return end - begin, nil
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
func (l *turningLog) fill() error {
	for i := range logCount {
		for time.Since(l.base) < time.Duration(i)*l.period/logCount {
			l.floor.runCalls(100)
		}
		if _, err := l.lap(); err != nil {
			return err
		}
	}
	l.calls, l.denied, l.remaining = 0, 0, 0
	return nil
}

// measure fills the logs, turns them over and returns the timings of the floor
// and of penstock.
func (l *turningLog) measure(title string, rounds int) ([]timing, error) {
	if err := l.fill(); err != nil {
		return nil, err
	}
	n := l.walk.ring.len()
	ours, floor := make([]float64, 0, rounds), make([]float64, 0, rounds)
	before := mallocs()
	for range rounds {
		floor = append(floor, float64(l.floor.runCalls(n))/float64(n))
		l.await()
		took, err := l.lap()
		if err != nil {
			return nil, err
		}
		ours = append(ours, float64(took)/float64(n))
	}
	allocs := float64(mallocs()-before) / float64(l.calls)
	one := measure.Spread{P10: 1, Median: 1, P90: 1}
	return []timing{
		{title: title, name: "floor", nanos: measure.SpreadOf(floor), toFloor: one, toOurs: measure.SpreadOf(measure.Ratios(floor, ours))},
		{
			title: title, name: "penstock", nanos: measure.SpreadOf(ours), toFloor: measure.SpreadOf(measure.Ratios(ours, floor)), toOurs: one,
			allocs: allocs, keys: n,
		},
	}, l.verify()
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
