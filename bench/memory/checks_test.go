package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// A check that never fails proves nothing, so each is shown a workload that is
// wrong.

func TestEveryRivalTellsKeysApart(t *testing.T) {
	for _, c := range append([]contestant{ours}, keyed(rivals)...) {
		if err := checkTellsApart(c, 100); err != nil {
			t.Error(err)
		}
	}
}

func TestKeysThatAreAllOneAreCaught(t *testing.T) {
	blind := contestant{name: "blind", open: func(p policy, n int) (limiter, error) {
		l, err := ours.open(p, n)
		return ignoringKeys{l}, err
	}}
	if err := checkTellsApart(blind, 100); err == nil {
		t.Error("a limiter that takes every key for the same passed as one that tells them apart")
	}
}

func TestKeysThatAreForgottenAreCaught(t *testing.T) {
	forgetting := contestant{name: "forgetting", open: func(_ policy, n int) (limiter, error) {
		return ours.open(roomy(n), n)
	}}
	if err := checkTellsApart(forgetting, 100); err == nil {
		t.Error("a limiter that admits spent keys passed as one that remembers them")
	}
}

func TestARingOfRepeatedKeysIsCaught(t *testing.T) {
	r := newRing(0, 10)
	r.flat = strings.Repeat(r.at(0), 10)
	l, err := ours.open(roomy(10), 10)
	if err != nil {
		t.Fatal(err)
	}
	e := newEntrant("penstock", l, r, 1)
	e.lap(10)
	if keys, err := e.prove(workload{keys: 10}); err == nil {
		t.Errorf("ten calls about one key passed as ten keys; counted %d", keys)
	}
}

func TestAWalkThatEndsEarlyIsCaught(t *testing.T) {
	l, err := ours.open(roomy(10), 10)
	if err != nil {
		t.Fatal(err)
	}
	e := newEntrant("penstock", l, newRing(0, 10), 1)
	e.lap(9)
	if keys, err := e.prove(workload{keys: 10}); err == nil || keys != 9 {
		t.Errorf("nine calls: %d keys, error %v; want 9 and a complaint", keys, err)
	}
}

func TestTheWrongShareOfDenialsIsCaught(t *testing.T) {
	for _, c := range []struct {
		policy policy
		denied bool
	}{{once, false}, {roomy(1), true}} {
		l, err := openFilled(ours, c.policy, 1)
		if err != nil {
			t.Fatal(err)
		}
		e := newEntrant("penstock", l, newRing(0, 1), 1)
		e.lap(10)
		if _, err := e.prove(workload{keys: 1, denied: c.denied}); err == nil {
			t.Errorf("%d of %d calls denied passed as a workload with denied %v", e.tally.denied, e.tally.calls, c.denied)
		}
	}
}

func TestFailedCallsAreCaught(t *testing.T) {
	lim, err := newLimited(penstock.NewMemory(nil), penstock.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	empty := contestant{name: "no key", open: func(policy, int) (limiter, error) { return withEmptyKeys{lim}, nil }}
	if err := checkTellsApart(empty, 10); err == nil {
		t.Error("a limiter whose every call fails passed")
	}
	e := &entrant{name: "penstock", tally: tally{calls: 10, failed: 1}}
	if _, err := e.prove(workload{}); err == nil {
		t.Error("one failed call of ten passed")
	}
}

func TestKeysThatShareAnEntryAreCaught(t *testing.T) {
	const n = 100
	tooSmall := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: n / 2})
	for _, c := range []struct {
		name  string
		store penstock.Store
		calls int
		ok    bool
	}{
		{"room for all", penstock.NewMemory(nil), n, true},
		{"a call too many", penstock.NewMemory(nil), n - 1, false},
		{"room for half", tooSmall, n, false},
	} {
		l, err := newLimited(c.store, tokenBucket(roomy(n)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fill(l, 0, n); err != nil {
			t.Fatal(err)
		}
		if err := checkDebts(l.lim, newRing(0, n), c.calls); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", c.name, err, c.ok)
		}
	}
}

func TestAllocationsAreCounted(t *testing.T) {
	l, err := ours.open(roomy(1), 1)
	if err != nil {
		t.Fatal(err)
	}
	r := newRing(0, 1)
	if got := newEntrant("wasteful", wasteful{l}, r, 1).allocations(); got < 0.99 || got > 1.1 {
		t.Errorf("a limiter that allocates once a call: %.3f allocations, want 1", got)
	}
	if got := newEntrant("floor", newFloor(roomy(1)), r, 1).allocations(); got >= noAllocations {
		t.Errorf("the floor: %.4f allocations, want 0", got)
	}
}

func TestSpentKeysThatAreAdmittedAgainAreCaught(t *testing.T) {
	f, err := newFlood(1000)
	if err != nil {
		t.Fatal(err)
	}
	if asked, admitted := f.askAgain(100); asked != 100 || admitted != 0 {
		t.Errorf("before the flood %d of %d spent keys were admitted, want 0 of 100", admitted, asked)
	}
	if err := f.lim.lim.Reset(context.Background(), f.spent[0]); err != nil {
		t.Fatal(err)
	}
	if _, admitted := f.askAgain(100); admitted != 1 {
		t.Errorf("with one of the keys forgotten, %d were admitted, want 1", admitted)
	}
}

func TestAFloodThatIsNoneIsCaught(t *testing.T) {
	f, err := newFlood(1000)
	if err != nil {
		t.Fatal(err)
	}
	w := newRing(f.offered, 100).walks(1)[0]
	w.steps = 100
	if err := f.proveFlood(tally{calls: 100, denied: 100}, w); err != nil {
		t.Error(err)
	}
	for name, tl := range map[string]tally{
		"a store with room":    {calls: 100, denied: 50},
		"keys that come again": {calls: 200, denied: 200},
		"calls that fail":      {calls: 100, denied: 99, failed: 1},
	} {
		if err := f.proveFlood(tl, w); err == nil {
			t.Errorf("%s passed as a flood of new keys into a full store", name)
		}
	}
	f.spent = f.spent[:10]
	if err := f.checkFull(1000); err == nil {
		t.Error("a store of 1000 that was full with 10 keys passed")
	}
}

func TestALogThatDoesNotTurnIsCaught(t *testing.T) {
	l, err := newTurningLog(10, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.prove(); err == nil {
		t.Error("logs that nobody asked about passed")
	}
	if _, err := l.lap(); err != nil {
		t.Fatal(err)
	}
	if got := l.left[0]; got < l.period {
		t.Errorf("the moments of the first lap leave after %s, before the period of %s", got, l.period)
	}
	l.calls, l.denied = 1000, 1
	if err := l.prove(); err == nil {
		t.Error("a log that denies passed as one that turns over")
	}
	l.denied, l.remaining = 0, 50*1000
	if err := l.prove(); !errors.Is(err, errNotFull) {
		t.Errorf("a log with 50 of 100 places free: %v, want %v", err, errNotFull)
	}
	l.remaining = 1000
	if err := l.prove(); err != nil {
		t.Errorf("a log with one place free: %v", err)
	}
}

func TestKeysThatAreNotLiveAreNotWeighed(t *testing.T) {
	idle := weighable{contestant{name: "idle", open: func(_ policy, n int) (limiter, error) {
		return ours.open(forgetful, n)
	}}, 1}
	if w, err := idle.weigh(100); err == nil {
		t.Errorf("keys that are as good as new were weighed at %.0f bytes", w.Bytes)
	}
	if _, err := weighElsewhere("nobody", 100); err == nil {
		t.Error("a contestant that does not exist was weighed")
	}
}

// ignoringKeys takes every key for the same one.
type ignoringKeys struct{ limiter }

func (b ignoringKeys) take(string) (bool, error) { return b.limiter.take("everybody") }

func (b ignoringKeys) run(_ *walk, calls int) (t tally) {
	for range calls {
		if ok, err := b.take(""); !ok {
			t.refused(err)
		}
	}
	t.calls = calls
	return t
}

// withEmptyKeys loses the key on the way.
type withEmptyKeys struct{ limiter }

func (b withEmptyKeys) take(string) (bool, error) { return b.limiter.take("") }

// wasteful allocates once a call.
type wasteful struct{ limiter }

var waste *[64]byte

func (b wasteful) run(w *walk, calls int) tally {
	for range calls {
		waste = new([64]byte)
	}
	return b.limiter.run(w, calls)
}
