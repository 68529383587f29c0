package overload

import (
	"testing"
)

// TestGateWaiterCanceledAfterItsTurnCameLeaves has a context that ends between the
// admission of a waiting call and its caller's notice of it.
func TestGateWaiterCanceledAfterItsTurnCameLeaves(t *testing.T) {
	g := NewGate(&GateOptions{Limit: 1})
	pass, err := g.Enter(t.Context(), Normal)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := g.ask(g.clock.Now(), Normal)
	if w == nil {
		t.Fatal("a call at a full gate did not wait")
	}
	pass.Leave(Success)
	if n := g.Stats().InFlight; n != 1 {
		t.Fatalf("in flight after Leave: got %d, want the call that waited", n)
	}
	g.cancel(w)
	if s := g.Stats(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("after the cancellation: %+v, want none in flight or waiting", s)
	}
}

// A clock that is coarser than the calls take says that they take no time.
func TestMeterLatencyOfCoarseClock(t *testing.T) {
	var m meter
	m.samples.Store(16 * oneSample)
	if n, mean, variance := m.latency(0, 0); n != 16 || mean != 1 || variance != 0 {
		t.Errorf("got %g calls, mean %g, variance %g, want 16, 1 ns and 0", n, mean, variance)
	}
}
