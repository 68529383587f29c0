package overload

import (
	"math"
	"testing"
	"time"
)

// A callStream has calls that end in the order in which they began. Its gate ends a window only after a second.
type callStream struct {
	*Gate
	now    int64
	next   int64   // when a call arrives
	starts []int64 // of those in flight
}

func newCallStream() *callStream {
	s := &callStream{now: 1, next: 1}
	s.Gate = NewGate(&GateOptions{Limit: 1000, Now: func() time.Time { return time.Unix(0, s.now) }})
	s.meter.dueAt.Store(math.MaxInt64)
	s.meter.mean.Store(1)
	s.control.spread = math.Inf(1)
	return s
}

func (s *callStream) enter() {
	s.tryEnter(s.now)
	s.starts = append(s.starts, s.now)
}

func (s *callStream) end(o Outcome) {
	s.leave(s.starts[0], o, s.now)
	s.starts = s.starts[1:]
}

// queue lets calls end one after the other, while so many are in flight.
func (s *callStream) queue(calls int, each time.Duration, inFlight int) {
	for range calls {
		for len(s.starts) < inFlight {
			s.enter()
		}
		s.now += int64(each)
		s.end(Success)
	}
}

// flow lets a call arrive in each interval. They take equally long, and none waits for another.
func (s *callStream) flow(d, every, took time.Duration) {
	for until := s.now + int64(d); s.now < until; {
		ends := int64(math.MaxInt64)
		if len(s.starts) > 0 {
			ends = s.starts[0] + int64(took)
		}
		s.now = min(ends, s.next, until)
		if s.now == ends {
			s.end(Success)
		}
		if s.now == s.next {
			s.enter()
			s.next += int64(every)
		}
	}
}

// begin begins a window in which all calls are measured.
func (s *callStream) begin() {
	s.tick(s.now)
	s.meter.from.Store(0)
	s.control.window = window{first: s.counted()}
}

// took is what calls take by the window until now.
func (s *callStream) took() time.Duration {
	s.tick(s.now)
	return time.Duration(math.Exp(s.measure().took))
}

func isNear(got, want time.Duration) bool { return math.Abs(float64(got-want)) <= 0.01*float64(want) }

// Up to maxStates calls in flight are counted one by one, and more by their sum.
func TestWindowShowsWhatCallsTake(t *testing.T) {
	for _, inFlight := range []int{1, 8, maxStates - 1, maxStates, maxStates + 1, 200} {
		s := newCallStream()
		s.queue(inFlight, time.Millisecond, inFlight)
		s.begin()
		s.queue(20, time.Millisecond, inFlight)
		if got, want := s.took(), time.Duration(inFlight)*time.Millisecond; !isNear(got, want) {
			t.Errorf("%d in flight, and one ends in each millisecond: calls take %v, want %v", inFlight, got, want)
		}
	}
}

// Twenty calls queue at a server that becomes four times slower. The next ten that end have taken between 23 and 50 ms.
func TestWindowShowsSlowerServerBeforeCallsHaveEnded(t *testing.T) {
	s := newCallStream()
	s.queue(40, time.Millisecond, 20)
	s.begin()
	s.queue(10, 4*time.Millisecond, 20)
	if got := s.took(); !isNear(got, 80*time.Millisecond) {
		t.Errorf("calls take %v, want 80ms", got)
	}
}

// Calls take 100 ms, and their number in flight doubles or halves within the window. As those that end began before,
// they alone by those in flight would be 150 ms, or 75.
func TestWindowCorrectsForNumberInFlightThatMoves(t *testing.T) {
	const took = 100 * time.Millisecond
	for _, c := range []struct{ before, after time.Duration }{{2e6, 1e6}, {1e6, 2e6}} {
		s := newCallStream()
		s.flow(3*took, c.before, took)
		s.begin()
		s.flow(took, c.after, took)
		if got := s.took(); math.Abs(float64(got-took)) > 0.02*float64(took) {
			t.Errorf("a call arrives in %v and then in %v: calls take %v, want %v", c.before, c.after, got, took)
		}
	}
}

// The calls that more or fewer in flight stand for are those of the time that was measured.
func TestWindowCorrectsForPartThatWasMeasured(t *testing.T) {
	const took = 100 * time.Millisecond
	s := newCallStream()
	s.flow(3*took, took/50, took)
	s.begin()
	s.flow(took/4, took/100, took)
	s.meter.from.Store(s.now + int64(took/2))
	s.control.window.paused = true
	s.flow(3*took/4, took/100, took)
	if got := s.took(); math.Abs(float64(got-took)) > 0.02*float64(took) {
		t.Errorf("calls take %v, want %v", got, took)
	}
}

// A burst counts also if it is over before the window is.
func TestWindowKnowsMostCallsInFlight(t *testing.T) {
	s := newCallStream()
	s.begin()
	for _, inFlight := range []int{3, 20, 3} {
		s.queue(20, time.Millisecond, inFlight)
		s.tick(s.now)
	}
	if got := s.measure().peak; got != 20 {
		t.Errorf("at most %g in flight, want 20", got)
	}
}

func TestWindowDoesNotCountHungCalls(t *testing.T) {
	s := newCallStream()
	for range 30 {
		s.tryEnter(s.now)
	}
	s.meter.hung.Store(30)
	s.queue(5, time.Millisecond, 5)
	s.begin()
	s.queue(20, time.Millisecond, 5)
	got, m := s.took(), s.measure()
	if !isNear(got, 5*time.Millisecond) || math.Abs(m.inFlight-5) > 0.01 || m.peak != 5 {
		t.Errorf("calls take %v, %.3g in flight, at most %g, want 5ms and 5", got, m.inFlight, m.peak)
	}
}

// A call that fails in less than half of the time that others take says nothing about those, and one that fails later does.
func TestWindowCountsOnlyLateFailures(t *testing.T) {
	for mean, want := range map[time.Duration]float64{21 * time.Millisecond: 10, 20 * time.Millisecond: 20} {
		s := newCallStream()
		s.meter.mean.Store(int64(mean))
		s.queue(10, time.Millisecond, 10)
		s.begin()
		for range 10 {
			s.queue(1, time.Millisecond, 10)
			s.enter()
			s.now += int64(time.Millisecond)
			s.end(Failure)
		}
		if s.took(); s.control.window.counted.all.ended != want {
			t.Errorf("calls take %v, and every other fails after 10ms: got %g that count, want %g", mean, s.control.window.counted.all.ended, want)
		}
	}
}

// At many calls a second only some are measured, and they say as much.
func TestMeterPausesAtManyCalls(t *testing.T) {
	s := newCallStream()
	s.queue(pauseCalls+1, time.Microsecond, 10)
	s.tick(s.now)
	s.control.window = window{first: s.counted()}
	until := s.meter.from.Load()
	if until != s.now+pauseTime {
		t.Fatalf("the pause ends %v later, want %v", time.Duration(until-s.now), time.Duration(pauseTime))
	}
	s.queue(1000, time.Microsecond, 10)
	if s.tick(s.now); s.control.window.counted.all != (departures{}) {
		t.Errorf("calls were measured in the pause: %+v", s.control.window.counted)
	}
	s.now = until
	s.queue(20, time.Microsecond, 10)
	if got := s.took(); s.control.window.counted.all.ended != 20 || !isNear(got, 10*time.Microsecond) {
		t.Errorf("after the pause: got %g calls that take %v, want 20 and 10µs", s.control.window.counted.all.ended, got)
	}
}

// What a trial shows is needed soon, and so is what an overload does.
func TestMeterDoesNotPause(t *testing.T) {
	for what, begin := range map[string]func(*Gate){
		"at few calls":            func(g *Gate) { g.meter.states[1].Add(-oneEnded) },
		"while calls are refused": func(g *Gate) { g.control.refusing = true },
		"in a trial":              func(g *Gate) { g.control.finder.trying = true },
	} {
		s := newCallStream()
		s.queue(pauseCalls+1, time.Microsecond, 1)
		begin(s.Gate)
		if s.collect(s.now); s.meter.from.Load() != 0 {
			t.Errorf("the meter pauses %s", what)
		}
	}
}

// A clock that is coarser than the calls take says that they take no time.
func TestWindowOfCoarseClock(t *testing.T) {
	s := newCallStream()
	s.begin()
	s.queue(4*minCalls, 0, 2)
	if took := s.took(); took != 1 || s.control.window.counted.all.ended != 4*minCalls {
		t.Errorf("got %g calls that take %v, want %d and 1ns", s.control.window.counted.all.ended, took, 4*minCalls)
	}
	if variance, _ := s.meter.variance(); variance != 0 {
		t.Errorf("got a variance of %g, want 0", variance)
	}
}

func TestMeterKnowsVarianceOfLatency(t *testing.T) {
	s := newCallStream()
	for i := range 400 { // of which every fourth is sampled: one in two of these takes three times as long
		s.enter()
		s.now += int64(time.Millisecond) * int64(1+2*(i/4%2))
		s.end(Success)
	}
	if got, ok := s.meter.variance(); !ok || math.Abs(got-0.25) > 0.01 {
		t.Errorf("got %g, known %t, want 0.25", got, ok)
	}
	if _, ok := s.meter.variance(); ok {
		t.Error("the variance is known of no calls")
	}
}

// windowOf is a window in which so many calls have ended, and so many were in flight.
func windowOf(span time.Duration, ended, inFlight float64) window {
	nanos := float64(span)
	return window{nanos: nanos, counted: sample{all: departures{ended, nanos}, area: inFlight * nanos}, first: inFlight, last: inFlight}
}

// The spread of 0.75 needs fifty calls for a mean that is known to 12 %.
func TestWindowEndsWhenItSaysEnough(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		what         string
		mean         time.Duration
		spread       float64
		shorter, end window
	}{
		{"the first needs more calls", 0, 0.75, windowOf(999*ms, 127, 5), windowOf(999*ms, 128, 5)},
		{"the first, of few calls", 0, 0.75, windowOf(999*ms, 20, 5), windowOf(1000*ms, 20, 5)},
		{"as many calls as the variance asks for", 10 * ms, 0.75, windowOf(100*ms, 49, 5), windowOf(100*ms, 50, 5)},
		{"calls that take equally long", 10 * ms, 0, windowOf(100*ms, 15, 5), windowOf(100*ms, 16, 5)},
		{"a short time", 10 * ms, 0, windowOf(49*ms, 1000, 5), windowOf(50*ms, 1000, 5)},
		{"a turnover", 10 * ms, 0.75, windowOf(100*ms, 99, 100), windowOf(100*ms, 100, 100)},
		{"a second has to do", 10 * ms, 9, windowOf(999*ms, 20, 5), windowOf(1000*ms, 20, 5)},
		{"or what four calls take", 500 * ms, 9, windowOf(1999*ms, 20, 5), windowOf(2000*ms, 20, 5)},
		{"few calls a second", 10 * ms, 0.75, windowOf(3999*ms, 15, 5), windowOf(4000*ms, 15, 5)},
		{"few calls that take long", time.Second, 0.75, windowOf(15999*ms, 15, 5), windowOf(16000*ms, 15, 5)},
		{"many that hang", 10 * ms, 0.75, windowOf(60000*ms, 0, 5), windowOf(60000*ms, 1, 5)},
	} {
		g := NewGate(nil)
		g.meter.mean.Store(int64(c.mean))
		g.control.spread = c.spread
		g.control.window = c.shorter
		if g.windowEnded() {
			t.Errorf("%s: %+v has ended too early", c.what, c.shorter)
		}
		g.control.window = c.end
		if !g.windowEnded() {
			t.Errorf("%s: %+v has not ended", c.what, c.end)
		}
	}
}

// Twenty calls in flight took 200 ms each, and a trial holds ten. That these take 100 ms is what few calls are enough
// to show, and 130 ms is not.
func TestTrialWindowEndsAsSoonAsItIsClear(t *testing.T) {
	for _, c := range []struct {
		what  string
		span  time.Duration
		ended float64
		want  bool
	}{
		{"clear", 160 * time.Millisecond, 16, true},
		{"clear, and few calls", 150 * time.Millisecond, 15, false},
		{"unclear", 208 * time.Millisecond, 16, false},
		{"unclear, and enough calls", 13 * 34 * time.Millisecond, 34, true},
	} {
		g := NewGate(nil)
		g.control.spread = 0.5
		f := &g.control.finder
		f.limit = 20
		f.hold(measurement{took: math.Log(200e6), variance: 0.01, inFlight: 20}, 10)
		g.control.window = windowOf(c.span, c.ended, 10)
		if got := g.windowEnded(); got != c.want {
			t.Errorf("%s: ended %t, want %t", c.what, got, c.want)
		}
	}
}

// The number in flight at the end of a window is that at the beginning of the next.
func TestWindowBeginsWhereLastOneEnded(t *testing.T) {
	s := newCallStream()
	s.queue(5, time.Millisecond, 5)
	s.begin()
	s.control.spread = 0
	s.queue(100, time.Millisecond, 5)
	s.tick(s.now)
	if got := s.control.window; got.nanos != 0 || got.first != s.counted() || got.last != 0 {
		t.Errorf("got %+v, want a window that begins with %g calls", got, s.counted())
	}
	if got := time.Duration(s.meter.mean.Load()); !isNear(got, 5*time.Millisecond) {
		t.Errorf("calls take %v by the window that ended, want 5ms", got)
	}
}

// Calls that began at another limit took what they take there.
func TestWindowBeginsWhenCallsOfOldLimitHaveEnded(t *testing.T) {
	s := newCallStream()
	s.queue(20, time.Millisecond, 8)
	s.enter()
	s.tick(s.now)
	s.control.finder.limit = 8
	s.restart()
	s.queue(7, time.Millisecond, 8)
	for _, begun := range []bool{false, false, true} { // the eighth call ends in the second tick, with which the window begins
		s.tick(s.now)
		if got := s.control.window.nanos > 0; got != begun {
			t.Errorf("%g calls to end: window begun %t, want %t", s.control.settle, got, begun)
		}
		s.queue(1, time.Millisecond, 8)
	}
}

// If the limit was raised, as many calls are to end as that admits, but no more than come.
func TestWindowBeginsWhenRaisedLimitIsFilled(t *testing.T) {
	for limit, want := range map[float64]float64{4: 8, 12: 12, 100: 16} {
		s := newCallStream()
		s.queue(1, time.Millisecond, 8)
		s.enter()
		s.control.finder.limit = limit
		if s.restart(); s.control.settle != want {
			t.Errorf("8 in flight, limit %g: %g calls are to end, want %g", limit, s.control.settle, want)
		}
	}
}

// While more calls are in flight than a lowered limit admits, they show nothing of it.
func TestWindowBeginsWhenLoweredLimitIsReached(t *testing.T) {
	s := newCallStream()
	s.queue(20, time.Millisecond, 20)
	s.begin()
	s.word.Store(s.word.Load()&^(countMask<<countBits) | 10<<countBits)
	s.control.settleBy = s.now + int64(time.Second)
	for len(s.starts) > 8 {
		s.queue(1, time.Millisecond, 0)
		s.tick(s.now)
		if got, want := s.control.window.nanos > 0, len(s.starts) <= 10; got != want {
			t.Errorf("%d calls in flight at a limit of 10: window begun %t, want %t", len(s.starts), got, want)
		}
	}
}
