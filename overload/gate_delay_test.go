package overload

import (
	"runtime"
	"testing"
	"time"
)

// delayedGate is a gate that refuses calls, with a limit of 20 and calls in flight, whose goroutines wait for
// a processor.
func delayedGate(calls int, wait time.Duration) *Gate {
	g := NewGate(nil)
	g.delay = &delayMeter{procs: func() int { return 2 }, median: func() (int64, bool) { return int64(wait), true }}
	for range calls {
		g.tryEnter(g.clock.Now())
	}
	g.meter.refused.Store(1)
	return g
}

func TestGateHalvesLimitOnlyIfItsCallsKeepProcessorsBusy(t *testing.T) {
	for _, c := range []struct {
		calls int
		wait  time.Duration
		want  int
	}{
		{20, 0, 20},
		{20, 25 * time.Millisecond, 20},
		{20, 100 * time.Millisecond, 10},
		{10, 100 * time.Millisecond, 10},
		{9, 100 * time.Millisecond, 20}, // no more than 90 ms are because of them
		{1, time.Second, 20},
	} {
		g := delayedGate(c.calls, c.wait)
		g.checkDelay(1)
		if got := limitOf(g.word.Load()); got != c.want {
			t.Errorf("%d calls, goroutines wait for %v: got a limit of %d, want %d", c.calls, c.wait, got, c.want)
		}
	}
}

func TestGateWithBusyProcessorsAdmitsAsManyCallsAsProcessors(t *testing.T) {
	g := delayedGate(20, 200*time.Millisecond)
	for i := range int64(10) {
		g.meter.refused.Store(1)
		g.checkDelay(i)
	}
	if got := limitOf(g.word.Load()); got != 2 {
		t.Errorf("got a limit of %d, want 2", got)
	}
}

// Calls that were not seen for long may wait for less, sheddable ones before normal ones.
func TestGateWaitsLessForLateCalls(t *testing.T) {
	g := delayedGate(20, 30*time.Millisecond)
	g.checkDelay(1)
	for p, want := range map[Priority]time.Duration{
		Critical: 100 * time.Millisecond, Normal: 70 * time.Millisecond, Sheddable: 40 * time.Millisecond,
	} {
		if got := time.Duration(g.maxWaitOf(p.rank(), 1)); got != want {
			t.Errorf("%v: may wait %v, want %v", p, got, want)
		}
	}
}

func TestDelayMeterKnowsThisProcess(t *testing.T) {
	d := newDelayMeter()
	if d == nil {
		t.Fatal("the runtime does not know how long goroutines wait")
	}
	done := make(chan struct{})
	go func() { // transitions to count
		defer close(done)
		for range 10_000 {
			runtime.Gosched()
		}
	}()
	<-done
	if wait, ok := d.median(); !ok || wait < 0 || wait > int64(time.Minute) {
		t.Errorf("got %v, %v", time.Duration(wait), ok)
	}
	if _, ok := d.median(); ok {
		t.Error("waits were counted twice")
	}
}

func TestGateOfSimulationDoesNotMeasureMachine(t *testing.T) {
	if NewGate(&GateOptions{Now: time.Now}).delay != nil || NewGate(&GateOptions{Limit: 3}).delay != nil {
		t.Error("a gate with a clock of its own, or a fixed limit, measures the machine's scheduler")
	}
}
