package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// keySize is the length of every key: "user:" and fifteen digits.
const keySize = 20

// The seeds of the orders in which keys are walked and filled. They differ, so that the
// memory layout of the fill does not help the walk.
const (
	walkShuffle = 1
	fillShuffle = 2
)

// A ring holds keys in one flat string, in the order in which they are walked.
// Reading the next key costs a few nanoseconds because it lies beside the
// last, while the entry that it names may lie anywhere in a limiter's table.
type ring struct {
	flat  string
	first int // the number in the lowest key
}

// newRing returns a ring of n keys, numbered from first, in shuffled order.
func newRing(first, n int) ring {
	flat := make([]byte, 0, n*keySize)
	for _, i := range shuffled(n, walkShuffle) {
		flat = appendKey(flat, first+int(i))
	}
	return ring{flat: string(flat), first: first}
}

func (r ring) len() int { return len(r.flat) / keySize }

// at returns the i-th key of the walk.
func (r ring) at(i int) string { return r.flat[i*keySize : (i+1)*keySize] }

// walks returns n walks that start evenly spaced around the ring.
func (r ring) walks(n int) []*walk {
	ws := make([]*walk, n)
	for i := range ws {
		start := i * r.len() / n
		ws[i] = &walk{ring: r, start: start, next: start * keySize}
	}
	return ws
}

// A walk goes around a ring, key by key, for one goroutine.
type walk struct {
	ring  ring
	start int // the place of the first key
	next  int // the byte at which the next key begins
	steps int // how many keys were read; updated by the caller
}

// walkTo returns a walk to one key.
func walkTo(key string) *walk { return &walk{ring: ring{flat: key}} }

// key returns the next key. It is small enough to be inlined.
func (w *walk) key() string {
	if w.next == len(w.ring.flat) {
		w.next = 0
	}
	k := w.ring.flat[w.next : w.next+keySize]
	w.next += keySize
	return k
}

// distinct counts, by their text, the different keys that walks have read.
func distinct(walks ...*walk) (count int) {
	seen := make([]bool, walks[0].ring.len())
	for _, w := range walks {
		for i := range min(w.steps, w.ring.len()) {
			n := harness.Must(strconv.Atoi(w.ring.at((w.start + i) % w.ring.len())[len("user:"):]))
			if at := n - w.ring.first; !seen[at] {
				seen[at] = true
				count++
			}
		}
	}
	return count
}

// fillKeys calls fill once for each of the n keys from first on, in an order
// that is not the walk's and with a string that is not shared.
func fillKeys(first, n int, fill func(key string)) {
	var b [keySize]byte
	for _, i := range shuffled(n, fillShuffle) {
		fill(string(appendKey(b[:0], first+int(i))))
	}
}

// appendKey appends the key with number i, such as "user:000000000000042".
func appendKey(b []byte, i int) []byte { return fmt.Appendf(b, "user:%015d", i) }

func shuffled(n int, order uint64) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	rnd := rand.New(rand.NewPCG(order, uint64(n)))
	rnd.Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

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
