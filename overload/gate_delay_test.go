package overload

import (
	"math"
	"testing"
	"time"
)

// delayedGate is a gate that refuses calls, with two processors, a limit of 20, and calls in flight.
func delayedGate(calls int) *Gate {
	g := NewGate(nil)
	g.delay.procs = func() int { return 2 }
	for range calls {
		g.tryEnter(g.clock.Now())
	}
	g.control.refusing = true
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
		g := delayedGate(c.calls)
		g.checkDelay(1, int64(c.wait))
		if got := limitOf(g.word.Load()); got != c.want {
			t.Errorf("%d calls, goroutines wait for %v: got a limit of %d, want %d", c.calls, c.wait, got, c.want)
		}
	}
}

func TestGateWithBusyProcessorsAdmitsOneCallMore(t *testing.T) {
	g := delayedGate(20)
	for i := range int64(10) {
		g.checkDelay(i, 200e6)
	}
	if got := limitOf(g.word.Load()); got != 3 {
		t.Errorf("got a limit of %d with two processors, want 3", got)
	}
}

// While no call is refused, only very many calls are too many.
func TestGateLetsBurstsWaitForProcessor(t *testing.T) {
	for calls, want := range map[int]int{burstCalls + 1: 60, burstCalls + 2: 30} {
		g := delayedGate(0)
		g.control.refusing = false
		g.control.finder.limit = 60
		g.publish()
		for range calls {
			g.tryEnter(g.clock.Now())
		}
		g.checkDelay(1, 200e6)
		if got := limitOf(g.word.Load()); got != want {
			t.Errorf("%d calls: got a limit of %d, want %d", calls, got, want)
		}
	}
}

// A trial leaves no processor idle where calls compute.
func TestGateTriesNoFewerCallsThanProcessors(t *testing.T) {
	for wait, want := range map[time.Duration]float64{0: 1, 10 * time.Millisecond: 2} {
		g := delayedGate(2)
		g.meter.mean.Store(20e6)
		for i := range int64(30) {
			g.checkDelay(i, int64(wait))
		}
		f := &g.control.finder
		f.starting, f.limit, f.base, f.baseVar, f.last.full = false, 2, math.Log(1e6), 0.001, true
		f.update(measurement{took: math.Log(10e6), variance: 0.001, inFlight: 2, full: true})
		if !f.trying || f.limit != want {
			t.Errorf("goroutines wait for %v: trying %t, limit %g, want a trial with %g", wait, f.trying, f.limit, want)
		}
	}
}

// Calls that were not seen for long may wait for less, sheddable ones before normal ones.
func TestGateWaitsLessForLateCalls(t *testing.T) {
	g := delayedGate(20)
	g.checkDelay(1, 30e6)
	for p, want := range map[Priority]time.Duration{
		Critical: 100 * time.Millisecond, Normal: 70 * time.Millisecond, Sheddable: 40 * time.Millisecond,
	} {
		if got := time.Duration(g.maxWaitOf(p.rank(), 1)); got != want {
			t.Errorf("%v: may wait %v, want %v", p, got, want)
		}
	}
}

// A gate measures again after it has measured, and not meanwhile.
func TestGateMeasuresDelayOneAtATime(t *testing.T) {
	g := NewGate(nil)
	var turns []func()
	g.delay.yield = func(done func()) { turns = append(turns, done) }
	enter := func() {
		pass, err := g.Enter(t.Context(), Normal)
		if err != nil {
			t.Fatal(err)
		}
		pass.Leave(Success)
	}
	for range 3 {
		enter()
	}
	if len(turns) != 1 {
		t.Fatalf("%d goroutines wait for a processor, want 1", len(turns))
	}
	turns[0]()
	g.delay.dueAt.Add(-delayEvery)
	if enter(); len(turns) != 2 {
		t.Errorf("%d measurements, want 2", len(turns))
	}
}

func TestDelayMeterGetsTurnInThisProcess(t *testing.T) {
	done := make(chan struct{})
	newDelayMeter().yield(func() { close(done) })
	<-done
}

func TestGateOfSimulationDoesNotMeasureMachine(t *testing.T) {
	if NewGate(&GateOptions{Now: time.Now}).delay != nil || NewGate(&GateOptions{Limit: 3}).delay != nil {
		t.Error("a gate with a clock of its own, or a fixed limit, measures the machine's scheduler")
	}
}
