package main

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// logCount is the limit of the sliding logs here.
const logCount = 100

// A turningLog keeps many sliding logs full and yet admitting, so that every call drops the oldest entry
// and records a new one. A lap takes every key once. Before each, the clock goes on by a hundredth of
// the period, so that the lap a hundred before it has just expired.
type turningLog struct {
	*limited
	keys, left int // in all, and in this lap
	ahead      time.Duration
}

// slidingLog is the variant of the log for keys that are taken once or twice.
var slidingLog = variant{
	name:  "sliding-log",
	ample: penstock.PerHour(logCount).WithAlgorithm(penstock.SlidingLog),
	once:  penstock.PerHour(1).WithAlgorithm(penstock.SlidingLog),
}

// newTurningLog returns n full logs.
func newTurningLog(n int) *turningLog {
	l, base := &turningLog{keys: n}, time.Now()
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return base.Add(time.Since(base) + l.ahead) }})
	l.limited = newLimited(store, slidingLog.ample)
	if t := l.run(newRing(0, n).walks(1)[0], n*logCount); t.Denied+t.Failed > 0 {
		harness.Failf("sliding-log: %+v: want all admitted until the logs are full", t)
	}
	return l
}

func (l *turningLog) run(w *walk, calls int) (t harness.Counts) {
	for calls > 0 {
		if l.left == 0 {
			l.left, l.ahead = l.keys, l.ahead+slidingLog.ample.Period/logCount
		}
		some := min(calls, l.left)
		t.Add(l.limited.run(w, some))
		l.left -= some
		calls -= some
	}
	return t
}

// verify ends the case unless all logs are full, but for the entry that has expired for this lap.
func (l *turningLog) verify(r ring) {
	for i := range r.len() {
		if d := harness.Must(l.lim.Peek(context.Background(), r.at(i))); d.Remaining > 1 {
			harness.Failf("sliding-log: %d of %d units of %s are free, want at most 1", d.Remaining, d.Limit, r.at(i))
		}
	}
}

// turningLog times the sliding log against the floor.
func (b *bench) turningLog() {
	checkSeparateKeys(slidingLog.library(), b.many)
	l := newTurningLog(b.many)
	c := &comparison{ring: newRing(0, b.many), ours: l}
	b.againstFloor(harness.Thousands(b.many)+" keys, sliding-log of 100, full and turning over", c, 4)
	l.verify(c.ring)
}
