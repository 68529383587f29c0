// Package setassoc implements the index of a set-associative cache: a fixed
// number of small sets, each holding the few entries whose hashes have the same
// low bits. Memory is bounded, a lookup touches one set, and each set can have
// its own lock.
package setassoc

// Ways is how many entries a set holds.
const Ways = 4

// A Table is an array of sets. S is the type of a set, with room for [Ways]
// entries, or of any other data kept per set.
type Table[S any] struct {
	sets []S
	mask uint64
}

// New returns a table for at least that many entries. The number of sets is a
// power of two.
func New[S any](entries int) Table[S] {
	n := 1
	for n < (entries+Ways-1)/Ways {
		n *= 2
	}
	return Table[S]{sets: make([]S, n), mask: uint64(n - 1)}
}

// Of returns the set of a hash.
func (t *Table[S]) Of(hash uint64) *S { return &t.sets[hash&t.mask] }

// All returns all sets.
func (t *Table[S]) All() []S { return t.sets }
