package overload

import (
	"testing"
	"time"
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

// waitingAt returns how many calls wait at a full gate for 5 ms at most, where each of its calls
// takes 20 ms in the mean, before one is refused.
func waitingAt(t *testing.T, limit int, variety float64, standing bool) int {
	t.Helper()
	wait := 5 * time.Millisecond
	if standing {
		wait *= standingShare
	}
	g := NewGate(&GateOptions{Limit: limit, MaxWait: wait})
	for range limit {
		if !g.tryEnter(g.clock.Now()) {
			t.Fatal("the gate is full too early")
		}
	}
	now := int64(time.Hour)
	g.meter.mean.Store(int64(20 * time.Millisecond))
	g.meter.variety.Store(int64(1e6 * variety))
	g.meter.dueAt.Store(2 * now)
	r := &g.queue.ranks[Normal.rank()]
	r.standing, r.askedAt, r.promptAt = standing, now, now
	for n := 0; ; n++ {
		if w, _ := g.ask(now, Normal); w == nil {
			return n
		}
	}
}

// In 5 ms, a limit of 4 has one turn in the mean, and 40 have ten. If calls end at random, there
// are more than twice as many, and half more, in one of twenty such times.
func TestGateStandingQueueIsAsLongAsTurnsMayComeByChance(t *testing.T) {
	for _, c := range []struct {
		limit    int
		variety  float64
		standing bool
		want     int
	}{
		{4, 0, true, 1},
		{4, 0.2, true, 1},
		{4, 0.75, true, 2},
		{4, 1, true, 2},
		{40, 0, true, 10},
		{40, 1, true, 15},
		{40, 1, false, 10},
		{1, 1, true, 1},
	} {
		if got := waitingAt(t, c.limit, c.variety, c.standing); got != c.want {
			t.Errorf("%+v: got %d calls that wait", c, got)
		}
	}
}
