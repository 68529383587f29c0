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

// sweepHung looks for calls that hang, and reports whether that has changed the limit. It
// loads the number of calls that ended first, and the clock last, so that it counts rather too few than too many.
func (g *Gate) sweepHung(now int64) (changed bool) {
	c, m := &g.control, &g.meter
	from := m.sweepFrom.Load()
	if g.fixed || c.swept || now-from < max(c.sweepSpan, hungAfter, hungMeans*c.finder.baseLatency()) {
		return false
	}
	ended := int(m.sweepEnded.Load())
	word := g.word.Load()
	recent := admittedSince(admitted(word), c.sweepAdmitted) - ended // in flight
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
	c.swept = int64(old) != m.hung.Swap(int64(old))
	if c.swept {
		g.publish()
	}
	return c.swept
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
