package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// Each check is tested with a wrong workload.

func TestRivalsSeparateKeys(t *testing.T) {
	for _, c := range append([]library{ours}, keyed(rivals)...) {
		if err := checkSeparateKeys(c, 100); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckSeparateKeysCatchesIgnoredKeys(t *testing.T) {
	same := library{name: "blind", open: func(p benchLimit, n int) (limiter, error) {
		l, err := ours.open(p, n)
		return sameKey{l}, err
	}}
	if err := checkSeparateKeys(same, 100); err == nil {
		t.Error("a limiter that ignores keys passed")
	}
}

func TestCheckSeparateKeysCatchesLostKeys(t *testing.T) {
	forgetting := library{name: "forgetting", open: func(_ benchLimit, n int) (limiter, error) {
		return ours.open(ample(n), n)
	}}
	if err := checkSeparateKeys(forgetting, 100); err == nil {
		t.Error("a limiter that admits spent keys passed")
	}
}

func TestVerifyCatchesRepeatedKeys(t *testing.T) {
	r := newRing(0, 10)
	r.flat = strings.Repeat(r.at(0), 10)
	l, err := ours.open(ample(10), 10)
	if err != nil {
		t.Fatal(err)
	}
	e := newSubject("penstock", l, r, 1)
	e.runCalls(10)
	if keys, err := e.verify(workload{keys: 10}); err == nil {
		t.Errorf("ten calls for one key passed as ten keys; counted %d", keys)
	}
}

func TestVerifyCatchesTooFewKeys(t *testing.T) {
	l, err := ours.open(ample(10), 10)
	if err != nil {
		t.Fatal(err)
	}
	e := newSubject("penstock", l, newRing(0, 10), 1)
	e.runCalls(9)
	if keys, err := e.verify(workload{keys: 10}); err == nil || keys != 9 {
		t.Errorf("nine calls: %d keys, error %v; want 9 and an error", keys, err)
	}
}

func TestVerifyCatchesWrongDenials(t *testing.T) {
	for _, c := range []struct {
		policy benchLimit
		denied bool
	}{{once, false}, {ample(1), true}} {
		l, err := ours.openFilled(c.policy, 1)
		if err != nil {
			t.Fatal(err)
		}
		e := newSubject("penstock", l, newRing(0, 1), 1)
		e.runCalls(10)
		if _, err := e.verify(workload{keys: 1, denied: c.denied}); err == nil {
			t.Errorf("%d of %d calls denied passed as a workload with denied %v", e.counts.Denied, e.counts.Calls, c.denied)
		}
	}
}

func TestVerifyCatchesFailedCalls(t *testing.T) {
	lim, err := newLimited(penstock.NewMemory(nil), penstock.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	empty := library{name: "no key", open: func(benchLimit, int) (limiter, error) { return emptyKey{lim}, nil }}
	if err := checkSeparateKeys(empty, 10); err == nil {
		t.Error("a limiter whose every call fails passed")
	}
	e := &subject{counts: harness.Counts{Calls: 10, Failed: 1}}
	if _, err := e.verify(workload{}); err == nil {
		t.Error("one failed call of ten passed")
	}
}

func TestCheckDebtsCatchesSharedState(t *testing.T) {
	const n = 100
	tooSmall := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: n / 2})
	for _, c := range []struct {
		name  string
		store penstock.Store
		calls int
		ok    bool
	}{
		{"enough room", penstock.NewMemory(nil), n, true},
		{"wrong number of calls", penstock.NewMemory(nil), n - 1, false},
		{"half the room", tooSmall, n, false},
	} {
		l, err := newLimited(c.store, tokenBucket(ample(n)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fill(l, 0, n); err != nil {
			t.Fatal(err)
		}
		if err := checkDebts(l.lim, newRing(0, n), c.calls, 0); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", c.name, err, c.ok)
		}
	}
}

func TestCheckDebtsAllowsUnitsThatHaveComeBack(t *testing.T) {
	const n, takes = 100, 5
	p, now := ample(n), time.Now()
	l, err := newLimited(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}), tokenBucket(p))
	if err != nil {
		t.Fatal(err)
	}
	for range takes {
		if _, err := fill(l, 0, n); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2*p.every + p.every/2)
	for back, ok := range []bool{false, false, true} {
		if err := checkDebts(l.lim, newRing(0, n), takes*n, back); (err == nil) != ok {
			t.Errorf("two units of each key have come back, and %d may have: %v, want ok %v", back, err, ok)
		}
	}
	if err := checkDebts(l.lim, newRing(0, n), 2*n, 2); err == nil {
		t.Error("debts of more units than were taken passed")
	}
	fx := &comparison{limit: p, ring: newRing(0, n), ours: l, calls: takes * n, began: time.Now().Add(-3 * p.every)}
	if err := fx.checkDebts(); err != nil {
		t.Error(err)
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
		err := retryAfterHour(now, func() error {
			if checks++; checks <= c.fails {
				return errors.New("spent keys are allowed")
			}
			return nil
		})
		if checks != c.want || (err == nil) != (checks > c.fails) {
			t.Errorf("from %s to %s, %d checks fail: %d checks, %v", c.began, c.ended, c.fails, checks, err)
		}
	}
}

func TestAllocationsCountsPerCall(t *testing.T) {
	l, err := ours.open(ample(1), 1)
	if err != nil {
		t.Fatal(err)
	}
	r := newRing(0, 1)
	if got := newSubject("wasteful", allocating{l}, r, 1).allocations(); got < 0.99 || got > 1.1 {
		t.Errorf("a limiter that allocates once a call: %.3f allocations, want 1", got)
	}
	if got := newSubject("floor", newFloor(ample(1)), r, 1).allocations(); got >= noAllocations {
		t.Errorf("the floor: %.4f allocations, want 0", got)
	}
}

func TestFloodCountsReadmittedKeys(t *testing.T) {
	f, err := newFlood(1000)
	if err != nil {
		t.Fatal(err)
	}
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
	f, err := newFlood(1000)
	if err != nil {
		t.Fatal(err)
	}
	w := newRing(f.offered, 100).walks(1)[0]
	w.steps = 100
	if err := f.verifyFlood(harness.Counts{Calls: 100, Denied: 100}, w); err != nil {
		t.Error(err)
	}
	for name, tl := range map[string]harness.Counts{
		"store with room": {Calls: 100, Denied: 50},
		"repeated keys":   {Calls: 200, Denied: 200},
		"failed calls":    {Calls: 100, Denied: 99, Failed: 1},
	} {
		if err := f.verifyFlood(tl, w); err == nil {
			t.Errorf("%s passed as a flood of new keys into a full store", name)
		}
	}
	f.spent = f.spent[:10]
	if err := f.checkFull(1000); err == nil {
		t.Error("a store of 1000 that was full with 10 keys passed")
	}
}

func TestTurningLogVerifyCatchesWrongWorkload(t *testing.T) {
	l := newTurningLog(10, time.Millisecond)
	if err := l.verify(); err == nil {
		t.Error("logs without calls passed")
	}
	l.lap()
	if got := l.expiry[0]; got < l.period {
		t.Errorf("the units of the first lap expire after %s, before the period of %s", got, l.period)
	}
	l.calls, l.denied = 1000, 1
	if err := l.verify(); err == nil {
		t.Error("a log that denies passed as one that turns over")
	}
	l.denied, l.remaining = 0, 50*1000
	if err := l.verify(); !errors.Is(err, errNotFull) {
		t.Errorf("a log with 50 of 100 units free: %v, want %v", err, errNotFull)
	}
	l.remaining = 1000
	if err := l.verify(); err != nil {
		t.Errorf("a log with one unit free: %v", err)
	}
}

func TestWeighRejectsIdleKeys(t *testing.T) {
	idle := weighable{library{name: "idle", open: func(_ benchLimit, n int) (limiter, error) {
		return ours.open(alwaysFull, n)
	}}, 1}
	if w, err := idle.weigh(100); err == nil {
		t.Errorf("idle keys were weighed at %.0f bytes", w.Bytes)
	}
	var use memoryUse
	if err := runInChild("weigh", "unknown", 100, &use); err == nil {
		t.Error("an unknown library was weighed")
	}
}

// sameKey ignores keys.
type sameKey struct{ limiter }

func (b sameKey) take(string) (bool, error) { return b.limiter.take("same") }

func (b sameKey) run(_ *walk, calls int) (t harness.Counts) {
	for range calls {
		t.Count(b.take(""))
	}
	return t
}

// emptyKey calls the limiter without a key.
type emptyKey struct{ limiter }

func (b emptyKey) take(string) (bool, error) { return b.limiter.take("") }

// allocating allocates once per call.
type allocating struct{ limiter }

var allocated *[64]byte

func (b allocating) run(w *walk, calls int) harness.Counts {
	for range calls {
		allocated = new([64]byte)
	}
	return b.limiter.run(w, calls)
}
