package overload

import "math"

// A rateTest is a sequential test (CUSUM) of whether calls end at another rate than the departure curve says.
type rateTest struct {
	evidence        float64 // logarithm of the likelihood ratio of the other rate to the usual one, at least 0
	expected, ended float64 // calls since it was last 0
}

const (
	clearChange = 12 // evidence of a rateTest, and more if calls vary much
	changeCalls = 8  // that have ended at least

	trialCalls    = 16   // that end at the limit of a trial
	roomyLimit    = 2    // times what the workers need
	noFaster      = 2.5  // evidence that a limit twice as high does not double the rate
	minElasticity = 0.75 // log of the rate by log of the limit: the rate follows the limit

	// A lower limit is not doubled. If another gate is before the same server, the rate follows because this gate
	// takes from the other; and of few calls, a few make a large difference.
	minDoubled = 5
)

// add adds calls that ended in a while, and those that the curve says should have, to a test of ratio times the usual
// rate. It returns by which factor calls take longer if the evidence is enough, or else 1. One while alone is never
// enough: in a pause of the whole process no calls end, but some did just before.
func (t *rateTest) add(ratio, expected, ended, enough float64) (factor float64) {
	t.evidence += min(ended*math.Log(ratio)+expected*(1-ratio), enough/2)
	t.evidence = min(t.evidence, enough)
	t.expected += expected
	t.ended += ended
	if t.evidence <= 0 {
		*t = rateTest{}
	}
	if t.evidence < enough || t.ended < changeCalls {
		return 1
	}
	return t.expected / t.ended
}

// A trial finds out why calls have become slower, by another limit. If they queue, as many end there; if each takes
// longer without queueing, the rate follows the limit. A limit far beyond what the workers need is tried at that,
// because then those calls that queue are late; another is doubled, again and again for as long as the rate follows.
type trial struct {
	workers       float64    // 0 after the rate has followed the limit: they are not what bounds it
	usual         float64    // rate before calls became slower
	from, to      float64    // limits; to is 0 if there is no trial
	settle        float64    // calls still to end of those that were in flight when the limit changed
	before, after departures // at each of the limits
}

// departures are how many calls ended, and in which time.
type departures struct{ ended, nanos float64 }

func (d departures) rate() float64 { return max(d.ended, 0.5) / d.nanos }

func (d *departures) add(o departures) { d.ended, d.nanos = d.ended+o.ended, d.nanos+o.nanos }

// noticeChange begins a trial if calls end at half of the usual rate, or less, and the gate is full.
func (g *Gate) noticeChange(expected, ended float64) {
	c, f := &g.curve, &g.control.finder
	enough := clearChange * max(2*g.control.spread, 1) // the work varies about twice as much as latencies
	slower, faster := c.slower.add(0.5, expected, ended, enough), c.faster.add(2, expected, ended, enough)
	word := g.word.Load()
	if faster < 1 {
		c.rescale(faster)
	}
	if slower == 1 || !isFull(word) && word&waitingFlag == 0 {
		return
	}
	c.rescale(slower)
	if f.probing {
		f.limit, f.probing = f.resume, false
	}
	usual, needed := c.few/c.took, c.few+f.surplus(c.few)
	c.trial = trial{workers: c.few, usual: usual, from: f.limit, to: 2 * f.limit, before: departures{4, 4 * slower / usual}}
	switch {
	case f.limit >= roomyLimit*needed:
		c.trial.to = needed
		g.queue.stand()
	case f.limit < minDoubled:
		c.trial = trial{}
		return
	}
	g.tryLimit()
}

// tryLimit admits calls up to the limit of the trial.
func (g *Gate) tryLimit() {
	t, f := &g.curve.trial, &g.control.finder
	t.settle, t.after = float64(inFlight(g.word.Load()))-float64(g.meter.hung.Load()), departures{}
	f.limit = min(t.to, f.most)
	g.publish()
}

// continueTrial adds calls that ended, and ends the trial, or goes on with another limit. Calls that were in flight
// before a limit was raised end at the rate before.
func (g *Gate) continueTrial(now int64, d departures) {
	t, f := &g.curve.trial, &g.control.finder
	up := t.to > t.from
	if t.settle > 0 {
		t.settle -= d.ended
		if up {
			t.before.add(d)
		}
		return
	}
	t.after.add(d)
	expected, enough := t.after.nanos*t.before.rate(), max(trialCalls, t.to)
	isNoFaster := up && expected-t.after.ended*math.Ln2 > noFaster
	if t.after.ended < enough && expected < 2*enough && !isNoFaster {
		return
	}
	follows := math.Log(t.after.rate()/t.before.rate())/math.Log(t.to/t.from) > minElasticity
	if !follows || t.to >= f.most {
		g.endTrial(now)
		return
	}
	if up {
		t.from, t.before = t.to, t.after
	}
	t.to, t.workers = 2*t.from, 0
	g.tryLimit()
}

// endTrial sets the limit, and tells the finder what calls take without queueing. If they queue, the limit is what the
// workers need; if not, the finder may raise it further.
func (g *Gate) endTrial(now int64) {
	c, f := &g.curve, &g.control.finder
	t, rate := c.trial, c.trial.before.rate()
	c.trial = trial{}
	f.limit, f.fullFor, f.last = t.from, 0, measurement{}
	base := measurement{took: math.Log(t.from / rate), variance: max(g.control.spread, 1) / trialCalls, inFlight: t.from}
	if t.workers > 0 {
		base.took, base.inFlight = min(math.Log(t.workers/rate), f.base+math.Log(t.usual/rate)), t.workers
		f.jump(t.workers)
		g.queue.stand()
		calls, nanos := c.arrived()
		g.control.share = max(g.control.share, 1-rate*nanos/max(calls, 1))
		g.meter.share.Store(int64(1e6 * g.control.share))
	} else {
		c.nanos, c.ended = [curveStates + 1]float64{}, [curveStates + 1]float64{}
		f.growth = f.limit / 4
	}
	f.setBase(base)
	g.publish()
	g.beginCohort(now)
}

// rescale keeps the number of workers, and multiplies what each call takes.
func (c *departureCurve) rescale(factor float64) {
	for n := range c.nanos {
		c.nanos[n] *= factor
	}
	c.slower, c.faster = rateTest{}, rateTest{}
}
