package overload

import "math"

// endRates are how many calls ended, and in which time, by how many were in flight. It is pure arithmetic. Likelihoods
// are logarithms, but for a constant.
type endRates [maxStates + 1]departures

// recentEnds is how many calls count that ended while a number was in flight.
const recentEnds = 64

// with returns both together.
func (r *endRates) with(later *endRates) endRates {
	all := *r
	for n := range all {
		all[n].add(later[n])
	}
	return all
}

// forget lets recentEnds of each number in flight count.
func (r *endRates) forget() {
	for n, d := range r {
		old := recentEnds / max(d.ended, recentEnds)
		r[n] = departures{old * d.ended, old * d.nanos}
	}
}

func (r *endRates) calls() (ended float64) {
	for _, d := range r {
		ended += d.ended
	}
	return ended
}

// likeliestFew returns the likeliest number of workers, one more than few at most, what a call takes, and the likelihood.
func (r *endRates) likeliestFew() (workers, took, best float64) {
	best = math.Inf(-1)
	for w := 1.0; w <= fewWorkers+1; w++ {
		if l, t := r.likelihood(w); l > best {
			best, workers, took = l, w, t
		}
	}
	return workers, took, best
}

// unlimited is the likelihood of workers for all calls.
func (r *endRates) unlimited() float64 {
	l, _ := r.likelihood(maxStates)
	return l
}

// took is what a call takes if there are workers for all.
func (r *endRates) took() float64 {
	_, t := r.likelihood(maxStates)
	return t
}

// best is the likelihood of the likeliest number of workers.
func (r *endRates) best() float64 {
	_, _, l := r.likeliestFew()
	return max(l, r.unlimited())
}

// likelihood is that of a number of workers, with what a call takes then.
func (r *endRates) likelihood(workers float64) (l, took float64) {
	busy, ended := 1.0, 0.0
	for n := 1; n <= maxStates; n++ {
		working := min(float64(n), workers)
		busy += r[n].nanos * working
		ended += r[n].ended
		l += r[n].ended * math.Log(working)
	}
	took = busy / max(ended, 1)
	return l - ended*math.Log(took), took
}

// departures are how many calls ended, and in which time.
type departures struct{ ended, nanos float64 }

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
	return max(t.expected, 0.5) / t.ended
}
