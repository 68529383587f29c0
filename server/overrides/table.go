package overrides

import (
	"hash/maphash"
	"sync/atomic"
)

// A table finds values by text. It is an open-addressing hash table whose readers need no lock: a
// slot is one pointer, and a slot that was used once is never free again. Changes are made one
// after the other. The zero table is empty.
type table[T any] struct {
	slots atomic.Pointer[slots[T]] // nil if it is empty
}

// A filter in front of the slots answers for 97 of 100 texts without a value: with 100,000 values
// it has 128 KiB, which stay in the caches of the processor, and the slots have 4 MiB.
type slots[T any] struct {
	filter []atomic.Uint64
	items  []atomic.Pointer[item[T]]
	mask   uint64
	used   int // slots that are not free
	values int
}

// An item is a value of a table, or marks where one was.
type item[T any] struct {
	hash  uint64
	text  string
	value *T // nil if it was removed
}

var seed = maphash.MakeSeed()

const minSlots = 64

// newSlots returns slots of which n values use at most three eighths: the slot of most texts
// without a value is then free, and answers at once.
func newSlots[T any](n int) *slots[T] {
	size := minSlots
	for size*3/8 < n {
		size *= 2
	}
	return &slots[T]{filter: make([]atomic.Uint64, size/32), items: make([]atomic.Pointer[item[T]], size), mask: uint64(size - 1)}
}

func (t *table[T]) empty() bool { return t.slots.Load() == nil }

// find returns the value of a text, or nil.
func (t *table[T]) find(text string) *T {
	s := t.slots.Load()
	if s == nil {
		return nil
	}
	hash := maphash.String(seed, text)
	if word, bits := s.filterBits(hash); word.Load()&bits != bits {
		return nil
	}
	if i := s.slot(hash, text).Load(); i != nil {
		return i.value
	}
	return nil
}

// set sets the value of a text, or removes it if it is nil. It returns how many values the table
// has more, or -1. The slots are replaced by more of them, without those of removed values, when
// too few are free.
func (t *table[T]) set(text string, value *T) (added int) {
	switch had := t.find(text) != nil; {
	case value == nil && !had:
		return 0
	case value == nil:
		added = -1
	case !had:
		added = 1
	}
	s := t.slots.Load()
	if s == nil {
		s = newSlots[T](0)
	} else if s.used >= len(s.items)*3/8 {
		s = s.grown()
	}
	s.put(&item[T]{maphash.String(seed, text), text, value})
	if s.values += added; s.values == 0 {
		s = nil
	}
	t.slots.Store(s)
	return added
}

// filterBits returns the word and the bits of a hash in the filter.
func (s *slots[T]) filterBits(hash uint64) (word *atomic.Uint64, bits uint64) {
	return &s.filter[hash>>40&uint64(len(s.filter)-1)], 1<<(hash>>34&63) | 1<<(hash>>28&63) | 1<<(hash>>22&63)
}

// slot returns the slot of a text, or the free one where it would be.
func (s *slots[T]) slot(hash uint64, text string) *atomic.Pointer[item[T]] {
	for i := hash & s.mask; ; i = (i + 1) & s.mask {
		if old := s.items[i].Load(); old == nil || old.hash == hash && old.text == text {
			return &s.items[i]
		}
	}
}

func (s *slots[T]) put(i *item[T]) {
	slot := s.slot(i.hash, i.text)
	if slot.Load() == nil {
		s.used++
	}
	slot.Store(i)
	word, bits := s.filterBits(i.hash)
	word.Or(bits)
}

// grown returns slots for twice as many values.
func (s *slots[T]) grown() *slots[T] {
	larger := newSlots[T](2 * s.values)
	for i := range s.items {
		if old := s.items[i].Load(); old != nil && old.value != nil {
			larger.put(old)
		}
	}
	larger.values = s.values
	return larger
}
