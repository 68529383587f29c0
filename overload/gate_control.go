package overload

import (
	"math"
	"sync"
	"time"
)

// A limitControl measures a gate's cohorts, one after the other, and sets the
// limit by them. It runs on the callers' goroutines.
type limitControl struct {
	mu     sync.Mutex
	finder limitFinder
	most   int

	share      float64 // of the calls that are refused, smoothed
	spread     float64 // variance of a latency, relative to the mean, smoothed
	span       int64   // how long a cohort is to be
	admittedAt int     // when the cohort began
	begun      int     // calls of the cohort, once it is complete
	closedAt   int64   // when it was complete; 0 before

	sweepAdmitted int   // when the sweep began
	sweepSpan     int64 // how long it is to be at least
	restarts      int   // how often the cohort began anew because of a sweep
}

const (
	startLimit = 20

	minSpan  = int64(50 * time.Millisecond)
	maxSpan  = int64(time.Second)
	minCalls = 16

	firstCalls = 128

	// A cohort is as long as the mean must be known to 12 %.
	meanVariance = 0.015

	// hungAfter and hungMeans are when a call has hung: after half a second, and
	// after twenty times the latency without queueing.
	hungAfter = int64(time.Second / 2)
	hungMeans = 20

	// Besides, calls that began later must have come and gone: hungTurnover of them
	// for each in flight. Where all calls have become slow, such as on a processor
	// that too many share, they have not, and the sweep is repeated with more time.
	hungTurnover = 5
	maxSweepSpan = int64(time.Minute)

	// maxRestarts lets a cohort end also where calls hang all the time.
	maxRestarts = 3
)

func (c *limitControl) init(limit, most int) {
	c.most = most
	c.finder = newLimitFinder(float64(limit), float64(most))
	c.span = minSpan
}

// isDue reports whether there is something to check.
func (g *Gate) isDue(now int64) bool {
	return now >= g.meter.checkAt.Load() || now >= g.curve.dueAt.Load()
}

// check does what is due. If another caller is at it, there is nothing to do.
func (g *Gate) check(now int64) {
	if !g.control.mu.TryLock() {
		return
	}
	before := limitOf(g.word.Load())
	if now >= g.meter.checkAt.Load() {
		g.checkCohort(now)
	}
	if now >= g.curve.dueAt.Load() {
		g.checkCurve(now)
	}
	g.control.mu.Unlock()
	if limitOf(g.word.Load()) > before {
		g.admitWaiting(now)
	}
}

// checkCohort does the sweep for calls that hang, and the next step of the cohort.
func (g *Gate) checkCohort(now int64) {
	c := &g.control
	switch {
	case g.sweepHung(now) && c.restarts < maxRestarts:
		c.restarts++
		g.beginCohort(now) // its calls had less room than the limit says
	case c.closedAt == 0:
		g.closeCohort(now)
	case g.cohortEnded(now):
		c.restarts = 0
		g.endCohort(now)
		g.beginCohort(now)
	}
}

func (g *Gate) beginCohort(now int64) {
	word := g.word.Load()
	g.control.admittedAt, g.control.closedAt = admitted(word), 0
	g.meter.reset(now, inFlight(word))
	g.meter.checkAt.Store(now + g.control.span)
}

// closeCohort completes the cohort if enough calls have begun.
func (g *Gate) closeCohort(now int64) {
	c := &g.control
	begun := admittedSince(admitted(g.word.Load()), c.admittedAt)
	isFirst := g.meter.mean.Load() == 0 // base begins with it, so it has to be good
	lasted := now - g.meter.from.Load()
	if begun < g.cohortCalls() || begun < minCalls && lasted < 2*maxSpan || isFirst && begun < firstCalls && lasted < maxSpan {
		g.meter.checkAt.Store(now + c.span)
		return
	}
	c.begun, c.closedAt = begun, now
	g.meter.until.Store(now)
	g.pollCohort(now)
}

// cohortCalls is how many calls a cohort has at least. At a limit of one, sixteen calls of a second would take
// sixteen seconds. A cohort of fewer than minCalls lasts for two seconds at least: where calls are fast enough, it has
// minCalls by then, which say more.
func (g *Gate) cohortCalls() int {
	return min(max(minCalls/4*limitOf(g.word.Load()), minCalls/2), minCalls)
}

func (g *Gate) pollCohort(now int64) {
	g.meter.checkAt.Store(now + min(max(g.meter.mean.Load()/8, int64(time.Millisecond)), minSpan))
}

func admittedSince(now, then int) int { return (now - then + admittedMod) % admittedMod }

// cohortEnded reports whether nearly all calls of the cohort have ended, or the
// rest takes so long that its age says enough.
func (g *Gate) cohortEnded(now int64) bool {
	patience := max(maxSpan, 8*g.meter.mean.Load())
	if g.unended() <= g.control.begun/20 || now-g.control.closedAt >= patience {
		return true
	}
	g.pollCohort(now)
	return false
}

// unended is how many calls of the cohort are in flight.
func (g *Gate) unended() int {
	return max(g.control.begun-int(g.meter.samples.Load()/oneSample+g.meter.skipped.Load()), 0)
}

// endCohort evaluates the cohort.
func (g *Gate) endCohort(now int64) {
	c, m := &g.control, &g.meter
	began := m.from.Load()
	age := now - max((began+c.closedAt)/2, c.closedAt-m.mean.Load()) // of calls that have not ended
	n, mean, variance := m.latency(g.unended(), age)
	refused := float64(m.refused.Load())
	share := refused / (refused + float64(c.begun)*float64(now-began)/float64(c.closedAt-began))
	c.share += 0.3 * (share - c.share)
	m.share.Store(int64(1e6 * c.share))
	if m.share.Load() < 200_000 {
		g.queue.settle()
	}
	if n < minCalls/4 {
		return
	}
	c.spread = max(variance, c.spread+0.2*(variance-c.spread))
	m.spread.Store(int64(1e6 * c.spread))
	variance = max(c.spread, minVariance)
	rate := float64(c.begun) / float64(c.closedAt-began)
	m.mean.Store(int64(mean))
	c.span = min(max(int64(variance/meanVariance/rate), minSpan), max(maxSpan, 4*c.finder.baseLatency()))
	if g.fixed || g.curve.trial != nil {
		return
	}
	c.finder.update(measurement{
		took:     math.Log(mean),
		variance: variance / n,
		calls:    n,
		spread:   variance,
		inFlight: m.meanInFlight(),
		peak:     float64(m.peak.Load() - m.hung.Load()),
		full:     5*(refused+float64(m.waited.Load())) >= refused+float64(c.begun),
		seconds:  float64(now-began) / 1e9,

		hintsAtFew: g.curve.hintsAtFew(),
	})
	g.publish()
}

// publish sets the limit of the word. Calls that hang do not count.
func (g *Gate) publish() {
	g.meter.probing.Store(g.control.finder.probing)
	limit := int(g.control.finder.limit+0.5) + int(g.meter.hung.Load())
	bits := uint64(min(limit, g.control.most)) << countBits
	for {
		word := g.word.Load()
		if g.word.CompareAndSwap(word, word&^(countMask<<countBits)|bits) {
			return
		}
	}
}

// sweepHung looks for calls that hang, and reports whether that has changed the limit. It
// loads the number of calls that ended first, so that it counts rather too few than too many.
func (g *Gate) sweepHung(now int64) (changed bool) {
	c, m := &g.control, &g.meter
	from := m.sweepFrom.Load()
	if g.fixed || now-from < max(c.sweepSpan, hungAfter, hungMeans*c.finder.baseLatency()) {
		return false
	}
	ended := int(m.sweepEnded.Load())
	word := g.word.Load()
	recent := admittedSince(admitted(word), c.sweepAdmitted) - ended // in flight
	c.sweepAdmitted = admitted(word)
	m.sweepFrom.Store(now)
	m.sweepEnded.Store(0)
	old := max(inFlight(word)-recent, 0)
	if int64(old) > m.hung.Load() && ended < hungTurnover*recent {
		c.sweepSpan = min(2*(now-from), maxSweepSpan)
		return false
	}
	c.sweepSpan = 0
	m.hungBefore.Store(from)
	changed = int64(old) != m.hung.Swap(int64(old))
	if changed {
		g.publish()
	}
	return changed
}

// removeHung is called when a call that hung has ended after all.
func (g *Gate) removeHung() {
	g.control.mu.Lock()
	defer g.control.mu.Unlock()
	if g.meter.hung.Load() > 0 {
		g.meter.hung.Add(-1)
		g.publish()
	}
}
