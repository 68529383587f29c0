package overload

import (
	"math"
	"time"
)

// A departureCurve measures how fast calls end by how many are in flight. While n of them are, a server of c workers
// ends min(n, c) in the time that one call takes, so bursts show how many workers there are before the gate is ever
// full. If many more calls arrive all at once, that need not be found out in the overload.
type departureCurve struct {
	known, latest  endRates // the latest may be of a server that has become slower; see keepLatest
	usual, recent  arrivals
	jumpedAt       int64 // when more calls began to arrive than did, or any
	slowUntil      int64 // calls become slower until then, or a trial begins
	slower, faster rateTest

	// Workers and what a call takes, from before calls seemed slower. The latter is infinite if workers are not
	// known to be few.
	few, took float64
}

// arrivals are how many calls arrived, and in which time.
type arrivals struct{ calls, nanos float64 }

const (
	fewWorkers     = 8
	roomPerWorker  = 10
	clearOverload  = 1.3
	clearEvidence  = 5   // of few workers: logarithm of a likelihood ratio, and more if calls vary much
	clearlyFewer   = 3   // the same, against more than few workers
	hintOfFew      = 1.5 // the same, enough not to double the limit at the start
	sameEvidence   = 2   // that rates differ: less is chance if as many as sameCalls have ended
	sameCalls      = 16
	clearlySlower  = 1.5
	slowCalls      = 256 // at a slower rate without being full: nothing is known of the workers any more
	slowTime       = int64(2 * time.Second)
	clearJump      = 10 // of the calls that arrive
	recentArrivals = 30
	usualArrivals  = 200
	jumpTime       = int64(2 * time.Second) // later, calls may end slowly for another reason
)

// checkCurve looks for a crowd, and for a change of the server.
func (g *Gate) checkCurve(now int64, w *window) {
	c, f, spread := &g.curve, &g.control.finder, g.control.spread
	c.keepLatest(now, spread)
	c.collectArrivals(now, w.begun+w.refused, w.nanos)
	if !math.IsInf(c.took, 1) {
		g.noticeChange(&w.counted)
	}
	if !f.trying && c.hasJumped(now) {
		g.meetCrowd(now)
	}
	if c.slower.evidence > 0 { // or else calls that have become slower would look like fewer workers
		return
	}
	c.few, c.took = c.fewWorkers(now, spread)
	f.room = g.roomFor(c.few, now)
}

// roomFor is how many calls few workers have room for while the gate is not full. A call behind more calls would take
// more than ten times as long as alone, and a critical one could not go first. Where calls share a processor, short
// ones do not wait for long ones, and there is no bound.
func (g *Gate) roomFor(workers float64, now int64) float64 {
	if math.IsInf(g.curve.took, 1) || g.delay.mayCompute(now) {
		return math.Inf(1)
	}
	return roomPerWorker * workers
}

// noticeChange looks for a server of few workers that has become slower, or faster. If calls end at half of the usual
// rate, or less, and the gate is full, a trial begins. If it is not full for long, nothing is known of the workers any
// more, because there may be others.
func (g *Gate) noticeChange(s *sample) {
	c, f := &g.curve, &g.control.finder
	enough := clearChange * max(2*g.control.spread, 1) // the work varies about twice as much as latencies
	c.rescale(c.faster.add(2, s.expected, s.all.ended, enough))
	if f.trying { // the rate says more about the limit
		c.slower = rateTest{}
		return
	}
	slower := c.slower.add(0.5, s.expected, s.all.ended, enough)
	if slower == 1 {
		return
	}
	if hasRoom(g.word.Load()) {
		if c.slower.expected > slowCalls {
			c.known, c.latest, c.slower = endRates{}, endRates{}, rateTest{}
		}
		return
	}
	c.rescale(slower)
	n := max(g.counted(), 1)
	f.try(measurement{took: math.Log(n * slower * c.took / c.few), variance: 0.25, inFlight: n, workers: c.few})
	g.publish()
	g.restart()
}

// meetCrowd lowers the limit to what few workers need if they are clearly overloaded.
func (g *Gate) meetCrowd(now int64) {
	control, c := &g.control, &g.curve
	workers, took := c.fewWorkers(now, control.spread)
	calls, nanos := c.arrived()
	if calls < recentArrivals || math.IsInf(took, 1) {
		return
	}
	c.jumpedAt = now - 2*jumpTime
	if calls*took > clearOverload*workers*nanos && control.finder.jump(workers) {
		g.publish()
		g.restart()
	}
}

// keepLatest adds the latest rates to the known ones. If calls have become slower, more of them are in flight while as
// many end, as with few workers. Unless those are known, or more calls have arrived, the two are compared first: if two
// servers explain the rates better than one does, the known rates are forgotten. While calls become slower, so are the
// next: some of those that end began before.
func (c *departureCurve) keepLatest(now int64, spread float64) {
	if now < c.slowUntil {
		c.latest = endRates{}
		return
	}
	all := c.known.with(&c.latest)
	change := c.known.best() + c.latest.best() - all.best()
	switch {
	case c.hasJumped(now) || !math.IsInf(c.took, 1) || change <= sameEvidence && c.latest.calls() >= sameCalls:
		c.known, c.latest = all, endRates{}
	case change > clearChange*max(spread, 1) && c.latest.took() > clearlySlower*c.known.took():
		c.known, c.latest, c.slowUntil = endRates{}, endRates{}, now+slowTime
	}
	c.known.forget()
	c.latest.forget()
}

// hasJumped reports whether more calls in flight may be because more have arrived.
func (c *departureCurve) hasJumped(now int64) bool { return now-c.jumpedAt <= jumpTime }

// rescale keeps the number of workers, and multiplies what each call takes.
func (c *departureCurve) rescale(factor float64) {
	if factor == 1 {
		return
	}
	for n := range c.known {
		c.known[n].nanos *= factor
		c.latest[n].nanos *= factor
	}
	c.slower, c.faster = rateTest{}, rateTest{}
}

// collectArrivals compares recent arrivals with the usual ones.
func (c *departureCurve) collectArrivals(now int64, arrived, nanos float64) {
	c.recent.calls += arrived
	c.recent.nanos += nanos
	calls, expected := c.recent.calls, max(c.usual.calls/max(c.usual.nanos, 1)*c.recent.nanos, 0.1)
	if c.usual.calls > 0 && expected-calls+calls*math.Log(max(calls, 1)/expected) > clearJump {
		if calls > expected {
			c.jumpedAt = now
		}
		c.usual = arrivals{}
	}
	if calls >= recentArrivals {
		old := usualArrivals / max(c.usual.calls+calls, usualArrivals)
		c.usual = arrivals{old * (c.usual.calls + calls), old * (c.usual.nanos + c.recent.nanos)}
		c.recent = arrivals{}
	}
}

// arrived returns how many calls arrived lately, and in which time.
func (c *departureCurve) arrived() (calls, nanos float64) {
	return c.usual.calls + c.recent.calls, c.usual.nanos + c.recent.nanos
}

// fewWorkers returns the workers and what a call takes, which is infinite if they are not clearly few. If a gate has
// only ever seen more calls in flight than there are workers, any smaller number of workers explains as much. Unless
// more calls have arrived, so do enough workers for all calls, which have become slower.
func (c *departureCurve) fewWorkers(now int64, spread float64) (workers, took float64) {
	all := c.known.with(&c.latest)
	workers, took, best := all.likeliestFew()
	unlimited := all.unlimited()
	if !c.hasJumped(now) {
		unlimited = c.known.unlimited() + c.latest.unlimited()
	}
	more, _ := all.likelihood(max(2*workers, fewWorkers+1))
	if workers > fewWorkers || best-unlimited < clearEvidence*max(spread, 1) || best-more < clearlyFewer {
		took = math.Inf(1)
	}
	return workers, took
}

// hintsAtFew reports whether few workers explain how fast calls end better than workers for all of them do.
func (c *departureCurve) hintsAtFew() bool {
	all := c.known.with(&c.latest)
	_, _, best := all.likeliestFew()
	return best-all.unlimited() > hintOfFew
}
