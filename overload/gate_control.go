package overload

import (
	"math"
	"sync"
	"time"
)

// A limitControl looks every tick at what the meter has counted, measures it in windows of time, one
// after the other, and sets the limit by them. It runs on the callers' goroutines.
type limitControl struct {
	mu     sync.Mutex
	finder limitFinder

	share  float64 // of the calls that are refused, smoothed
	spread float64 // variance of a latency, relative to the mean, smoothed

	longest int64 // that a call took lately

	window   window
	settle   float64 // calls still to end before the window begins …
	settleBy int64   // … if they end before
	refusing bool    // in the last window, or since

	tickAt                int64
	admittedAt, refusedAt int // at the last tick
	lastAdmitted          int64

	sweepAdmitted int   // when the sweep for hung calls began
	sweepSpan     int64 // how long it is to be at least
	swept         bool  // the window has begun anew because of one, so that another waits for its end
}

// A window is what a gate did in a time.
type window struct {
	counted                sample
	nanos                  float64 // also those that were not measured
	begun, refused, waited float64
	first, last            float64 // calls in flight at its ends
	paused                 bool    // the meter, for a part of it
}

const (
	startLimit = 20

	tickEvery = int64(20 * time.Millisecond)

	minSpan  = 50e6 // nanoseconds of a window
	maxSpan  = 1e9
	minCalls = 16

	firstCalls = 128 // base begins with them, so it has to be good

	// A window is as long as the mean must be known to 12 %.
	meanVariance = 0.015

	// minVariance is for latencies that are all equal, or less than a microsecond.
	minVariance = 0.1
)

func (c *limitControl) init(now int64, limit, most int) {
	c.tickAt = now
	c.finder = newLimitFinder(float64(limit), float64(most))
}

// check runs the tick if it is due.
func (g *Gate) check(now int64) {
	if now >= g.meter.dueAt.Load() {
		g.runTick(now)
	}
}

// runTick has nothing to do if another caller is at it.
func (g *Gate) runTick(now int64) {
	c, before := &g.control, limitOf(g.word.Load())
	if !c.mu.TryLock() {
		return
	}
	g.meter.dueAt.Store(now + tickEvery)
	if g.sweepHung(now) {
		g.restart() // its calls had less room than the limit says
	}
	g.tick(now)
	c.mu.Unlock()
	if limitOf(g.word.Load()) > before {
		g.admitWaiting(g.clock.Now()) // or else they would have begun before the sweep, and not count as ended since
	}
}

// tick adds what was counted since the last one to the curve and to the window.
func (g *Gate) tick(now int64) {
	c, word, refusals := &g.control, g.word.Load(), int(g.meter.refused.Load())
	one := window{
		nanos:   float64(now - c.tickAt),
		begun:   float64(admittedSince(admitted(word), c.admittedAt)),
		refused: float64(refusals - c.refusedAt),
		waited:  float64(g.meter.waited.Swap(0)),
		last:    g.counted(),
		paused:  now < g.meter.from.Load(),
	}
	c.tickAt, c.admittedAt, c.refusedAt = now, admitted(word), refusals
	c.refusing = c.refusing || one.refused > 0
	one.counted = g.collect(now)
	if !g.fixed {
		g.checkCurve(now, &one)
	}
	switch {
	case now < c.settleBy && (c.settle > 0 || c.window.nanos == 0 && inFlight(word) > limitOf(word)):
		c.settle -= one.counted.all.ended
		c.window = window{first: one.last}
	default:
		if c.window.add(&one); g.windowEnded() {
			g.endWindow()
		}
	}
}

func admittedSince(now, then int) int { return (now - then + admittedMod) % admittedMod }

// counted is how many calls in flight count towards the limit.
func (g *Gate) counted() float64 {
	return float64(inFlight(g.word.Load())) - float64(g.meter.hung.Load())
}

func (w *window) add(one *window) {
	w.counted.add(&one.counted)
	w.nanos += one.nanos
	w.begun += one.begun
	w.refused += one.refused
	w.waited += one.waited
	w.last, w.paused = one.last, w.paused || one.paused
}

// restart begins a window as soon as the calls at a new limit are those that end.
func (g *Gate) restart() {
	c, calls := &g.control, g.counted()
	c.settle, c.settleBy = max(calls, min(c.finder.limit, 2*calls)), c.tickAt+max(int64(maxSpan), 8*g.meter.mean.Load())
	c.window = window{first: calls}
}

// windowEnded reports whether the window says enough. It lasts until as many calls have ended as were in flight,
// because those that began together may end together. That of a trial ends as soon as chance does not explain what it
// shows, others when the mean is known.
func (g *Gate) windowEnded() bool {
	c, w := &g.control, &g.control.window
	mean, ended := float64(g.meter.mean.Load()), w.counted.all.ended
	enough := ended >= max(c.spread, minVariance)/meanVariance
	switch {
	case w.counted.all.nanos >= max(4*maxSpan, 16*mean): // few calls, or most of them hang
		return ended > 0
	case ended < minCalls || ended < w.counted.meanInFlight():
		return false
	case c.finder.trying:
		return ended >= minCalls*2*c.spread && (enough || c.finder.isClear(g.measure()))
	case w.nanos < minSpan:
		return false
	case mean == 0:
		return ended >= firstCalls || w.nanos >= maxSpan
	}
	return enough || w.nanos >= max(maxSpan, 4*mean)
}

// measure evaluates the window. What calls take is the number of those in flight by the rate at which they
// come and go (Little's law), which shows a change before calls that began after it have ended.
func (g *Gate) measure() measurement {
	c, w := &g.control, &g.control.window
	s := &w.counted
	measured, inFlight := 1.0, max(s.meanInFlight(), 1)
	if w.paused {
		measured = s.all.nanos / max(w.nanos, 1)
	}
	calls := s.all.ended + measured*(w.last-w.first)/2
	return measurement{
		took:     math.Log(max((inFlight*s.all.nanos-s.early)/max(calls, 1), 1)),
		variance: max(c.spread, minVariance) / max(s.all.ended, 1),
		inFlight: inFlight,
		peak:     max(s.peak, 0),
		full:     5*(w.refused+w.waited) >= w.refused+w.begun,
		seconds:  w.nanos / 1e9,

		hintsAtFew:  g.curve.hintsAtFew() || g.delay.waitsNow(c.tickAt),
		hintsAtSlow: c.tickAt < g.curve.slowUntil,
	}
}

// endWindow sets the limit by the window, and begins another.
func (g *Gate) endWindow() {
	c, w := &g.control, g.control.window
	c.refusing = w.refused > 0
	c.share += w.nanos / (maxSpan + w.nanos) * (w.refused/max(w.refused+w.begun, 1) - c.share)
	g.meter.share.Store(int64(1e6 * c.share))
	if variance, ok := g.meter.variance(); ok {
		c.spread = max(variance, c.spread+0.2*(variance-c.spread))
		c.finder.variety = min(2*c.spread, 1) // the work varies about twice as much as latencies, which have waiting in them
		g.meter.variety.Store(int64(1e6 * c.finder.variety))
	}
	c.longest = max(g.meter.longest.Swap(0), c.longest/2)
	g.meter.returned.Store(g.meter.returned.Load() / 2)
	m := g.measure()
	g.meter.mean.Store(int64(math.Exp(m.took)))
	c.window, c.swept = window{first: w.last}, false
	if g.fixed {
		return
	}
	before := c.finder
	c.finder.update(m)
	g.publish()
	if before.trying || c.finder.trying || c.finder.limit > 1.5*before.limit {
		g.restart()
	}
}

// publish sets the limit of the word. Calls that hang do not count.
func (g *Gate) publish() {
	limit := int(g.control.finder.limit+0.5) + int(g.meter.hung.Load())
	bits := uint64(min(limit, countMask)) << countBits
	for {
		word := g.word.Load()
		if g.word.CompareAndSwap(word, word&^(countMask<<countBits)|bits) {
			return
		}
	}
}
