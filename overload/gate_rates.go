package overload

import "math"

// endRates are how many calls ended, and in which time, by how many were in flight. It is pure arithmetic. Likelihoods
// are logarithms, but for a constant.
type endRates [curveStates + 1]departures

// with returns both together.
func (r *endRates) with(later *endRates) endRates {
	all := *r
	for n := range all {
		all[n].add(later[n])
	}
	return all
}

// forget lets curveCalls of each number in flight count.
func (r *endRates) forget() {
	for n, d := range r {
		old := curveCalls / max(d.ended, curveCalls)
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
	l, _ := r.likelihood(curveStates)
	return l
}

// took is what a call takes if there are workers for all.
func (r *endRates) took() float64 {
	_, t := r.likelihood(curveStates)
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
	for n := 1; n <= curveStates; n++ {
		working := min(float64(n), workers)
		busy += r[n].nanos * working
		ended += r[n].ended
		l += r[n].ended * math.Log(working)
	}
	took = busy / max(ended, 1)
	return l - ended*math.Log(took), took
}
