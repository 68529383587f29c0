package overload

import (
	"math"
	"testing"
)

// measured returns a measurement of a full gate, with the latency in milliseconds.
func measured(latency, inFlight, variance float64) measurement {
	return measurement{
		took: math.Log(latency * 1e6), variance: variance, calls: 1 / variance, spread: 1,
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
	f.limit = 20
	return &f
}

// probing returns a finder that knows a latency of 10 ms without queueing, and has begun a
// probe because of 40 ms with 20 calls in flight.
func probing(t *testing.T) *limitFinder {
	t.Helper()
	f := knowing()
	f.update(measured(40, 20, 0.01))
	f.update(measured(40, 20, 0.01))
	if !f.probing || f.limit != 10 {
		t.Fatalf("limit: got %g, want a probe with 10", f.limit)
	}
	return f
}

func (f *limitFinder) baseMillis() float64 { return math.Round(math.Exp(f.base) / 1e6) }

func TestLimitFinderRaisesBaseIfFewerCallsAreNoFaster(t *testing.T) {
	f := probing(t)
	f.update(measured(40, 10, 0.01))
	if f.probing || f.baseMillis() != 40 || f.limit != 30 {
		t.Errorf("base %g ms, limit %g, want 40 ms, and 30 because more than 20 calls would be no slower", f.baseMillis(), f.limit)
	}
}

// While latency rises, the calls of a probe may be as slow as those before it although they queue.
func TestLimitFinderLetsLatencyRiseBeforeProbe(t *testing.T) {
	f := knowing()
	f.update(measured(40, 20, 0.01))
	if f.probing || f.limit != 20 {
		t.Fatalf("probing %t, limit %g, want no probe in the first cohort of an overload, and 20", f.probing, f.limit)
	}
	f.update(measured(80, 20, 0.01))
	if !f.probing {
		t.Fatal("the probe waits for more than one cohort")
	}
	f.update(measured(80, 10, 0.01))
	if f.probing || f.limit >= 25 {
		t.Errorf("limit %g, want about the 20 from before the probe, which began while latency rose", f.limit)
	}
}

// Calls have become slow, and fit into the gate.
func TestLimitFinderMakesRoomForSlowCallsOnce(t *testing.T) {
	f := knowing()
	f.update(idle(60, 18))
	if f.limit != 20 {
		t.Errorf("limit %g after the first slow cohort, want 20: latency may be rising", f.limit)
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

// The first step of a probe seems to make calls faster, by chance. The second shows that a quarter
// of the calls is as fast as all of them were, so the limit was not too high.
func TestLimitFinderRestoresLimitAfterSecondStepOfProbe(t *testing.T) {
	f := probing(t)
	f.resume = 40 // of which 20 were in flight
	f.update(measured(22, 10, 0.001))
	if !f.probing || f.limit != 5 {
		t.Fatalf("limit: got %g, want a second step with 5", f.limit)
	}
	f.update(measured(38, 5, 0.001))
	if f.probing || f.limit < 40 {
		t.Errorf("limit: got %g, want at least the 40 from before the probe", f.limit)
	}
}

// The overload begins during the cohort before the probe, so that latency is still rising.
func TestLimitFinderIgnoresProbeWhileLatencyRises(t *testing.T) {
	f := probing(t)
	f.update(measured(60, 10, 0.01))
	if f.probing || f.baseMillis() != 10 || f.limit != 20 {
		t.Errorf("base %g ms, limit %g, want 10 ms and 20 as before", f.baseMillis(), f.limit)
	}
	f.update(measured(120, 20, 0.01))
	if !f.probing {
		t.Error("the next cohort begins no probe")
	}
}

// Latency falls with the calls in flight, but by chance less than it should.
func TestLimitFinderGoesOnWithUnclearProbe(t *testing.T) {
	f := probing(t)
	f.update(measured(31, 10, 0.02)) // an elasticity of 0.63, and 0.25 more or less
	if !f.probing || f.baseMillis() != 10 || f.limit != 10 {
		t.Fatalf("base %g ms, limit %g, want 10 ms and 10 for another cohort", f.baseMillis(), f.limit)
	}
	f.update(measured(18, 10, 0.02))
	f.update(measured(18, 10, 0.02))
	if f.baseMillis() != 10 {
		t.Errorf("base %g ms, want 10", f.baseMillis())
	}
	if f.limit >= 10 {
		t.Errorf("limit %g, want still fewer calls: those of the probe queued", f.limit)
	}
}

func TestLimitFinderEndsUnclearProbe(t *testing.T) {
	f := probing(t)
	for range maxProbeCohorts {
		if !f.probing || f.limit != 10 {
			t.Fatalf("limit %g, want 10 until the probe ends", f.limit)
		}
		f.update(measured(31, 10, 0.02))
	}
	if f.probing && f.limit == 10 {
		t.Error("the probe goes on for ever")
	}
}

func TestMeasurementsAreCombinedByVariance(t *testing.T) {
	m := measured(10, 10, 0.01).with(measured(20, 20, 0.03))
	if got := math.Exp(m.took) / 1e6; math.Abs(got-11.89) > 0.01 { // 10·2^¼
		t.Errorf("latency: got %.2f ms, want 11.89", got)
	}
	if math.Abs(m.inFlight-12.5) > 1e-9 || math.Abs(m.variance-0.0075) > 1e-9 {
		t.Errorf("in flight %g, variance %g, want 12.5 and 0.0075", m.inFlight, m.variance)
	}
}

// A process that has just started doubles its limit until calls queue or the gate is not full.
func TestLimitFinderDoublesLimitAtStart(t *testing.T) {
	cohort := func(inFlight, milliseconds float64) measurement {
		return measurement{took: math.Log(milliseconds * 1e6), variance: 0.005, calls: 100, inFlight: inFlight, peak: inFlight, full: true, seconds: 0.2}
	}
	roomy, few, idle := cohort(70, 50), cohort(40, 50), cohort(2, 50)
	roomy.full, few.hintsAtFew, idle.full = false, true, false
	for name, c := range map[string]struct {
		most    float64
		cohorts []measurement
		want    float64
	}{
		"calls do not queue":       {1000, []measurement{cohort(20, 50), cohort(40, 52), cohort(80, 47)}, 160},
		"calls queue":              {1000, []measurement{cohort(20, 50), cohort(40, 100)}, 20},
		"calls queue at the most":  {25, []measurement{cohort(20, 50), cohort(25, 80)}, 20},
		"more workers than that":   {1000, []measurement{cohort(20, 50), cohort(40, 50), cohort(80, 90)}, 40},
		"departures hint at few":   {1000, []measurement{cohort(20, 50), few}, 20},
		"no more calls than that":  {1000, []measurement{cohort(20, 50), cohort(40, 50), roomy}, 80 + 0.2*(4*70+4-80)},
		"few calls, and then many": {1000, []measurement{idle, cohort(20, 50), cohort(40, 50)}, 4 * (20 + 0.2*(4*2+4-20))},
	} {
		f := newLimitFinder(20, c.most)
		for _, m := range c.cohorts {
			f.update(m)
		}
		if math.Abs(f.limit-c.want) > 0.01 {
			t.Errorf("%s: got a limit of %g, want %g", name, f.limit, c.want)
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
