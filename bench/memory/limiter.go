package main

// A limiter is an open contender with the state of all its keys.
//
// Each has its own loop in run, though the loops are alike: a shared loop would add an
// interface call that users do not have, which would favour slow limiters.
type limiter interface {
	take(key string) (ok bool, err error) // never ok with an error
	run(w *walk, calls int) counts
}

// A counts is the results of a number of calls.
type counts struct {
	calls, denied, failed int
}

// countRefused counts a call that was denied, or failed with err.
func (t *counts) countRefused(err error) {
	if err != nil {
		t.failed++
	} else {
		t.denied++
	}
}

func (t *counts) add(u counts) {
	t.calls += u.calls
	t.denied += u.denied
	t.failed += u.failed
}

// A contender opens a limiter for n keys.
type contender struct {
	name   string
	module string // whose version is printed
	keyed  bool
	open   func(p benchLimit, n int) (limiter, error)
}

// release stops the background work of a limiter, if any.
func release(l limiter) {
	if c, ok := l.(interface{ close() }); ok {
		c.close()
	}
}

// fill takes each of the n keys from first on once.
func fill(l limiter, first, n int) (counts, error) {
	var t counts
	err := fillKeys(first, n, func(key string) error {
		t.calls++
		ok, err := l.take(key)
		if !ok {
			t.countRefused(err)
		}
		return err
	})
	return t, err
}
