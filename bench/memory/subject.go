package main

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A subject is a limiter that is measured, with the walks of its goroutines.
type subject struct {
	*harness.Load
	keyed bool
	walks []*walk
}

func newSubject(name string, l limiter, r ring, goroutines int) *subject {
	_, isFloor := l.(*floor)
	s := &subject{walks: r.walks(goroutines), keyed: !isFloor}
	s.Load = harness.NewLoad(name, goroutines, nil, func(g, _, calls int) harness.Counts {
		t := l.run(s.walks[g], calls)
		s.walks[g].steps += t.Calls
		return t
	})
	return s
}

// takeTurns calibrates all subjects to rounds of about the given length, with at least so many
// calls, so that enough keys are used, and runs them in turns.
func takeTurns(rounds int, length time.Duration, least int, subjects []*subject) {
	for _, s := range subjects {
		s.Calibrate(length, least+len(s.walks))
	}
	harness.TakeTurns(rounds, subjects...)
}

const (
	// noAllocations is the threshold for no allocations: the runtime itself allocates at times.
	noAllocations = 0.001

	// allocationCalls is during how many calls allocations are counted.
	allocationCalls = 50_000
)

// Wrong workloads look fast: keys that are all the same, or calls that are denied and
// so do no work. So every case verifies its workload, and the command exits with a
// non-zero status if one was wrong.

// A workload is what must have been measured: at least so many different keys, and either every call
// denied or none.
type workload struct {
	keys   int
	denied bool
}

// verify returns how many different keys the calls used, or ends the case if they differ from the
// workload.
func (s *subject) verify(w workload) (keys int) {
	harness.Check(s.Total.Verify(s.Name, 0, w.denied))
	if !s.keyed {
		return 0
	}
	if keys = distinct(s.walks...); keys < w.keys {
		harness.Failf("%s: %d different keys were used, want at least %d", s.Name, keys, w.keys)
	}
	return keys
}

// checkSeparateKeys checks that a library has separate state for each of n keys: each
// is allowed once, and then denied.
func checkSeparateKeys(l library, n int) {
	retryAfterHour(time.Now, func() {
		opened := l.open(once, n)
		defer release(opened)
		l.visit(opened, n, 0)
		if again := opened.run(newRing(0, n).walks(1)[0], n); again.Denied != n {
			harness.Failf("%s: %d of %d spent keys were denied, want all", l.name, again.Denied, n)
		}
	})
}

// retryAfterHour repeats a check that has failed while an hour ended: a window on the clock, such
// as a day, may have ended with it, and spent keys are allowed again.
func retryAfterHour(now func() time.Time, check func()) {
	began := now()
	err := harness.Try(check)
	if err != nil && !began.Truncate(time.Hour).Equal(now().Truncate(time.Hour)) {
		err = harness.Try(check)
	}
	harness.Check(err)
}

// checkHeld checks that a store holds so many keys, and that none shares state with others.
func checkHeld(store *penstock.Memory, keys int) {
	if s := store.Stats(); s.Keys != int64(keys) || s.OverflowDecisions > 0 {
		harness.Failf("penstock: the store holds %d keys, want %d; %d decisions were of no key of their own", s.Keys, keys, s.OverflowDecisions)
	}
}
