package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// Each check is tested with a wrong workload.

func TestRivalsSeparateKeys(t *testing.T) {
	for _, c := range append([]library{ours}, keyed(rivals)...) {
		if err := harness.Try(func() { checkSeparateKeys(c, 100) }); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckSeparateKeysCatchesIgnoredKeys(t *testing.T) {
	same := library{name: "blind", open: func(p benchLimit, n int) limiter {
		opened, same := ours.open(p, n), walkTo(newRing(0, 1).at(0))
		return loop(func(_ *walk, calls int) harness.Counts { return opened.run(same, calls) })
	}}
	if err := harness.Try(func() { checkSeparateKeys(same, 100) }); err == nil {
		t.Error("a limiter that ignores keys passed")
	}
}

func TestCheckSeparateKeysCatchesLostKeys(t *testing.T) {
	forgetting := library{name: "forgetting", open: func(_ benchLimit, n int) limiter { return ours.open(ample(n), n) }}
	if err := harness.Try(func() { checkSeparateKeys(forgetting, 100) }); err == nil {
		t.Error("a limiter that admits spent keys passed")
	}
}

func TestVerifyCatchesRepeatedKeys(t *testing.T) {
	r := newRing(0, 10)
	r.flat = strings.Repeat(r.at(0), 10)
	l := ours.open(ample(10), 10)
	e := newSubject("penstock", l, r, 1)
	e.Run(10)
	if err := harness.Try(func() { e.verify(workload{keys: 10}) }); err == nil {
		t.Error("ten calls for one key passed as ten keys")
	}
}

func TestVerifyCatchesTooFewKeys(t *testing.T) {
	l := ours.open(ample(10), 10)
	e := newSubject("penstock", l, newRing(0, 10), 1)
	e.Run(9)
	if err := harness.Try(func() { e.verify(workload{keys: 10}) }); err == nil || !strings.Contains(err.Error(), "9 different keys") {
		t.Errorf("nine calls: %v; want an error about 9 keys", err)
	}
}

func TestVerifyCatchesWrongDenials(t *testing.T) {
	for _, c := range []struct {
		policy benchLimit
		denied bool
	}{{once, false}, {ample(1), true}} {
		l := ours.openFilled(c.policy, 1)
		e := newSubject("penstock", l, newRing(0, 1), 1)
		e.Run(10)
		if err := harness.Try(func() { e.verify(workload{keys: 1, denied: c.denied}) }); err == nil {
			t.Errorf("%d of %d calls denied passed as a workload with denied %v", e.Total.Denied, e.Total.Calls, c.denied)
		}
	}
}

func TestVerifyCatchesFailedCalls(t *testing.T) {
	failing := loop(func(_ *walk, calls int) harness.Counts {
		return harness.Counts{Calls: calls, Failed: calls, First: penstock.ErrBadKey}
	})
	empty := library{name: "failing", open: func(benchLimit, int) limiter { return failing }}
	if err := harness.Try(func() { checkSeparateKeys(empty, 10) }); err == nil {
		t.Error("a limiter whose every call fails passed")
	}
	e := newSubject("", failing, newRing(0, 10), 1)
	e.Total = harness.Counts{Calls: 10, Failed: 1}
	if err := harness.Try(func() { e.verify(workload{}) }); err == nil {
		t.Error("one failed call of ten passed")
	}
}

func TestCheckHeldCatchesSharedState(t *testing.T) {
	const n = 100
	for room, ok := range map[int]bool{n / 2: false, 0: true} {
		store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: room})
		l := newLimited(store, tokenBucket(ample(n)))
		l.run(newRing(0, n).walks(1)[0], n)
		if err := harness.Try(func() { checkHeld(store, n) }); (err == nil) != ok {
			t.Errorf("room for %d keys: %v, want ok %v", room, err, ok)
		}
		if err := harness.Try(func() { checkHeld(store, n+1) }); err == nil {
			t.Error("a key that was never taken passed as held")
		}
	}
}

func TestRetryAfterHourRepeatsChecksOnce(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		began, ended time.Time
		fails, want  int // checks
	}{
		{noon, noon.Add(time.Minute), 0, 1},
		{noon, noon.Add(time.Minute), 2, 1},
		{noon.Add(-time.Second), noon, 0, 1},
		{noon.Add(-time.Second), noon, 1, 2},
		{noon.Add(-time.Second), noon, 2, 2},
	} {
		times, checks := []time.Time{c.began, c.ended}, 0
		now := func() time.Time {
			at := times[0]
			times = times[1:]
			return at
		}
		err := harness.Try(func() {
			retryAfterHour(now, func() {
				if checks++; checks <= c.fails {
					harness.Failf("spent keys are allowed")
				}
			})
		})
		if checks != c.want || (err == nil) != (checks > c.fails) {
			t.Errorf("from %s to %s, %d checks fail: %d checks, %v", c.began, c.ended, c.fails, checks, err)
		}
	}
}

func TestAllocationsCountsPerCall(t *testing.T) {
	l := ours.open(ample(1), 1)
	r := newRing(0, 1)
	if got := newSubject("wasteful", allocating{l}, r, 1).Allocations(allocationCalls); got < 0.99 || got > 1.1 {
		t.Errorf("a limiter that allocates once a call: %.3f allocations, want 1", got)
	}
	if got := newSubject("floor", newFloor(ample(1)), r, 1).Allocations(allocationCalls); got >= noAllocations {
		t.Errorf("the floor: %.4f allocations, want 0", got)
	}
}

func TestFloodCountsReadmittedKeys(t *testing.T) {
	f := newFlood(1000)
	if calls, admitted := f.retakeSpent(100); calls != 100 || admitted != 0 {
		t.Errorf("before the flood %d of %d spent keys were admitted, want 0 of 100", admitted, calls)
	}
	if err := f.lim.lim.Reset(context.Background(), f.spent[0]); err != nil {
		t.Fatal(err)
	}
	if _, admitted := f.retakeSpent(100); admitted != 1 {
		t.Errorf("after the reset of one key, %d were admitted, want 1", admitted)
	}
}

func TestVerifyFloodCatchesWrongWorkload(t *testing.T) {
	f := newFlood(1000)
	w := newRing(f.offered, 100).walks(1)[0]
	w.steps = 100
	if err := harness.Try(func() { verifyFlood(harness.Counts{Calls: 100, Denied: 100}, w) }); err != nil {
		t.Error(err)
	}
	for name, tl := range map[string]harness.Counts{
		"store with room": {Calls: 100, Denied: 50},
		"repeated keys":   {Calls: 200, Denied: 200},
		"failed calls":    {Calls: 100, Denied: 99, Failed: 1},
	} {
		if err := harness.Try(func() { verifyFlood(tl, w) }); err == nil {
			t.Errorf("%s passed as a flood of new keys into a full store", name)
		}
	}
	f.spent = f.spent[:10]
	if err := harness.Try(func() { f.checkFull(1000) }); err == nil {
		t.Error("a store of 1000 that was full with 10 keys passed")
	}
}

func TestTurningLogStaysFull(t *testing.T) {
	l, r := newTurningLog(10), newRing(0, 10)
	if got := l.run(r.walks(1)[0], 255); got != (harness.Counts{Calls: 255}) {
		t.Errorf("25 laps and a half of full logs: %+v, want all admitted", got)
	}
	if err := harness.Try(func() { l.verify(r) }); err != nil {
		t.Error(err)
	}
	l.ahead += 10 * time.Minute
	if err := harness.Try(func() { l.verify(r) }); err == nil {
		t.Error("logs with free units passed as full")
	}
}

func TestWeighRejectsIdleKeys(t *testing.T) {
	idle := weighable{library{name: "idle", open: func(_ benchLimit, n int) limiter { return ours.open(alwaysFull, n) }}, 1}
	if err := harness.Try(func() { idle.weigh(100) }); err == nil {
		t.Error("idle keys were weighed")
	}
	if err := harness.Try(func() { runInChild[memoryUse]("weigh", "unknown", 100) }); err == nil {
		t.Error("an unknown library was weighed")
	}
}

// allocating allocates once per call.
type allocating struct{ limiter }

var allocated *[64]byte

func (b allocating) run(w *walk, calls int) harness.Counts {
	for range calls {
		allocated = new([64]byte)
	}
	return b.limiter.run(w, calls)
}
