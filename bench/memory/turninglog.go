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

// A turningLog keeps many sliding logs in the one state that is worth timing:
// full, and yet admitting, so that every call drops the oldest moment and
// records a new one. Each lap asks about every key once. A lap begins when the
// lap a hundred before it has just left the period, and so it is admitted; the
// ninety-nine in between are still there, and so the log is full again.
type turningLog struct {
	lim    *penstock.Limiter
	walk   *walk
	period time.Duration
	floor  *entrant // runs between laps
	base   time.Time
	left   [logCount]time.Duration // when the lap in this place of the cycle leaves
	laps   int

	calls, denied int
	remaining     int64 // summed over calls
}

// turningLog times the sliding log against the floor.
func (b *bench) turningLog() error {
	n := b.sizes.many
	title := measure.Thousands(n) + " keys, sliding-log of 100, full and turning over"
	b.say("%s", title)
	if err := checkTellsApart(slidingLog.contestant(), n); err != nil {
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
	b.report.findAgainstFloor(title, timings[1], 5)
	return nil
}

// measureLog measures laps that begin every so often. A machine that stalls for
// several laps leaves logs that are not full; it gets another chance, at half
// the pace.
func measureLog(title string, n, rounds int, every time.Duration) ([]timing, error) {
	for chances := 5; ; chances-- {
		l, err := newTurningLog(n, every)
		if err != nil {
			return nil, err
		}
		timings, err := l.measure(title, rounds)
		if chances == 1 || !errors.Is(err, errNotFull) {
			return timings, err
		}
		every *= 2
	}
}

// slidingLog is the form of the log for keys that are asked once or twice.
var slidingLog = form{
	name:  "sliding-log",
	roomy: penstock.PerHour(logCount).WithAlgorithm(penstock.SlidingLog),
	once:  penstock.PerHour(1).WithAlgorithm(penstock.SlidingLog),
}

// timeLogLap says how long one lap takes, roughly: the pace depends on it.
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

// newTurningLog returns n empty logs that see a lap every so often.
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
		floor: newEntrant("floor", newFloor(roomy(1)), r, 1),
	}, nil
}

// lap asks about every key once and remembers when these moments leave.
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
	l.left[l.laps%logCount] = end + l.period
	l.laps++
	return end - begin, nil
}

// await lets the floor run until the next lap is due.
func (l *turningLog) await() {
	due := l.left[l.laps%logCount]
	for l.laps >= logCount && time.Since(l.base) < due {
		l.floor.lap(100)
	}
}

// fill runs the laps that fill the logs, evenly spaced over one period, so that
// from then on they also leave evenly.
func (l *turningLog) fill() error {
	for i := range logCount {
		for time.Since(l.base) < time.Duration(i)*l.period/logCount {
			l.floor.lap(100)
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
		floor = append(floor, float64(l.floor.lap(n))/float64(n))
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
		{title: title, who: "floor", nanos: measure.SpreadOf(floor), toFloor: one, toOurs: measure.SpreadOf(measure.Ratios(floor, ours))},
		{
			title: title, who: "penstock", nanos: measure.SpreadOf(ours), toFloor: measure.SpreadOf(measure.Ratios(ours, floor)), toOurs: one,
			allocs: allocs, keys: n,
		},
	}, l.prove()
}

// errNotFull means that there was room in the logs.
var errNotFull = errors.New("sliding-log: not full")

// prove says whether every key was asked about and every call admitted, the
// floor's too, and whether each left a log that was full, or as good as.
func (l *turningLog) prove() error {
	const slack = 5
	if l.denied > 0 {
		return fmt.Errorf("sliding-log: %d of %d calls were denied, want 0", l.denied, l.calls)
	}
	if free := float64(l.remaining) / float64(l.calls); free > slack {
		return fmt.Errorf("%w: %.1f of %d places were free, want at most %d", errNotFull, free, logCount, slack)
	}
	if keys, err := distinct([]*walk{l.walk}); err != nil || keys != l.walk.ring.len() {
		return fmt.Errorf("sliding-log: %d different keys were asked about, want %d: %w", keys, l.walk.ring.len(), err)
	}
	_, err := l.floor.prove(workload{})
	return err
}
