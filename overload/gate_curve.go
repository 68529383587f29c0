package overload

import (
	"math"
	"sync/atomic"
	"time"
)

// A departureCurve measures how fast calls end by how many are in flight. While n of them are, a server of c workers
// ends min(n, c) in the time that one call takes, so bursts show how many workers there are before the gate is ever
// full. If many more calls arrive all at once, that need not be found out in the overload.
type departureCurve struct {
	at             atomic.Int64                  // when the number of calls in flight last changed
	states         [curveStates + 1]atomic.Int64 // by calls in flight: for how long, and how many ended (oneSample each)
	from           atomic.Int64                  // a pause before it: of many calls a second, a part says enough
	dueAt, refused atomic.Int64

	// The mutex of the limitControl guards the rest.
	known, latest     endRates // the latest may be of a server that has become slower; see keepLatest
	usual, recent     arrivals
	admittedAt        int
	refusedAt, seenAt int64
	jumpedAt          int64      // when more calls began to arrive than did, or any
	slowUntil         int64      // calls become slower until then, or a trial begins
	full              departures // meanwhile, while the gate was full
	slower, faster    rateTest
	trial             *trial // nil if there is none

	// Workers and what a call takes, from before calls seemed slower. The latter is infinite if workers are not
	// known to be few.
	few, took float64
	usualRate float64 // before the trial
}

// arrivals are how many calls arrived, and in which time.
type arrivals struct{ calls, nanos float64 }

const (
	curveStates    = 32
	curveEvery     = int64(20 * time.Millisecond)
	curveCalls     = 64 // that count, of each state
	curvePause     = 20 * curveEvery
	fewWorkers     = 8
	roomPerWorker  = 10
	clearOverload  = 1.3
	clearEvidence  = 5   // of few workers: logarithm of a likelihood ratio, and more if calls vary much
	clearlyFewer   = 2   // the same, against more than few workers
	hintOfFew      = 0.5 // the same, enough not to double the limit at the start
	sameEvidence   = 2   // that rates differ: less is chance if as many as sameCalls have ended
	sameCalls      = 16
	clearlySlower  = 1.5
	slowTime       = int64(2 * time.Second)
	clearJump      = 10 // of the calls that arrive
	recentArrivals = 30
	usualArrivals  = 200
	jumpTime       = int64(2 * time.Second) // later, calls may end slowly for another reason
)

// init begins to measure, or never does.
func (c *departureCurve) init(now int64, never bool) {
	c.seenAt, c.jumpedAt = now, now
	if never {
		c.from.Store(math.MaxInt64)
		c.dueAt.Store(math.MaxInt64)
	}
}

// changed notes that the number of calls in flight changes.
func (c *departureCurve) changed(now int64, inFlight int, ended int64) {
	from := c.from.Load()
	if now < from {
		return
	}
	since := now - max(c.at.Swap(now), from)
	if inFlight > 0 {
		c.states[min(inFlight, curveStates)].Add(min(max(since, 0), int64(time.Minute)) + ended*oneSample)
	}
}

// checkCurve looks for a crowd, and for a change of the server.
func (g *Gate) checkCurve(now int64) {
	control, c := &g.control, &g.curve
	c.dueAt.Store(now + curveEvery)
	if c.slower.evidence == 0 {
		c.few, c.took = c.fewWorkers(now, control.spread)
		control.finder.room = g.roomFor(c.few, now)
	}
	s := c.collectStates(now, float64(inFlight(g.word.Load())), float64(g.meter.hung.Load()))
	c.keepLatest(now, control.spread)
	c.collectArrivals(now, g.word.Load())
	switch {
	case c.trial != nil:
		g.continueTrial(now, s)
		return
	case !math.IsInf(c.took, 1):
		g.noticeChange(now, s)
	case now < c.slowUntil:
		g.tryMore(s)
	}
	if c.trial == nil && c.hasJumped(now) {
		g.meetCrowd(now)
	}
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

// noticeChange begins a trial if calls end at half of the usual rate, or less, and the gate is full. If they end at
// twice the rate, or more, it rescales the curve.
func (g *Gate) noticeChange(now int64, s curveSample) {
	c, f := &g.curve, &g.control.finder
	enough := clearChange * max(2*g.control.spread, 1) // the work varies about twice as much as latencies
	slower, faster := c.slower.add(0.5, s.expected, s.all.ended, enough), c.faster.add(2, s.expected, s.all.ended, enough)
	word := g.word.Load()
	if faster < 1 {
		c.rescale(faster)
	}
	if slower == 1 || !isFull(word) && word&waitingFlag == 0 {
		return
	}
	c.rescale(slower)
	if f.endEarly() {
		g.beginCohort(now)
	}
	c.usualRate = c.few / c.took
	before := departures{4, 4 * slower / c.usualRate} // the rate is known as if four calls had shown it
	g.beginTrial(c.few, c.few+f.surplus(c.few), before)
}

// tryMore begins a trial of twice the limit if calls have become slower, the gate is full, and it is not known that
// few workers serve it.
func (g *Gate) tryMore(s curveSample) {
	c, f := &g.curve, &g.control.finder
	if word := g.word.Load(); f.probing || !isFull(word) && word&waitingFlag == 0 {
		c.full = departures{}
		return
	}
	if c.full.add(s.all); c.full.ended < trialCalls {
		return
	}
	g.beginTrial(math.Inf(1), math.Inf(1), c.full)
	c.slowUntil = 0
}

// counted is how many calls in flight count towards the limit.
func (g *Gate) counted() float64 {
	return float64(inFlight(g.word.Load())) - float64(g.meter.hung.Load())
}

// beginTrial holds another limit, if one would tell why calls have become slower. The workers need a limit of needed.
func (g *Gate) beginTrial(workers, needed float64, before departures) {
	f := &g.control.finder
	t := &trial{workers: workers, most: f.most, from: f.limit, before: before}
	if t.begin(needed, g.counted()) {
		g.curve.trial, f.limit = t, t.limit
	}
	g.publish()
}

// continueTrial adds calls that ended, and applies what the trial has found out.
func (g *Gate) continueTrial(now int64, s curveSample) {
	c, f := &g.curve, &g.control.finder
	t := c.trial
	switch found := t.add(s.all, s.filled, g.counted()); found {
	case noConclusion:
	case nextLimit:
		f.limit = t.limit
		g.publish()
	default:
		c.trial = nil
		f.conclude(t, found, c.usualRate, g.control.spread)
		if found == callsQueue {
			g.expectRefusals(t.before.rate())
		} else {
			c.known, c.latest = endRates{}, endRates{}
		}
		g.publish()
		g.beginCohort(now)
	}
}

// expectRefusals is for an overload that has just begun, of a server that ends calls at a rate.
func (g *Gate) expectRefusals(rate float64) {
	calls, nanos := g.curve.arrived()
	g.control.share = max(g.control.share, 1-rate*nanos/max(calls, 1))
	g.meter.share.Store(int64(1e6 * g.control.share))
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
		g.beginCohort(now)
	}
}

// A curveSample is what was measured since the last one.
type curveSample struct {
	all      departures
	filled   departures // while the limit of the trial was filled
	expected float64    // calls that would have ended at the usual rate
}

// collectStates adds what was measured to the curve. Calls that hang do not fill the limit of a trial. The last state
// is of all numbers from curveStates on, of which the present one is taken for those before.
func (c *departureCurve) collectStates(now int64, inFlight, hung float64) (s curveSample) {
	for n := range c.states {
		state := c.states[n].Swap(0)
		d := departures{float64(state / oneSample), float64(state % oneSample)}
		s.all.add(d)
		s.expected += d.nanos * min(float64(n), c.few) / c.took
		calls := float64(n)
		if n == curveStates {
			calls = max(calls, inFlight)
		}
		if c.trial != nil && c.trial.fills(calls-hung) {
			s.filled.add(d)
		}
		c.latest[n].add(d)
	}
	if s.all.ended > curveCalls {
		c.from.Store(now + curvePause)
	}
	return s
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
		c.known, c.latest, c.slowUntil, c.full = endRates{}, endRates{}, now+slowTime, departures{}
	}
	c.known.forget()
	c.latest.forget()
}

// hasJumped reports whether more calls in flight may be because more have arrived.
func (c *departureCurve) hasJumped(now int64) bool { return now-c.jumpedAt <= jumpTime }

// rescale keeps the number of workers, and multiplies what each call takes.
func (c *departureCurve) rescale(factor float64) {
	for n := range c.known {
		c.known[n].nanos *= factor
		c.latest[n].nanos *= factor
	}
	c.slower, c.faster = rateTest{}, rateTest{}
}

// collectArrivals compares recent arrivals with the usual ones.
func (c *departureCurve) collectArrivals(now int64, word uint64) {
	refused := c.refused.Load()
	c.recent.calls += float64(admittedSince(admitted(word), c.admittedAt)) + float64(refused-c.refusedAt)
	c.recent.nanos += float64(now - c.seenAt)
	c.seenAt, c.admittedAt, c.refusedAt = now, admitted(word), refused
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
