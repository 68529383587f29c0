package overload

import "math"

// endRates are how many calls ended, and in which time, by how many were in flight. It is pure arithmetic.
type endRates [curveStates + 1]departures

// An explanation is a number of workers, what a call takes then, and how likely the rates are with them: a logarithm,
// but for a constant.
type explanation struct{ workers, took, likelihood float64 }

// explainedBy is the explanation by a number of workers.
func (r *endRates) explainedBy(workers float64) explanation {
	busy, ended, l := 1.0, 0.0, 0.0
	for n := 1; n <= curveStates; n++ {
		working := min(float64(n), workers)
		busy += r[n].nanos * working
		ended += r[n].ended
		l += r[n].ended * math.Log(working)
	}
	took := busy / max(ended, 1)
	return explanation{workers, took, l - ended*math.Log(took)}
}

// likeliestFew is the likeliest explanation by few workers, or one more.
func (r *endRates) likeliestFew() explanation {
	best := r.explainedBy(1)
	for w := 2.0; w <= fewWorkers+1; w++ {
		if e := r.explainedBy(w); e.likelihood > best.likelihood {
			best = e
		}
	}
	return best
}

// unlimited is the explanation by workers for all calls.
func (r *endRates) unlimited() explanation { return r.explainedBy(curveStates) }

// best is the likelihood of the likeliest explanation. Of many workers, every fourth number is close enough.
func (r *endRates) best() float64 {
	best := r.likeliestFew().likelihood
	for w := 12.0; w <= curveStates; w += 4 {
		best = max(best, r.explainedBy(w).likelihood)
	}
	return best
}

// with returns both together.
func (r *endRates) with(later *endRates) endRates {
	all := *r
	for n := range all {
		all[n].add(later[n])
	}
	return all
}

func (r *endRates) calls() (ended float64) {
	for _, d := range r {
		ended += d.ended
	}
	return ended
}

// limit lets no more than curveCalls of each number in flight count.
func (r *endRates) limit() {
	for n, d := range r {
		old := curveCalls / max(d.ended, curveCalls)
		r[n] = departures{old * d.ended, old * d.nanos}
	}
}
