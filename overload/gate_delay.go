package overload

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

// A delayMeter measures how long a goroutine that is ready waits for a processor. A request waits as
// long before its handler runs, and each time that the handler has waited for something else; no
// limiter sees that wait. The histogram of the runtime's metrics does not show it: most of what it counts are
// goroutines that others start or wake, which go first.
type delayMeter struct {
	dueAt atomic.Int64
	yield func(done func()) // calls done from a goroutine that has waited for its turn in the run queue
	procs func() int

	// The mutex of the limitControl guards the rest.
	mean     int64 // of the last waits
	waitedAt int64 // when calls last waited for a processor
}

const (
	// A goroutine has the processor for a slice. A wait of two of them is what two busy neighbours cost.
	timeSlice = int64(10 * time.Millisecond)
	longDelay = 2*timeSlice + timeSlice/2

	delayEvery = int64(20 * time.Millisecond)

	// Calls that compute need not wait for a processor all the time.
	computeTime = int64(10 * time.Second)

	// burstCalls may wait for a processor while none is refused. At 0.8 of the capacity, so many are there
	// in one of a thousand moments.
	burstCalls = 30
)

func newDelayMeter() *delayMeter {
	return &delayMeter{
		procs: func() int { return runtime.GOMAXPROCS(0) },
		yield: func(done func()) {
			go func() { // a new goroutine goes first, one that yields last
				runtime.Gosched()
				done()
			}()
		},
	}
}

// measureDelay sends a goroutine through the run queue, unless one is on its way.
func (g *Gate) measureDelay(due, now int64) {
	if g.delay.dueAt.CompareAndSwap(due, math.MaxInt64) {
		g.delay.yield(func() {
			then := g.clock.Now()
			g.checkDelay(then, then-now)
			g.delay.dueAt.Store(then + delayEvery)
		})
	}
}

// checkDelay halves the limit if calls wait too long for a processor. One call more than there are
// processors is never too many, or else one would be idle when a call ends. A gate that refuses no calls
// begins to only if there are many: below the capacity bursts pass.
func (g *Gate) checkDelay(now, delay int64) {
	c, m := &g.control, &g.meter
	c.mu.Lock()
	defer c.mu.Unlock()
	procs := int64(g.delay.procs())
	calls := int64(inFlight(g.word.Load())) - m.hung.Load()
	c.finder.least = g.delay.leastCalls(now, delay, m.mean.Load())
	if !c.refusing && calls < burstCalls+procs {
		delay = 0
	}
	m.delay.Store(delay)
	if least := float64(procs + 1); g.isDelayed(calls, delay, procs) && c.finder.limit > least {
		c.finder.halve(least)
		g.publish()
		g.restart()
	}
}

// isDelayed reports whether calls spend half of their time waiting for a processor, or half of them wait for one,
// because of each other. A call makes others wait for at most two time slices, so a longer wait has another
// reason, which fewer calls would not end.
func (g *Gate) isDelayed(calls, delay, procs int64) bool {
	waits := delay > longDelay && (2*delay >= g.meter.mean.Load() || 2*delay*procs >= calls*timeSlice)
	return waits && 2*calls*timeSlice >= delay*procs
}

// leastCalls is the lowest limit for trials: as many calls as processors where calls compute, which shows by
// their wait for one.
func (d *delayMeter) leastCalls(now, delay, latency int64) float64 {
	d.mean += (delay - d.mean) / 16
	if 8*d.mean < latency {
		return 1
	}
	d.waitedAt = now
	return float64(d.procs())
}

// mayCompute reports whether calls have waited for a processor lately, or the gate is too young to say. Without a meter
// that is not known, and they are taken to wait for something else.
func (d *delayMeter) mayCompute(now int64) bool { return d != nil && now-d.waitedAt < computeTime }

// waitsNow reports whether calls have waited for a processor in the last second: more of them would wait longer.
func (d *delayMeter) waitsNow(now int64) bool {
	return d != nil && d.waitedAt > 0 && now-d.waitedAt < int64(time.Second)
}
