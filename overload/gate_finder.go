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
// faster. So base is raised only after a trial of another limit (see
// gate_trial.go), or by calls each of which was alone.
type limitFinder struct {
	limit, most, least float64
	room               float64 // most calls in flight that a gate which is not full admits

	base    float64 // logarithm of the latency without queueing
	baseVar float64 // and its variance; infinite if it is unknown
	baseAt  float64 // the calls in flight when it was measured

	starting bool // the gate has not been full yet
	verified bool // base, by calls that did not queue

	variety float64     // 1 if calls end at random, and nearly 0 if all take equally long
	last    measurement // the window before
	eased   bool        // see ease

	growth float64 // of the last step

	fullFor  float64 // seconds since the last trial
	tryAfter float64
	trying   bool        // whether another limit is tried
	first    measurement // before the first of several trials that follow each other
	origin   measurement // before the trial
	resume   float64     // limit before the trial
}

// A measurement is what a limitFinder learns from a window. Its latency is a
// logarithm.
type measurement struct {
	took, variance float64
	inFlight       float64
	peak           float64
	full           bool    // a call had to wait or was refused
	hintsAtFew     bool    // there seem to be few workers, or calls wait for a processor
	hintsAtSlow    bool    // calls seem to have become slower, rather than workers to be few
	workers        float64 // that are known, and have become slower; 0 otherwise
	seconds        float64
}

const (
	minTryAfter = 2.0
	maxTryAfter = 30.0

	// A latency is compared with one at so many fewer calls in flight (logarithm).
	minDistance = 0.4

	// Beyond this latency calls may be queueing (logarithm, over base). A process that starts in an overload takes base
	// from calls that queue.
	mayQueue = 0.4
)

func newLimitFinder(limit, most float64) limitFinder {
	return limitFinder{limit: limit, most: most, least: 1, room: math.Inf(1), starting: true, baseVar: math.Inf(1), tryAfter: minTryAfter}
}

func (f *limitFinder) update(m measurement) {
	isAlone := m.inFlight < 1.05 // each call, so none queues
	if math.IsInf(f.baseVar, 1) || isAlone && f.deviations(m) > 2 {
		f.setBase(m)
	}
	switch {
	case f.trying:
		f.conclude(m)
	case f.starting && m.full && !m.hintsAtFew && f.canDouble():
		f.hold(m, 2*f.limit)
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
	return int64(math.Exp(min(f.base, 28.9))) // at most an hour
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

// relax is for a gate that was not full. The limit moves to a multiple of what is
// needed, so that bursts and slower calls find room.
func (f *limitFinder) relax(m measurement) {
	f.fullFor, f.verified = 0, true
	if m.inFlight <= 1.25*f.baseAt || f.deviations(m) < -2 {
		f.learn(m)
	}
	f.ease(m)
	room := 4*m.peak + 4
	if m.took > f.base+mayQueue { // let calls not be more
		room = min(room, f.limit)
	}
	f.limit = min(f.limit+0.2*(room-f.limit), f.room)
	f.last = m
}

// ease makes room for bursts of calls that have become slow, once latency rises no further. In an
// overload it would rise until the gate is full. Because it may do so slowly, there is no more room
// after that until calls are fast again.
func (f *limitFinder) ease(m measurement) {
	room, slow := 1.5*m.peak, f.base+math.Ln2
	switch {
	case m.took <= slow:
		f.eased = false
	case !f.eased && room > f.limit && f.last.took > slow && !isSlower(m, f.last):
		f.limit, f.eased = room, true
	}
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
	wasFull := f.last.full // one window may be a burst
	f.last = m
	if wasFull && (excess > 0.5 && f.deviations(m) > 3 || f.fullFor >= f.tryAfter) {
		f.try(m)
		if f.trying {
			return
		}
	}
	f.step(m)
}

// expectedQueueing is by how much latency exceeds base if the limit is right
// (logarithm).
func (f *limitFinder) expectedQueueing(limit float64) float64 {
	limit = max(limit, 4)
	return -math.Log(1 - min(f.surplus(limit)/limit, 0.75))
}

// surplus is by how much the limit exceeds the number of workers. The calls that wait at the
// server are a stock for times when many end at once, which is the less likely the less they vary.
func (f *limitFinder) surplus(limit float64) float64 {
	return surplusShare * math.Sqrt(limit*(1+f.variety)/2)
}

const surplusShare = 0.85

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
	f.growth, f.trying, f.starting = 0, false, false
}

// jump lowers the limit to what a number of workers needs, and reports whether it was far beyond.
func (f *limitFinder) jump(workers float64) bool {
	limit := workers + f.surplus(workers)
	if f.limit < 1.5*limit {
		return false
	}
	f.limit, f.growth, f.trying, f.starting = limit, 0, false, false
	return true
}
