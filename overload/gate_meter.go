package overload

import (
	"sync/atomic"
	"time"
)

// A meter counts the calls of a gate. Callers add to it without a lock, and every tick the control
// takes what is there.
type meter struct {
	dueAt atomic.Int64 // the next tick

	from    atomic.Int64                // a pause before it: of many calls a second, a part says enough
	at      atomic.Int64                // when the number of calls in flight last changed
	states  [maxStates + 1]atomic.Int64 // by calls in flight: for how long, and how many ended (oneEnded each)
	crowded atomic.Int64                // calls in flight, times nanoseconds, while these were maxStates or more
	early   atomic.Int64                // nanoseconds of early errors
	peak    atomic.Int64                // the most calls in flight, without those that hang
	longest atomic.Int64                // the longest call that ended, without those that had hung
	waited  atomic.Int64                // calls that had to wait
	refused atomic.Int64                // since the gate is there

	sampled atomic.Int64 // a quarter of the calls
	sum     atomic.Int64 // of their latencies, in microseconds
	squares atomic.Int64 // of these

	mean    atomic.Int64 // the latency of the last window
	delay   atomic.Int64 // how long goroutines wait for a processor
	share   atomic.Int64 // the refused calls in a million, smoothed
	variety atomic.Int64 // see limitFinder, in millionths

	sweepFrom  atomic.Int64 // calls that began since then …
	sweepEnded atomic.Int64 // … and have ended
	hungBefore atomic.Int64 // calls in flight that began before are hung
	hung       atomic.Int64 // how many they are
	returned   atomic.Int64 // the longest call that had hung, and has succeeded after all
}

const (
	maxStates = 32

	// oneEnded is one call that ended. The bits below it are nanoseconds.
	oneEnded = 1 << 40

	// A call or a state counts for no longer, which keeps the sums in range.
	maxTook = int64(time.Minute)

	pauseCalls = 64 // in a tick, after which the meter pauses
	pauseTime  = 20 * tickEvery
)

// changed notes that the number of calls in flight changes. Those that hang do not count.
func (m *meter) changed(now int64, inFlight int, ended int64) {
	from := m.from.Load()
	if now < from {
		return
	}
	since := now - max(m.at.Swap(now), from)
	if inFlight -= int(m.hung.Load()); inFlight <= 0 {
		return
	}
	since = min(max(since, 0), maxTook)
	m.states[min(inFlight, maxStates)].Add(since + ended*oneEnded)
	if inFlight >= maxStates {
		m.crowded.Add(since * int64(inFlight))
	}
}

// left notes that a call ends, and reports whether it had hung. An early error says nothing about latency.
func (m *meter) left(word uint64, start, now int64, o Outcome) (hung bool) {
	calls, ended := inFlight(word)+1, int64(1)
	if counted := int64(calls) - m.hung.Load(); counted > m.peak.Load() {
		m.peak.Store(counted)
	}
	if start >= m.sweepFrom.Load() {
		m.sweepEnded.Add(1)
	} else {
		hung = start < m.hungBefore.Load()
	}
	took := min(max(now-start, 0), maxTook)
	switch {
	case !hung && took > m.longest.Load():
		m.longest.Store(took)
	case hung && o == Success && took > m.returned.Load():
		m.returned.Store(took)
	}
	switch {
	case o != Success && 2*took < m.mean.Load():
		ended = 0
		if now >= m.from.Load() {
			m.early.Add(took)
		}
	case uint64(start)*fibonacci>>62 == 0:
		m.sampled.Add(1)
		m.sum.Add(took / 1000)
		m.squares.Add(took / 1000 * (took / 1000))
	}
	m.changed(now, calls, ended)
	return hung
}

// fibonacci spreads numbers: those of calls that begin at regular times have no pattern in the upper bits.
const fibonacci = 0x9E3779B97F4A7C15

// variance is that of the latency of a call, relative to the mean, if enough have ended to say.
func (m *meter) variance() (v float64, ok bool) {
	n, sum, squares := float64(m.sampled.Swap(0)), float64(m.sum.Swap(0)), float64(m.squares.Swap(0))
	return max(n*squares/max(sum*sum, 1)-1, 0), n >= minCalls/4
}

// retryAfter is when a refused call should be sent again. If all of them came back
// at a rate that the server can bear, it would be after so many seconds as there
// are calls for each that it can serve.
func (m *meter) retryAfter() time.Duration {
	served := max(1-float64(m.share.Load())/1e6, 1.0/30)
	return time.Duration(float64(time.Second) / served).Round(time.Millisecond)
}

// A sample is what a meter has counted.
type sample struct {
	all      departures
	area     float64 // calls in flight, times nanoseconds
	early    float64 // nanoseconds of early errors in it
	peak     float64 // the most calls in flight, without those that hang
	expected float64 // calls that would have ended at the usual rate
}

func (s *sample) add(o *sample) {
	s.all.add(o.all)
	s.area += o.area
	s.early += o.early
	s.peak = max(s.peak, o.peak)
}

// meanInFlight is how many calls were in flight while any was.
func (s *sample) meanInFlight() float64 { return s.area / max(s.all.nanos, 1) }

// collect takes what was counted, and adds it to the curve.
func (g *Gate) collect(now int64) (s sample) {
	c, m := &g.curve, &g.meter
	s.peak = float64(m.peak.Swap(int64(g.counted())))
	s.area, s.early = float64(m.crowded.Swap(0)), float64(m.early.Swap(0))
	for n := range m.states {
		state := m.states[n].Swap(0)
		d := departures{float64(state / oneEnded), float64(state % oneEnded)}
		s.all.add(d)
		s.expected += d.nanos * min(float64(n), c.few) / c.took
		if n < maxStates {
			s.area += float64(n) * d.nanos
		}
		c.latest[n].add(d)
	}
	g.pause(now, s.all.ended)
	return s
}

// pause lets the meter measure only a part of many calls, unless the limit depends on them.
func (g *Gate) pause(now int64, ended float64) {
	m := &g.meter
	needed := g.control.refusing || g.control.finder.trying || !hasRoom(g.word.Load())
	switch {
	case needed && now < m.from.Load():
		m.at.Store(now)
		m.from.Store(now)
	case !needed && ended > pauseCalls:
		m.from.Store(now + pauseTime)
	}
}
