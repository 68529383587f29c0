package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// An envoyGradient is the gradient controller of Envoy's adaptive concurrency filter, after
// its documentation, with the values of its examples: the latency without load is measured
// with three requests at once, for fifty requests, about once a minute; every 100 ms the limit
// is multiplied by that latency, plus a quarter, over the present one.
type envoyGradient struct {
	mu       sync.Mutex
	limit    float64
	inFlight int
	samples  []time.Duration
	updateAt time.Time

	minRTT      time.Duration
	measuring   bool
	measureFrom time.Time
	saved       float64
}

const (
	envoyInterval = 100 * time.Millisecond
	envoyMeasure  = time.Minute
	envoyRequests = 50
	envoyLeast    = 3
	envoyMost     = 1000
	envoyBuffer   = 1.25
)

func newEnvoyGradient() *limiter {
	now := time.Now()
	e := &envoyGradient{limit: envoyLeast, saved: envoyLeast, measuring: true, measureFrom: now, updateAt: now.Add(envoyInterval)}
	return &limiter{enter: func(bool) (func(), bool) {
		start, ok := e.enter()
		return func() { e.leave(start) }, ok
	}}
}

func (e *envoyGradient) enter() (start time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	start = time.Now()
	e.update(start)
	if e.inFlight >= int(e.limit) {
		return start, false
	}
	e.inFlight++
	return start, true
}

func (e *envoyGradient) leave(start time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inFlight--
	if !e.measuring || !start.Before(e.measureFrom) {
		e.samples = append(e.samples, time.Since(start))
	}
	e.update(time.Now())
}

func (e *envoyGradient) update(now time.Time) {
	switch {
	case e.measuring && len(e.samples) >= envoyRequests:
		e.minRTT = e.median()
		e.measuring, e.limit = false, e.saved
		e.measureFrom = now.Add(envoyMeasure + rand.N(envoyMeasure/10)) //nolint:gosec // only jitter
		e.updateAt = now.Add(envoyInterval)
	case e.measuring:
	case !now.Before(e.measureFrom):
		e.measuring, e.saved, e.limit = true, e.limit, envoyLeast
		e.measureFrom, e.samples = now, e.samples[:0]
	case !now.Before(e.updateAt):
		e.updateAt = now.Add(envoyInterval)
		if len(e.samples) > 0 {
			e.steer()
		}
	}
}

func (e *envoyGradient) steer() {
	gradient := envoyBuffer * float64(e.minRTT) / float64(max(e.median(), 1))
	e.limit *= min(max(gradient, 0.5), 2)
	e.limit = min(max(e.limit+math.Sqrt(e.limit), envoyLeast), envoyMost)
}

// median returns the median of the samples, and forgets them.
func (e *envoyGradient) median() time.Duration {
	slices.Sort(e.samples)
	m := e.samples[len(e.samples)/2]
	e.samples = e.samples[:0]
	return m
}
