package overload

import "math"

// This file finds out that calls end slower than they did, and why. It is pure arithmetic: counts of calls that ended
// go in, a limit to hold and a conclusion come out. Its transcripts are in gate_trial_test.go.

// departures are how many calls ended, and in which time.
type departures struct{ ended, nanos float64 }

func (d departures) rate() float64 { return max(d.ended, 0.5) / d.nanos }

func (d *departures) add(o departures) { d.ended, d.nanos = d.ended+o.ended, d.nanos+o.nanos }

// A rateTest is a sequential test (CUSUM) of whether calls end at another rate than the departure curve says.
type rateTest struct {
	evidence        float64 // logarithm of the likelihood ratio of the other rate to the usual one, at least 0
	expected, ended float64 // calls since it was last 0
}

const (
	clearChange = 12 // evidence of a rateTest, and more if calls vary much
	changeCalls = 8  // a rateTest needs at least so many calls that ended
)

// add adds a sample of calls that ended, and those that the curve says should have, to a test of ratio times the usual
// rate. It returns by which factor calls take longer if the evidence is enough, or else 1. One sample alone is never
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
	workers       float64 // infinite if they are not known; 0 after the rate has followed the limit, which they do not bound
	most          float64
	from, limit   float64    // before, and to hold
	settle        float64    // calls still to end of those that were in flight when the limit changed
	before, after departures // at each of the limits
	idle          float64    // nanoseconds with too few calls to fill the limit
}

// A conclusion is what a trial has found out.
type conclusion int

const (
	noConclusion conclusion = iota // hold the limit for longer
	nextLimit                      // the rate follows: hold the next limit
	callsQueue                     // as many calls end at both limits, so they wait for workers
	callsAreSlow                   // without queueing, at the limit from which the trial went on last
	tooFewCalls                    // the limit was not filled for long enough
)

const (
	trialCalls    = 16   // that end at the limit of a trial
	roomyLimit    = 2    // times what the workers need
	noFaster      = 2.5  // evidence that a limit twice as high does not double the rate
	filledShare   = 0.9  // of a limit that was raised
	minElasticity = 0.75 // log of the rate by log of the limit: the rate follows the limit

	// A lower limit is not doubled. If another gate is before the same server, the rate follows because this gate
	// takes from the other; and of few calls, a few make a large difference.
	minDoubled = 5
)

// begin holds another limit than the present one, and reports whether one would tell. The workers need a limit of
// needed.
func (t *trial) begin(needed, inFlight float64) bool {
	switch {
	case t.from >= roomyLimit*needed:
		t.hold(needed, inFlight)
	case t.from >= minDoubled && 2*t.from <= t.most: // a little more would tell nothing
		t.hold(2*t.from, inFlight)
	default:
		return false
	}
	return true
}

func (t *trial) hold(limit, inFlight float64) {
	t.limit, t.settle, t.after, t.idle = limit, inFlight, departures{}, 0
}

func (t *trial) isUp() bool { return t.limit > t.from }

// fills reports whether so many calls in flight say something about the limit: they keep the workers busy if it was
// lowered, and are nearly as many as it admits if it was raised.
func (t *trial) fills(inFlight float64) bool {
	if t.isUp() {
		return inFlight >= filledShare*t.limit
	}
	return inFlight >= t.workers
}

// add adds calls that ended: all, and those while the limit was filled. If workers are known, calls that were in flight
// before a limit was raised end at the rate before.
func (t *trial) add(all, filled departures, inFlight float64) conclusion {
	if t.settle > 0 {
		t.settle -= all.ended
		if t.isUp() && t.workers > 0 && !math.IsInf(t.workers, 1) {
			t.before.add(all)
		}
		return noConclusion
	}
	t.after.add(filled)
	t.idle += all.nanos - filled.nanos
	expected, enough := t.after.nanos*t.before.rate(), max(trialCalls, t.limit)
	isNoFaster := t.isUp() && expected-t.after.ended*math.Ln2 > noFaster
	switch {
	case t.after.ended >= enough || expected >= 2*enough || isNoFaster:
		return t.conclude(inFlight)
	case t.idle*t.before.rate() >= 2*enough:
		return tooFewCalls
	}
	return noConclusion
}

// conclude compares the rates at both limits.
func (t *trial) conclude(inFlight float64) conclusion {
	followed := math.Log(t.after.rate()/t.before.rate()) / math.Log(t.limit/t.from)
	if followed <= minElasticity {
		return t.end(followed)
	}
	t.workers = 0
	if t.isUp() {
		t.from, t.before = t.limit, t.after
	}
	if 2*t.from > t.most {
		return callsAreSlow
	}
	t.hold(2*t.from, inFlight)
	return nextLimit
}

// end is for a rate that has not followed the limit. If it has in part, beyond chance, there are more workers than
// were known.
func (t *trial) end(followed float64) conclusion {
	if t.workers == 0 {
		return callsAreSlow
	}
	part := followed * math.Abs(math.Log(t.limit/t.from))
	if part > 2*math.Sqrt(1/t.before.ended+1/max(t.after.ended, 1)) {
		t.workers = max(t.workers, math.Exp(part)*min(t.limit, t.from))
	}
	return callsQueue
}
