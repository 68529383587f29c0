package overload

import "math"

// A trial holds another limit for a window, to see whether the rate at which calls end follows it. If as many end at
// both limits, calls queue at the higher one; if the rate follows, they do not. Its transcripts are in
// gate_trial_test.go. Which limit it is:
//
//   - Half of the limit, now and then while the gate is full, and when latency is higher than the limit explains.
//     A process that starts in an overload knows no latency without queueing, so it goes on to half of that, until
//     the rate follows.
//   - What known workers need, if they have become slower and the limit is far beyond that: those calls that
//     queue are late.
//   - Twice the limit, if known workers have become slower and the limit is hardly more than they need, if calls
//     seem to have become slower at a server of more workers, or if the gate is full for the first time. While the
//     rate follows, the limit is doubled again.

const (
	// The rate has followed a limit beyond this elasticity. Of a limit that was doubled less is asked, because a gate
	// that stops too early refuses calls, and one that goes on tries less again soon.
	minElastic      = 0.6
	minElasticAbove = 0.5

	// A trial is clear at so many standard deviations from that.
	clearSigmas = 1.5

	roomyLimit = 2 // times what workers need

	// A lower limit is not doubled. If another gate is before the same server, the rate follows because this gate
	// takes from the other; and of few calls, a few make a large difference.
	minDoubled = 5
)

// try begins a trial.
func (f *limitFinder) try(m measurement) {
	f.starting, f.first = false, m
	needed := m.workers + f.surplus(m.workers)
	switch {
	case m.workers > 0 && f.limit >= roomyLimit*needed:
		f.hold(m, needed)
	case m.workers == 0 && !m.hintsAtSlow && f.limit > 1.5:
		f.hold(m, f.limit/2)
	case f.limit >= minDoubled && f.canDouble():
		f.hold(m, 2*f.limit)
	}
}

func (f *limitFinder) canDouble() bool { return 2*f.limit <= f.most }

func (f *limitFinder) hold(m measurement, limit float64) {
	f.trying, f.origin, f.resume, f.limit = true, m, f.limit, limit
}

func (f *limitFinder) isUp() bool { return f.limit > f.resume }

// followed is the elasticity of a trial.
func (f *limitFinder) followed(m measurement) (e, sigma float64) {
	if f.isUp() {
		return elasticity(m, f.origin)
	}
	return elasticity(f.origin, m)
}

// isClear reports whether chance does not explain what a trial has shown.
func (f *limitFinder) isClear(m measurement) bool {
	e, sigma := f.followed(m)
	return math.Abs(e-f.leastElastic()) > clearSigmas*sigma
}

func (f *limitFinder) leastElastic() float64 {
	if f.isUp() && f.origin.workers == 0 {
		return minElasticAbove
	}
	return minElastic
}

// conclude learns from a trial, and sets the limit or begins another trial.
func (f *limitFinder) conclude(m measurement) {
	e, sigma := f.followed(m)
	up, changed, least := f.isUp(), f.origin.workers > 0, f.leastElastic()
	f.trying, f.fullFor, f.last = false, 0, m
	switch {
	case up && !m.full && m.inFlight < 0.9*f.limit && e+sigma > least: // not even so many calls come
	case (up || changed) && e > least:
		f.limit = max(f.limit, f.resume)
		f.goOn(m)
	case up:
		f.limit = f.resume
		f.starting = f.starting && e+sigma > least // or else chance would decide for long
		if changed {
			f.setBaseOf(f.origin)
		}
	case changed:
		f.setBaseOf(m)
	default:
		f.concludeHalf(m, e, sigma)
	}
}

// goOn tries twice a limit that the rate has followed. Calls that do not queue take what they did before, unless
// chance does not explain the difference.
func (f *limitFinder) goOn(m measurement) {
	f.learn(m)
	if f.canDouble() {
		m.took, m.variance, m.workers = f.base, f.baseVar, 0
		f.hold(m, 2*f.limit)
	}
}

// setBaseOf is for known workers that have become slower, and for which calls queue.
func (f *limitFinder) setBaseOf(m measurement) {
	m.took += math.Log(f.origin.workers / m.inFlight)
	m.inFlight = f.origin.workers
	f.setBase(m)
}

// concludeHalf learns from half of the limit. If the rate has followed though calls take longer than base, base was
// too low, and if it has followed clearly, the server may bear more calls than before the trial. The rate before the
// first of several trials says how many workers there are, because a later one may have had too few calls for them.
func (f *limitFinder) concludeHalf(m measurement, e, sigma float64) {
	z := f.deviations(m)
	f.tryAfter = min(2*f.tryAfter, maxTryAfter)
	if math.Abs(z) > 2 { // see soon whether that was chance
		f.tryAfter = minTryAfter
	}
	follows := e-sigma > minElastic
	switch {
	case !f.verified && e < minElastic && f.limit > 1.5:
		f.setBase(m)
		f.hold(m, f.limit/2)
		return
	case follows && z > 2:
		f.setBase(m)
		f.limit, f.verified = f.resume, true
		if e > 0.8 {
			f.goOn(m)
		}
		return
	case follows || z <= 2:
		f.baseVar = max(f.baseVar, m.variance/2) // this is better known than what base is from
		f.learn(m)
	}
	f.verified = true
	workers := f.first.inFlight * math.Exp(-max(f.first.took-f.base, 0))
	f.limit = workers + f.surplus(max(workers, f.origin.inFlight))
}

// elasticity is by how much the rate fell with the calls in flight: 1 if latency stayed the same,
// and 0 if the calls in flight had queued. It has a standard deviation.
func elasticity(high, low measurement) (e, sigma float64) {
	distance := max(math.Log(high.inFlight/low.inFlight), minDistance)
	return 1 - (high.took-low.took)/distance, math.Sqrt(high.variance+low.variance) / distance
}
