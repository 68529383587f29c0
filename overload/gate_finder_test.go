package overload

import (
	"math"
	"testing"
)

// measured returns a measurement of a full gate, with the latency in milliseconds.
func measured(latency, inFlight, variance float64) measurement {
	return measurement{
		took: math.Log(latency * 1e6), variance: variance, spread: 1,
		inFlight: inFlight, peak: inFlight, full: true, seconds: 0.5,
	}
}

// probing returns a finder that knows a latency of 10 ms without queueing, and has begun a
// probe because of 40 ms with 20 calls in flight.
func probing(t *testing.T) *limitFinder {
	t.Helper()
	f := newLimitFinder(20, 1000)
	idle := measured(10, 2, 0.001)
	idle.full = false
	f.update(idle)
	f.limit = 20
	f.update(measured(40, 20, 0.01))
	if !f.probing || f.limit != 10 {
		t.Fatalf("limit: got %g, want a probe with 10", f.limit)
	}
	return &f
}

func (f *limitFinder) baseMillis() float64 { return math.Round(math.Exp(f.base) / 1e6) }

func TestLimitFinderRaisesBaseIfFewerCallsAreNoFaster(t *testing.T) {
	f := probing(t)
	f.update(measured(40, 10, 0.01))
	if f.probing || f.baseMillis() != 40 || f.limit < 20 {
		t.Errorf("base %g ms, limit %g, want 40 ms and at least 20", f.baseMillis(), f.limit)
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
	if f.probing || f.limit != 40 {
		t.Errorf("limit: got %g, want the 40 from before the probe", f.limit)
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
