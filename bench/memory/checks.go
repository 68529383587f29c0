package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/penstock-io/penstock"
)

// A benchmark that measures something else than it says is worse than none:
// keys that are all the same one, or calls that are denied and so do no work,
// look wonderfully fast. So every case proves its workload, and a run in which
// one does not ends with a non-zero status.

// prove says how many different keys the entrant asked about, or in what its
// calls differ from the workload they should have been.
func (e *entrant) prove(w workload) (keys int, err error) {
	if e.tally.failed > 0 {
		return 0, fmt.Errorf("%s: %d of %d calls failed", e.name, e.tally.failed, e.tally.calls)
	}
	want := 0
	if w.denied {
		want = e.tally.calls
	}
	if e.tally.denied != want {
		return 0, fmt.Errorf("%s: %d of %d calls were denied, want %d", e.name, e.tally.denied, e.tally.calls, want)
	}
	if _, keyless := e.limiter.(*floor); keyless {
		return 0, nil
	}
	keys, err = distinct(e.walks)
	if err == nil && keys < w.keys {
		err = fmt.Errorf("%s: %d different keys were asked about, want at least %d", e.name, keys, w.keys)
	}
	return keys, err
}

// checkTellsApart proves that a contestant keeps n keys apart, and remembers
// all of them: each passes once, and then none passes again.
func checkTellsApart(c contestant, n int) error {
	l, err := c.open(once, n)
	if err != nil {
		return err
	}
	defer release(l)
	filled, err := fill(l, 0, n)
	if err != nil {
		return err
	}
	if filled.denied != 0 {
		return fmt.Errorf("%s: %d of %d fresh keys were denied, want 0", c.name, filled.denied, n)
	}
	again := l.run(newRing(0, n).walks(1)[0], n)
	if again.denied != n {
		return fmt.Errorf("%s: %d of %d spent keys were denied, want all", c.name, again.denied, n)
	}
	return nil
}

// checkDebts proves that a token bucket of one unit an hour or so owes exactly
// what was asked of it: every key is in debt, and the debts add up to the calls
// made. Keys that share an entry would each show the debts of all.
func checkDebts(lim *penstock.Limiter, r ring, calls int) error {
	inDebt, owed := 0, 0
	for i := range r.len() {
		d, err := lim.Peek(context.Background(), r.at(i))
		if err != nil {
			return err
		}
		if d.Remaining < d.Limit {
			inDebt++
		}
		owed += int(d.Limit - d.Remaining)
	}
	if inDebt != r.len() || owed != calls {
		return fmt.Errorf("penstock: %d of %d keys are in debt and owe %d units, want all, and %d", inDebt, r.len(), owed, calls)
	}
	return nil
}

// noAllocations is what may be seen when a limiter allocates nothing: the
// runtime itself allocates now and then.
const noAllocations = 0.001

// allocations counts the allocations per call over one more lap of a single
// goroutine.
func (e *entrant) allocations() float64 {
	const calls = 50_000
	alone := &entrant{limiter: e.limiter, walks: e.walks[:1]}
	before := mallocs()
	alone.lap(calls)
	after := mallocs()
	e.tally.merge(alone.tally)
	return float64(after-before) / calls
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
