package overload

import (
	"math"
	"sync/atomic"
	"time"
)

// A meter counts the calls of a gate. Callers add to it without a lock, and the
// control reads it.
//
// Latency is measured in cohorts: calls that began within a span of time, of which
// nearly all have ended. Of all calls that end within a span, the slow ones began
// earlier, when the limit was another.
type meter struct {
	checkAt atomic.Int64 // when the control has something to do

	from, until atomic.Int64 // when the calls of the cohort began
	samples     atomic.Int64 // how many of them were measured, and with how many calls in flight: see oneSample
	skipped     atomic.Int64 // and how many ended otherwise
	sum         atomic.Int64 // of latencies, in nanoseconds
	squares     atomic.Int64 // of every fourth latency, in square microseconds
	peak        atomic.Int64 // the most calls in flight
	waited      atomic.Int64 // calls that had to wait
	refused     atomic.Int64

	mean    atomic.Int64 // the latency of the last cohort
	delay   atomic.Int64 // how long goroutines wait for a processor
	probing atomic.Bool  // whether the limit is low for a moment, on purpose
	share   atomic.Int64 // the refused calls in a million, smoothed
	spread  atomic.Int64 // variance of a latency, relative to the mean, in millionths, smoothed

	sweepFrom  atomic.Int64 // calls that began since then …
	sweepEnded atomic.Int64 // … and have ended
	hungBefore atomic.Int64 // calls in flight that began before are hung
	hung       atomic.Int64 // how many they are
}

// oneSample is one measured call. The bits below it are the sum of the calls that
// were in flight when the measured ones ended.
const oneSample = 1 << 40

// maxSample keeps the sum of squares in range.
const maxSample = int64(10 * time.Minute)

// record adds a call that ended, and reports whether it had hung.
func (m *meter) record(start, now int64, o Outcome, inFlight int) (hung bool) {
	if int64(inFlight) > m.peak.Load() {
		m.peak.Store(int64(inFlight))
	}
	if start >= m.sweepFrom.Load() {
		m.sweepEnded.Add(1)
	} else {
		hung = start < m.hungBefore.Load()
	}
	if start >= m.from.Load() && start < m.until.Load() {
		m.sample(min(now-start, maxSample), o, inFlight)
	}
	return hung
}

// sample adds a call to the cohort. The variance needs no more than every fourth.
func (m *meter) sample(took int64, o Outcome, inFlight int) {
	if o != Success && took < m.mean.Load() { // an early error says nothing about latency
		m.skipped.Add(1)
		return
	}
	m.sum.Add(took)
	if n := m.samples.Add(oneSample + int64(inFlight)); n/oneSample%4 == 1 {
		micros := took / 1000
		m.squares.Add(micros * micros)
	}
}

// reset begins a cohort.
func (m *meter) reset(now int64, inFlight int) {
	m.until.Store(0)
	m.samples.Store(0)
	m.skipped.Store(0)
	m.sum.Store(0)
	m.squares.Store(0)
	m.refused.Store(0)
	m.waited.Store(0)
	m.peak.Store(int64(inFlight))
	m.from.Store(now)
	m.until.Store(math.MaxInt64)
}

// latency returns the number of calls, their mean latency, and the variance of one
// relative to it. Calls that have not ended have taken their age.
func (m *meter) latency(unended int, age int64) (n, mean, variance float64) {
	micros := float64(age) / 1000
	samples := m.samples.Load() / oneSample
	n = float64(samples) + float64(unended)
	mean = max((float64(m.sum.Load())+float64(unended)*float64(age))/n, 1) // a coarse clock may say 0
	squares := float64(m.squares.Load()) / float64(max((samples+3)/4, 1)) * float64(samples)
	squares = (squares + float64(unended)*micros*micros) / n
	variance = squares/(mean*mean/1e6) - 1
	return n, mean, max(variance, 0)
}

// meanInFlight is how many calls were in flight beside those that hang.
func (m *meter) meanInFlight() float64 {
	samples := m.samples.Load()
	if samples < oneSample {
		return 1
	}
	mean := float64(samples%oneSample) / float64(samples/oneSample)
	return max(mean-float64(m.hung.Load()), 1)
}

// irregularity is 1 if calls end at random, and nearly 0 if all take equally long. Latencies of
// equal calls vary as well, because they have waiting in them. The variance makes less of that than
// its square root would.
func (m *meter) irregularity() float64 { return min(float64(m.spread.Load())/1e6, 1) }

// minVariance is for latencies that are all equal, or less than a microsecond.
const minVariance = 0.1

// retryAfter is when a refused call should be sent again. If all of them came back
// at a rate that the server can bear, it would be after so many seconds as there
// are calls for each that it can serve.
func (m *meter) retryAfter() time.Duration {
	served := max(1-float64(m.share.Load())/1e6, 1.0/30)
	return time.Duration(float64(time.Second) / served).Round(time.Millisecond)
}
