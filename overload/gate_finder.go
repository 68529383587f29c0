package overload

import "math"

// A limitFinder finds out how many calls a server works on at once. It is pure
// arithmetic: measurements in, a limit out.
//
// A server with c workers has the latency base as long as at most c calls are in
// flight, and base·n/c with n of them. So if n is the limit and took the latency,
// n·base/took is c, which the next limit is, plus nearly √n so that no worker waits
// for a call, and so that the limit grows while calls do not queue.
//
// What remains is to know base. Latency that rises may mean that calls queue, or
// that each takes longer, and the limit must go down in one case and up in the
// other. Only another limit tells them apart: where calls queue, fewer of them are
// faster. So base is raised only after a probe or a trial, or by a few calls each
// of which was alone.
type limitFinder struct {
	limit, most, least float64
	room               float64 // most calls in flight that a gate which is not full admits

	base    float64 // logarithm of the latency without queueing
	baseVar float64 // and its variance; infinite if it is unknown
	baseAt  float64 // the calls in flight when it was measured

	starting bool // see start
	doubled  bool // the limit, after the last cohort

	last   measurement // the cohort before, or the end of the probe before
	eased  bool        // see ease
	waited bool        // whether a probe has waited for latency to rise no further

	growth      float64 // of the last step
	variability float64 // see variabilityOf

	fullFor    float64 // seconds since the last probe
	probeAfter float64
	probing    bool
	origin     measurement // before the probe
	rising     bool        // whether latency was still rising then
	ref        measurement // before the last step of the probe
	resume     float64     // limit before the probe, or before it was doubled
	low        measurement // the cohorts of the probe
	cohorts    int         // how many they are
}

// A measurement is what a limitFinder learns from a cohort. Its latency is a
// logarithm.
type measurement struct {
	took, variance float64
	calls          float64
	spread         float64 // variance of a single latency, relative to the mean
	inFlight       float64
	peak           float64
	full           bool // a call had to wait or was refused
	hintsAtFew     bool // workers
	seconds        float64
}

// with returns the mean of two measurements, the better known of which counts for more.
func (m measurement) with(later measurement) measurement {
	weight := m.variance / (m.variance + later.variance)
	later.took = m.took + weight*(later.took-m.took)
	later.inFlight = m.inFlight + weight*(later.inFlight-m.inFlight)
	later.variance *= weight
	return later
}

const (
	minProbeAfter = 2.0
	maxProbeAfter = 30.0

	// A probe shows that calls did not queue beyond this elasticity.
	minElastic = 0.6

	// A latency is compared with one at so many fewer calls in flight (logarithm).
	minDistance = 0.4

	// Beyond this latency calls may be queueing (logarithm, over base). A process that starts in an overload takes base
	// from calls that queue.
	mayQueue = 0.4

	// A step of a probe that chance could explain goes on for so many cohorts.
	maxProbeCohorts = 3
)

func newLimitFinder(limit, most float64) limitFinder {
	return limitFinder{limit: limit, most: most, least: 1, room: math.Inf(1), starting: true, baseVar: math.Inf(1), probeAfter: minProbeAfter, variability: 1}
}

func (f *limitFinder) update(m measurement) {
	isAlone := m.inFlight < 1.05 && m.calls <= minCalls // few calls, of which none queues
	if math.IsInf(f.baseVar, 1) || isAlone && f.deviations(m) > 2 {
		f.setBase(m)
	}
	f.variability += 0.2 * (variabilityOf(m.spread) - f.variability)
	switch {
	case f.probing:
		f.endProbe(m)
	case f.starting && f.start(m):
	case m.full:
		f.steer(m)
	default:
		f.relax(m)
	}
	f.limit = min(max(f.limit, f.least), f.most)
}

// deviations is how far the latency is from base, in standard deviations.
func (f *limitFinder) deviations(m measurement) float64 {
	return (m.took - f.base) / math.Sqrt(m.variance+f.baseVar)
}

// baseLatency is base in nanoseconds, or 0 if it is unknown.
func (f *limitFinder) baseLatency() int64 {
	if math.IsInf(f.baseVar, 1) {
		return 0
	}
	return int64(math.Exp(min(f.base, 36))) // at most an hour
}

func (f *limitFinder) setBase(m measurement) {
	f.base, f.baseVar, f.baseAt = m.took, m.variance, m.inFlight
}

// minBaseVar lets old measurements count for less: it is that of about thirty.
const minBaseVar = 0.0005

// learn moves base towards a latency without queueing, or replaces it if chance
// does not explain the difference.
func (f *limitFinder) learn(m measurement) {
	if math.Abs(f.deviations(m)) > 3 {
		f.setBase(m)
		return
	}
	gain := f.baseVar / (f.baseVar + m.variance)
	f.base += gain * (m.took - f.base)
	f.baseVar = max(f.baseVar*(1-gain), minBaseVar)
	f.baseAt += gain * min(m.inFlight-f.baseAt, 0) // or else base would rise with the load
}

// start is for a gate of which it is not known yet that calls queue, and reports whether it has set the limit. While the
// gate is full, it doubles the limit: a large server would refuse most calls for seconds if the limit grew as it does later.
func (f *limitFinder) start(m measurement) bool {
	e, sigma := elasticity(m, f.last)
	queues := m.hintsAtFew && (m.full || f.doubled) ||
		m.took > f.base+mayQueue && f.deviations(m) > 2 ||
		m.inFlight > 1.5*f.last.inFlight && e+sigma < minElastic
	undo := queues && f.doubled
	f.starting = !queues && f.limit < f.most
	f.doubled = f.starting && m.full
	switch {
	case f.doubled:
		f.resume, f.limit, f.last = f.limit, 2*f.limit, m
	case undo:
		f.limit = f.resume
	}
	return f.doubled || undo
}

// relax is for a gate that was not full. The limit moves to a multiple of what is
// needed, so that bursts and slower calls find room.
func (f *limitFinder) relax(m measurement) {
	f.fullFor = 0
	if m.inFlight <= 1.25*f.baseAt || f.deviations(m) < -2 {
		f.learn(m)
	}
	room := 4*m.peak + 4
	if f.isSlow(m) {
		f.ease(m)
	} else {
		f.eased = false
	}
	if m.took > f.base+mayQueue { // let calls not be more
		room = min(room, f.limit)
	}
	f.limit = min(f.limit+0.2*(room-f.limit), f.room)
	f.last = m
}

func (f *limitFinder) isSlow(m measurement) bool { return m.took > f.base+math.Ln2 }

// ease makes room for bursts of calls that have become slow, once latency rises no further. In an
// overload it would rise until the gate is full. Because it may do so slowly, there is no more room
// after that until calls are fast again.
func (f *limitFinder) ease(m measurement) {
	room := 1.5 * m.peak
	if f.eased || room <= f.limit || !f.isSlow(f.last) || isSlower(m, f.last) {
		return
	}
	f.limit, f.eased = room, true
}

// isSlower reports whether a latency exceeds another by more than what chance explains.
func isSlower(m, than measurement) bool {
	return m.took-than.took > 2*math.Sqrt(m.variance+than.variance)
}

// steer is for a gate that was full.
func (f *limitFinder) steer(m measurement) {
	if f.deviations(m) < -2 {
		f.learn(m)
	}
	excess := m.took - f.base - f.expectedQueueing(f.limit)
	f.fullFor += m.seconds * (1 + max(excess, 0)/0.1)
	if excess > 0.5 && f.deviations(m) > 3 || f.fullFor >= f.probeAfter {
		f.probeSoon(m)
		return
	}
	f.last, f.waited = m, false
	f.step(m)
}

// probeSoon begins a probe, after another cohort if latency is still rising: beside calls that
// began before the queue was as long as it is now, those of the probe do not seem to be faster.
func (f *limitFinder) probeSoon(m measurement) {
	f.rising = f.last.variance > 0 && isSlower(m, f.last)
	f.last, f.waited = m, f.rising && !f.waited
	if !f.waited {
		f.probe(m)
	}
}

// expectedQueueing is by how much latency exceeds base if the limit is right
// (logarithm).
func (f *limitFinder) expectedQueueing(limit float64) float64 {
	limit = max(limit, 4)
	return -math.Log(1 - min(f.surplus(limit)/limit, 0.75))
}

// surplus is by how much the limit exceeds the number of workers. The calls that wait at the
// server are a stock for times when many end at once, which is the less likely the less
// latencies differ.
func (f *limitFinder) surplus(limit float64) float64 {
	return surplusShare * f.variability * math.Sqrt(limit)
}

const surplusShare = 0.85

// variabilityOf is the square root of the mean of two variances: that of the time between
// arrivals, which is 1 if calls arrive at random, and that of the work of a call, both relative
// to their means. What a queue has to be for the same utilization grows with that mean. The
// work varies about twice as much as latencies do, which have waiting in them. Beyond 1, the
// limit would wander more than that gains.
func variabilityOf(spread float64) float64 { return min(math.Sqrt((1+2*spread)/2), 1) }

// step moves the limit to the number of workers and the surplus. Moves that are small
// beside the uncertainty of the measurement are made only in part.
func (f *limitFinder) step(m measurement) {
	inflated := m.variance * min(max(math.Exp(2*(m.took-f.base)), 1), 4)
	sigma := math.Sqrt(inflated + f.baseVar)
	queueing := min(max(m.took-f.base, 0), math.Ln2)
	if queueing < 0.05+sigma/2 {
		f.growth = min(2*f.growth, f.limit/2)
	} else {
		f.growth = 0
	}
	least := f.surplus(f.limit)
	f.growth = max(f.growth, least/2)
	move := math.Log(math.Exp(-queueing) + max(f.growth, least)/f.limit)
	z := move / sigma
	f.limit *= math.Exp(move * z * z / (z*z + 6))
}

// halve is for calls that wait for a processor.
func (f *limitFinder) halve(least float64) {
	f.limit = max(f.limit/2, least)
	f.growth, f.probing, f.starting = 0, false, false
}

// jump lowers the limit to what a number of workers needs, and reports whether it was far beyond.
func (f *limitFinder) jump(workers float64) bool {
	limit := workers + f.surplus(workers)
	if f.limit < 1.5*limit {
		return false
	}
	f.limit, f.growth, f.probing, f.starting = limit, 0, false, false
	return true
}

// endEarly ends a probe without learning from it, and reports whether there was one.
func (f *limitFinder) endEarly() bool {
	if !f.probing {
		return false
	}
	f.limit, f.probing = f.resume, false
	return true
}

// conclude sets the limit after a trial, and what calls take without queueing. If they queue, the limit is what the
// workers need, if those are known; if calls do not queue, it may be raised further.
func (f *limitFinder) conclude(t *trial, c conclusion, usual, spread float64) {
	rate := t.before.rate()
	f.limit, f.fullFor, f.last, f.starting = t.from, 0, measurement{}, false
	base := measurement{took: math.Log(t.from / rate), variance: max(spread, 1) / trialCalls, inFlight: t.from}
	switch c {
	case callsQueue:
		if math.IsInf(t.workers, 1) { // base is as it was
			return
		}
		base.took, base.inFlight = math.Log(t.workers/rate), t.workers
		if !math.IsInf(f.baseVar, 1) {
			base.took = min(base.took, f.base+math.Log(usual/rate))
		}
		f.jump(t.workers)
	case callsAreSlow:
		f.growth = f.limit / 4
	case tooFewCalls:
		f.limit = max(t.from, t.limit)
		return
	}
	f.setBase(base)
}

// elasticity is by how much the throughput fell with the calls in flight: 1 if
// latency stayed the same, and 0 if the calls in flight had queued. It has a standard
// deviation.
func elasticity(high, low measurement) (e, sigma float64) {
	distance := max(math.Log(high.inFlight/low.inFlight), minDistance)
	return 1 - (high.took-low.took)/distance, math.Sqrt(high.variance+low.variance) / distance
}

// probe admits half of the calls for one cohort, to see whether they are faster.
func (f *limitFinder) probe(m measurement) {
	f.probing, f.resume = true, f.limit
	f.origin = m
	f.descend(m)
}

// descend begins a step of a probe, with half of the calls that there were.
func (f *limitFinder) descend(from measurement) {
	f.ref, f.cohorts = from, 0
	f.limit /= 2
}

// isRising reports whether the first calls of a probe are slower than those before it. Fewer
// calls are not slower, so latency was rising before the probe, which then says nothing.
func (f *limitFinder) isRising(m measurement) bool {
	return f.cohorts == 0 && f.ref == f.origin && isSlower(m, f.ref)
}

// isSurprising reports whether calls of a probe are faster than the limit says, by more than
// what chance explains.
func (f *limitFinder) isSurprising(e float64, m measurement) bool {
	expected := 1 - f.expectedQueueing(f.resume)/math.Ln2
	sigma := math.Sqrt(f.ref.variance+m.variance) / math.Ln2
	return e < expected-max(0.4, 2*sigma)
}

// endProbe learns from a probe. It goes on while chance could explain what would raise base. If
// fewer calls are still faster, and not as base or the limit says, the next probe admits
// still fewer.
func (f *limitFinder) endProbe(m measurement) {
	if f.isRising(m) {
		f.probing, f.waited, f.limit = false, true, f.resume
		return
	}
	if f.cohorts > 0 {
		m = f.low.with(m)
	}
	f.low = m
	f.cohorts++
	e, sigma := elasticity(f.ref, m)
	z := f.deviations(m)
	if z > 2 && math.Abs(e-minElastic) < sigma && f.cohorts < maxProbeCohorts {
		return
	}
	f.evaluateProbe(m, e, z)
}

func (f *limitFinder) evaluateProbe(m measurement, e, z float64) {
	elastic := e > minElastic
	switch {
	case elastic && z > 2:
		f.setBase(m)
		if e > 0.8 && f.ref.took > m.took { // the calls before did not queue either
			f.learn(f.ref)
		}
	case elastic || z <= 2:
		f.baseVar = max(f.baseVar, m.variance/2) // this is better known than what base is from
		f.learn(m)
	}
	if !elastic && (math.Abs(z) > 2 || f.isSurprising(e, m)) && f.limit >= 4 {
		f.descend(m)
		return
	}
	f.probing, f.fullFor, f.last = false, 0, m
	f.probeAfter = min(2*f.probeAfter, maxProbeAfter)
	if math.Abs(z) > 2 { // see soon whether that was chance
		f.probeAfter = minProbeAfter
	}
	queueing := max(f.origin.took-f.base, 0)
	f.limit = f.origin.inFlight*math.Exp(-queueing) + f.surplus(f.origin.inFlight)
	if overall, _ := elasticity(f.origin, m); overall > minElastic && z > 2 { // calls were slower, and did not queue
		f.limit = max(f.limit, f.resume)
		if overall > 0.8 && !f.rising { // so the server bears more of them
			f.limit = max(f.limit, 1.5*f.resume)
		}
		f.growth = f.limit / 4
	}
}
