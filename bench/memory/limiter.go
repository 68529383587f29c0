package main

// A limiter is one contestant, holding the state of all its keys.
//
// Each has a loop of its own in run, though all those loops read alike: one
// loop over an interface would charge every call for a jump that no user pays,
// and that would flatter whoever is slow.
type limiter interface {
	take(key string) (ok bool, err error) // never ok with an error
	run(w *walk, calls int) tally
}

// A tally says what became of a number of calls.
type tally struct {
	calls, denied, failed int
}

// refused counts a call that was not allowed: denied, or failed with err.
func (t *tally) refused(err error) {
	if err != nil {
		t.failed++
	} else {
		t.denied++
	}
}

func (t *tally) merge(u tally) {
	t.calls += u.calls
	t.denied += u.denied
	t.failed += u.failed
}

// A contestant knows how to open a limiter that is to hold n keys.
type contestant struct {
	name   string
	module string // where it comes from
	keyed  bool
	open   func(p policy, n int) (limiter, error)
}

// release ends what a limiter keeps running in the background, if anything.
func release(l limiter) {
	if c, ok := l.(interface{ close() }); ok {
		c.close()
	}
}

// fill makes l hold the n keys from first on, by taking each once.
func fill(l limiter, first, n int) (tally, error) {
	var t tally
	err := fillKeys(first, n, func(key string) error {
		t.calls++
		ok, err := l.take(key)
		if !ok {
			t.refused(err)
		}
		return err
	})
	return t, err
}
