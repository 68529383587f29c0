package overload

import (
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A delayMeter measures how long goroutines that are ready wait for a processor. A request waits as
// long before its handler runs, and each time that the handler has waited for something else; no
// limiter sees that wait.
type delayMeter struct {
	dueAt  atomic.Int64
	median func() (nanos int64, ok bool) // of the waits since it was asked last; false if they were too few
	procs  func() int
}

const (
	delayMetric = "/sched/latencies:seconds"

	// A goroutine has the processor for a slice. A wait of two of them is what two busy neighbours cost.
	timeSlice = int64(10 * time.Millisecond)

	delayEvery   = int64(50 * time.Millisecond)
	minDelays    = 8 // in less, a median is chance
	maxDelayMean = 3 // a wait of so many times the latency without queueing is too long
)

// newDelayMeter returns nil if the runtime does not know.
func newDelayMeter() *delayMeter {
	h := &delayHistogram{sample: []metrics.Sample{{Name: delayMetric}}}
	if metrics.Read(h.sample); h.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return nil
	}
	h.before = append(h.before, h.counts()...)
	return &delayMeter{median: h.median, procs: func() int { return runtime.GOMAXPROCS(0) }}
}

// A delayHistogram is the waits of one in eight goroutines, as the runtime counts them.
type delayHistogram struct {
	sample []metrics.Sample
	before []uint64
}

func (h *delayHistogram) counts() []uint64 { return h.sample[0].Value.Float64Histogram().Counts }

func (h *delayHistogram) median() (nanos int64, ok bool) {
	metrics.Read(h.sample)
	total, seen := uint64(0), uint64(0)
	for i, n := range h.counts() {
		total += n - h.before[i]
	}
	if total < minDelays {
		return 0, false
	}
	for i, n := range h.counts() {
		if seen += n - h.before[i]; 2*seen >= total {
			nanos = nanosOf(h.sample[0].Value.Float64Histogram().Buckets[i : i+2])
			break
		}
	}
	copy(h.before, h.counts())
	return nanos, true
}

// nanosOf is the middle of a bucket, or its finite edge.
func nanosOf(edges []float64) int64 {
	low, high := max(edges[0], 0), edges[1]
	if math.IsInf(high, 1) {
		high = low
	}
	return int64((low + high) / 2 * 1e9)
}

// checkDelay halves the limit if calls wait too long for a processor and are the reason for that: each
// call in flight makes others wait for at most two time slices, so a longer wait has another reason, which
// fewer calls would not end. There are never fewer calls than processors. A gate that refuses no calls
// does not begin to because of waits: below the capacity they pass.
func (g *Gate) checkDelay(now int64) {
	c := &g.control
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	g.delay.dueAt.Store(now + delayEvery)
	delay, ok := g.delay.median()
	if !ok {
		return
	}
	if g.meter.refused.Load() == 0 { // a burst that the server works off
		delay = 0
	}
	g.meter.delay.Store(delay)
	procs := int64(g.delay.procs())
	calls := int64(inFlight(g.word.Load())) - g.meter.hung.Load()
	tooLong := delay > max(2*timeSlice+timeSlice/2, maxDelayMean*c.finder.baseLatency())
	if tooLong && 2*calls*timeSlice >= delay*procs && c.finder.limit > float64(procs) {
		c.finder.halve(float64(procs))
		g.publish()
		g.beginCohort(now)
	}
}
