package overload

import (
	"math"
	"testing"
)

// measured returns a measurement of a full gate, with the latency in milliseconds.
func measured(latency, inFlight, variance float64) measurement {
	return measurement{
		took: math.Log(latency * 1e6), variance: variance,
		inFlight: inFlight, peak: inFlight, full: true, seconds: 0.5,
	}
}

// idle returns a measurement of a gate that was not full.
func idle(latency, inFlight float64) measurement {
	m := measured(latency, inFlight, 0.001)
	m.full = false
	return m
}

// knowing returns a finder that knows a latency of 10 ms without queueing, and has a limit of 20.
func knowing() *limitFinder {
	f := newLimitFinder(20, 1000)
	f.update(idle(10, 2))
	f.limit, f.starting = 20, false
	return &f
}

// trying returns a finder that knows a latency of 10 ms without queueing, and has begun a
// trial because of 40 ms with 20 calls in flight.
func trying(t *testing.T) *limitFinder {
	t.Helper()
	f := knowing()
	f.last.full = true
	f.update(measured(40, 20, 0.01))
	if !f.trying || f.limit != 10 {
		t.Fatalf("trying %t, limit %g, want a trial with 10", f.trying, f.limit)
	}
	return f
}

func (f *limitFinder) baseMillis() float64 { return math.Round(math.Exp(f.base) / 1e6) }

func TestLimitFinderRaisesBaseIfFewerCallsAreNoFaster(t *testing.T) {
	f := trying(t)
	f.update(measured(40, 10, 0.01))
	if f.baseMillis() != 40 || !f.trying || f.limit != 40 {
		t.Errorf("base %g ms, trying %t, limit %g, want 40 ms, and a trial with 40 because more than 20 calls may be no slower", f.baseMillis(), f.trying, f.limit)
	}
}

func TestLimitFinderKeepsBaseIfFewerCallsAreFaster(t *testing.T) {
	f := trying(t)
	f.update(measured(20, 10, 0.01))
	if want := 5 + f.surplus(20); f.baseMillis() != 10 || f.trying || math.Abs(f.limit-want) > 0.01 {
		t.Errorf("base %g ms, trying %t, limit %g, want 10 ms, and %.3g because five workers explain both", f.baseMillis(), f.trying, f.limit, want)
	}
}

// Ten calls are hardly faster than twenty were, and by chance that may be more than it seems.
func TestLimitFinderKeepsBaseIfTrialIsUnclear(t *testing.T) {
	f := trying(t)
	f.update(measured(31, 10, 0.02)) // an elasticity of 0.63, and 0.25 more or less
	if f.baseMillis() != 10 || f.trying || f.limit >= 10 {
		t.Errorf("base %g ms, trying %t, limit %g, want 10 ms and less than 10", f.baseMillis(), f.trying, f.limit)
	}
}

// The gate was not full before, so its full window may be a burst; and while latency rises, the calls of a trial may be
// as slow as those before it although they queue.
func TestLimitFinderTriesNothingBecauseOfOneFullWindow(t *testing.T) {
	f := knowing()
	for range 3 {
		if f.update(measured(40, 20, 0.01)); f.trying {
			t.Fatalf("limit %g, want no trial", f.limit)
		}
		f.update(idle(10, 2))
		f.limit = 20
	}
	f.update(measured(40, 20, 0.01))
	if f.update(measured(80, 20, 0.01)); !f.trying {
		t.Error("the trial waits for more than two windows")
	}
}

// What calls take is checked ever less often while it is what the finder believes, and soon if it is not.
func TestLimitFinderTriesMoreRarelyWhatItKnows(t *testing.T) {
	f := knowing()
	next := func(took float64) (seconds float64) {
		for ; !f.trying; seconds += 0.5 {
			f.update(measured(10, f.limit, 0.01))
		}
		f.update(measured(took, f.limit, 0.01))
		return seconds
	}
	for i, want := range []float64{minTryAfter, 4, 8, 16, maxTryAfter, maxTryAfter} {
		if got := next(10); got < want || got > want+1 {
			t.Errorf("trial %d after %g s, want %g", i, got, want)
		}
	}
	if next(5); f.tryAfter != minTryAfter {
		t.Errorf("the next trial after %g s, want %g because calls were twice as fast", f.tryAfter, minTryAfter)
	}
}

// Calls have become slow, and fit into the gate.
func TestLimitFinderMakesRoomForSlowCallsOnce(t *testing.T) {
	f := knowing()
	f.update(idle(60, 18))
	if f.limit != 20 {
		t.Errorf("limit %g after the first slow window, want 20: latency may be rising", f.limit)
	}
	f.update(idle(60, 18))
	if f.limit != 27 {
		t.Errorf("limit %g, want 27, which is half more than the 18 in flight", f.limit)
	}
	f.update(idle(60, 26))
	if f.limit != 27 {
		t.Errorf("limit %g, want the 27 from before: a queue may be growing slowly", f.limit)
	}
	f.update(idle(10, 2))
	f.limit = 20
	f.update(idle(60, 18))
	f.update(idle(60, 18))
	if f.limit != 27 {
		t.Errorf("limit %g after calls were fast in between, want 27", f.limit)
	}
}

func TestLimitFinderMakesNoRoomWhileLatencyRises(t *testing.T) {
	f := knowing()
	for _, latency := range []float64{30, 60, 120} {
		f.update(idle(latency, 18))
	}
	if f.limit != 20 {
		t.Errorf("limit %g, want 20", f.limit)
	}
}

// A process that starts in an overload takes base from calls that queue. Only those that no more queue are as slow as
// fewer.
func TestLimitFinderHalvesUntilRateFollows(t *testing.T) {
	for workers := 2.0; workers <= 32; workers *= 2 {
		f := newLimitFinder(40, 1000)
		server := trialServer{workers: workers, millis: 10, offered: 1000}
		f.last.full = true
		for windows := 0; !f.verified && windows < 100; windows++ {
			f.update(server.at(f.limit))
		}
		if f.baseMillis() != 10 || f.trying {
			t.Errorf("%g workers: %g ms without queueing, trying %t, want 10 ms", workers, f.baseMillis(), f.trying)
		}
	}
}

// A process that has just started doubles its limit until calls queue or the gate is not full.
func TestLimitFinderDoublesLimitAtStart(t *testing.T) {
	window := func(inFlight, milliseconds float64) measurement { return measured(milliseconds, inFlight, 0.005) }
	for name, c := range map[string]struct {
		most    float64
		windows []measurement
		want    float64
		trying  bool
	}{
		"calls do not queue":       {1000, []measurement{window(20, 50), window(40, 52), window(80, 47)}, 160, true},
		"calls queue":              {1000, []measurement{window(20, 50), window(40, 100)}, 20, false},
		"up to half of the most":   {100, []measurement{window(20, 50), window(40, 50), window(80, 50)}, 80, false},
		"more workers than that":   {1000, []measurement{window(20, 50), window(40, 50), window(80, 90)}, 40, false},
		"no more calls than that":  {1000, []measurement{window(20, 50), window(40, 50), idle(50, 70)}, 80, false},
		"few calls, and then many": {1000, []measurement{idle(50, 2), window(20, 50), window(40, 50)}, 4 * (20 + 0.2*(4*2+4-20)), true},
	} {
		f := newLimitFinder(20, c.most)
		for _, m := range c.windows {
			f.update(m)
		}
		if math.Abs(f.limit-c.want) > 0.01 || f.trying != c.trying {
			t.Errorf("%s: limit %g, trying %t, want %g and %t", name, f.limit, f.trying, c.want, c.trying)
		}
	}
}

// Few workers are seen before the gate is full.
func TestLimitFinderDoesNotDoubleLimitOfFewWorkers(t *testing.T) {
	f := newLimitFinder(20, 1000)
	m := measured(50, 20, 0.005)
	m.hintsAtFew = true
	if f.update(m); f.trying || f.limit > 25 {
		t.Errorf("trying %t, limit %g, want about 20", f.trying, f.limit)
	}
}

// If another gate is before the same server, the rate follows a low limit because this gate takes from the other; and
// of few calls, a few make a large difference.
func TestLimitFinderDoublesOnlyHighLimits(t *testing.T) {
	for limit, want := range map[float64]float64{minDoubled - 0.1: minDoubled - 0.1, minDoubled: 2 * minDoubled, 500: 1000, 501: 501} {
		for what, m := range map[string]measurement{"slower workers": {workers: limit}, "hints at slow calls": {hintsAtSlow: true}} {
			f := knowing()
			f.limit = limit
			if f.try(m); f.limit != want || f.trying != (want != limit) {
				t.Errorf("%s: limit %g, trying %t, want %g", what, f.limit, f.trying, want)
			}
		}
	}
}

// A gate that is full at the most from the start adapts when calls queue later.
func TestLimitFinderAdaptsAfterStartAtMost(t *testing.T) {
	f := newLimitFinder(20, 20)
	for range 50 {
		f.update(measured(50, 20, 0.005))
	}
	for range 50 {
		f.update(measured(200*f.limit/20, f.limit, 0.005)) // a quarter of the workers is left
	}
	if f.limit > 12 {
		t.Errorf("got a limit of %g, want about what five workers need", f.limit)
	}
}
