package topkeys

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// maxPerSecond is how many decisions a second are counted. Above it they are
	// sampled.
	maxPerSecond = 20_000

	maxStep = 1 << 20
)

// A sampler chooses which decisions of one kind are counted. All but sample is called under the tracker's lock.
type sampler struct {
	mask atomic.Uint32 // step - 1: one in step decisions is sampled, with the weight step

	steps [2]uint64 // the largest in this generation and in the previous one

	second    time.Time // when counting of the rate began
	decisions uint64    // since then, estimated
	sampled   int       // since then, or since the step was doubled
}

// sample returns the weight of the next decision, and 0 if it is left out. Chance decides:
// if every eighth decision were counted, a client could learn to be one of the others.
func (s *sampler) sample() uint64 {
	mask := s.mask.Load()
	if mask != 0 && rand.Uint32()&mask != 0 {
		return 0
	}
	return uint64(mask) + 1
}

// pace sets the step. It is doubled as soon as a second has too many samples, and set to
// what the last second would have needed when it is over.
func (s *sampler) pace(now time.Time, weight uint64) {
	step := uint64(s.mask.Load()) + 1
	if past := now.Sub(s.second); past >= time.Second {
		step = stepFor(float64(s.decisions) / past.Seconds())
		s.second, s.sampled, s.decisions = now, 0, 0
	}
	s.decisions += weight
	if s.sampled++; s.sampled > maxPerSecond && step < maxStep {
		s.sampled = 0
		step *= 2
	}
	s.mask.Store(uint32(step - 1))
	s.steps[0] = max(s.steps[0], step)
}

// stepFor returns the smallest step by which a rate is within the bound.
func stepFor(rate float64) (step uint64) {
	for step = 1; step < maxStep && rate > maxPerSecond*float64(step); step *= 2 {
	}
	return step
}

// age begins a new generation.
func (s *sampler) age(keep bool) {
	s.steps[1] = 1
	if keep {
		s.steps[1] = s.steps[0]
	}
	s.steps[0] = uint64(s.mask.Load()) + 1
}

// largest returns the largest step since counting began.
func (s *sampler) largest() int { return int(max(1, s.steps[0], s.steps[1])) }
