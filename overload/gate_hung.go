package overload

import "time"

const (
	// hungAfter and hungMeans are when a call has hung: after half a second, and
	// after twenty times the latency without queueing.
	hungAfter = int64(time.Second / 2)
	hungMeans = 20

	// Besides, calls that began later must have come and gone: hungTurnover of them
	// for each in flight. Where all calls have become slow, such as on a processor
	// that too many share, they have not, and the sweep is repeated with more time.
	hungTurnover = 5
	maxSweepSpan = int64(time.Minute)
)

// sweepHung looks for calls that hang, and reports whether a window must begin anew because that has changed the limit.
// It loads the number of calls that ended first, and the clock last, so that it counts rather too few than too many.
func (g *Gate) sweepHung(now int64) (restarts bool) {
	c, m := &g.control, &g.meter
	from, stuck := m.sweepFrom.Load(), g.isStuck(now)
	if g.fixed || !stuck && (c.swept || now-from < max(c.sweepSpan, g.hungTime())) {
		return false
	}
	ended := int(m.sweepEnded.Load())
	word := g.word.Load()
	recent := admittedSince(admitted(word), c.sweepAdmitted) - ended // in flight
	if stuck {
		from, recent = now, 0
	}
	c.sweepAdmitted = admitted(word)
	m.sweepFrom.Store(g.clock.Now())
	m.sweepEnded.Store(0)
	old := max(inFlight(word)-recent, 0)
	if int64(old) > m.hung.Load() && ended < hungTurnover*recent {
		c.sweepSpan = min(2*(now-from), maxSweepSpan)
		return false
	}
	c.sweepSpan = 0
	m.hungBefore.Store(from)
	if int64(old) == m.hung.Swap(int64(old)) {
		return false
	}
	g.publish()
	restarts = !c.swept // or else no window would end beside calls that hang again and again
	c.swept = true
	return restarts
}

// hungTime is when a call has hung. What calls take without queueing may have been measured beside calls that hang, and
// is no longer than the longest that ended.
func (g *Gate) hungTime() int64 {
	longest := max(g.control.longest, g.meter.longest.Load())
	return max(hungAfter, hungMeans*min(g.control.finder.baseLatency(), longest))
}

// isStuck reports whether the gate is full, and has admitted nobody for so long that all calls in flight hang. Then a
// sweep waits neither for turnover nor for the end of a window, because both need calls that end. Calls that had hung and
// have succeeded after all were slow, so others may be.
func (g *Gate) isStuck(now int64) bool {
	c, m, word := &g.control, &g.meter, g.word.Load()
	if admitted(word) != c.admittedAt {
		c.lastAdmitted = min(now, max(m.at.Load(), m.from.Load())) // at the latest
	}
	return isFull(word) && now-c.lastAdmitted >= max(hungAfter+g.hungTime(), m.returned.Load())
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
