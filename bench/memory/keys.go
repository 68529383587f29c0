package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"

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
