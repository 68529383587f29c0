package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/penstock-io/penstock"
)

// Wrong workloads look fast: keys that are all the same, or calls that are denied and
// so do no work. So every case verifies its workload, and the command exits with a
// non-zero status if one was wrong.

// verify returns how many different keys the calls used, or an error if they differ
// from the workload.
func (e *runner) verify(w workload) (keys int, err error) {
	if e.counts.failed > 0 {
		return 0, fmt.Errorf("%s: %d of %d calls failed", e.name, e.counts.failed, e.counts.calls)
	}
	want := 0
	if w.denied {
		want = e.counts.calls
	}
	if e.counts.denied != want {
		return 0, fmt.Errorf("%s: %d of %d calls were denied, want %d", e.name, e.counts.denied, e.counts.calls, want)
	}
	if _, keyless := e.limiter.(*floor); keyless {
		return 0, nil
	}
	keys, err = distinct(e.walks)
	if err == nil && keys < w.keys {
		err = fmt.Errorf("%s: %d different keys were used, want at least %d", e.name, keys, w.keys)
	}
	return keys, err
}

// checkSeparateKeys checks that a contender has separate state for each of n keys: each
// is allowed once, and then denied.
func checkSeparateKeys(c contender, n int) error {
	return retryAfterHour(time.Now, func() error { return separatesKeys(c, n) })
}

// retryAfterHour repeats a check that has failed while an hour ended: a window on the clock, such
// as a day, may have ended with it, and spent keys are allowed again.
func retryAfterHour(now func() time.Time, check func() error) error {
	began := now()
	err := check()
	if err != nil && !began.Truncate(time.Hour).Equal(now().Truncate(time.Hour)) {
		err = check()
	}
	return err
}

func separatesKeys(c contender, n int) error {
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

// checkDebts checks the debts of a fixture. On a machine that has stalled, units of a limit for
// few keys have come back.
func (fx *fixture) checkDebts() error {
	return checkDebts(fx.ours.lim, fx.ring, fx.calls, int(time.Since(fx.began)/fx.limit.every))
}

// checkDebts checks that a token bucket was charged exactly what was taken, less at most so many
// units that have come back to each key. If none has, every key is in debt, and the debts add up
// to the calls. Keys that share state would each show the debts of all.
func checkDebts(lim *penstock.Limiter, r ring, calls, back int) error {
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
	if back == 0 && inDebt != r.len() || owed > calls || owed < calls-back*r.len() {
		return fmt.Errorf("penstock: %d of %d keys are in debt, by %d units together; want all, and %d, less at most %d for each", inDebt, r.len(), owed, calls, back)
	}
	return nil
}

// noAllocations is the threshold for no allocations: the runtime itself allocates at
// times.
const noAllocations = 0.001

// allocations returns the allocations per call of a single goroutine.
func (e *runner) allocations() float64 {
	const calls = 50_000
	serial := &runner{limiter: e.limiter, walks: e.walks[:1]}
	before := mallocs()
	serial.runCalls(calls)
	after := mallocs()
	e.counts.add(serial.counts)
	return float64(after-before) / calls
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
