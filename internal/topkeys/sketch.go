package topkeys

import "hash/crc32"

// A sketch is a Space-Saving sketch with weights: it counts the keys of a stream in a fixed
// number of counters. A key without a counter takes over the smallest one, and inherits its
// count as an error. So for each key that has a counter
//
//	count - error ≤ the key's true weight ≤ count
//
// and a key without one has at most the smallest count, which is at most the total weight
// divided by the number of counters.
//
// The counters are in parallel arrays, because a search touches only hashes and counts. All
// memory is allocated in advance, keys included.
type sketch struct {
	hashes []uint64
	counts []uint64
	slots  []slot

	heap []uint16 // slots, the smallest count first: the children of i are 4i+1 … 4i+4
	at   []uint16 // where a slot is in the heap

	index []uint16 // 1 + slot by hash, with linear probing; 0 is empty
	mask  uint64

	used  int
	total uint64
}

const (
	heapWidth = 4

	// keyBytes is how much of a key is kept.
	keyBytes = 176

	// keptDecisions is how many decisions about a key are kept.
	keptDecisions = 8
)

// A slot is what a counter belongs to.
type slot struct {
	source   *Source
	error    uint64
	shadowed uint64
	length   uint32 // of the whole key
	rest     uint32 // checksum of a key that is longer than keyBytes
	decided  uint32 // how many decisions were kept, of which the last are here
	last     [keptDecisions]keptDecision
	key      [keyBytes]byte
}

// A keptDecision is a decision about a key. Numbers that are too large are cut.
type keptDecision struct {
	at        uint32 // milliseconds since the generation began
	cost      uint32
	remaining uint32
	outcome   Outcome
}

func newSketch(counters int) *sketch {
	slots := 4
	for slots < 4*counters {
		slots *= 2
	}
	return &sketch{
		hashes: make([]uint64, counters), counts: make([]uint64, counters), slots: make([]slot, counters),
		heap: make([]uint16, counters), at: make([]uint16, counters),
		index: make([]uint16, slots), mask: uint64(slots - 1),
	}
}

// clear empties the sketch. Slots keep their bytes until they are used again.
func (s *sketch) clear() {
	clear(s.index)
	for i := range s.used {
		s.slots[i].source = nil
	}
	s.used, s.total = 0, 0
}

// floor returns the most that a key without a counter can have.
func (s *sketch) floor() uint64 {
	if s.used < len(s.counts) {
		return 0
	}
	return s.counts[s.heap[0]]
}

// add adds weight to a key, and returns its slot.
func (s *sketch) add(hash uint64, source *Source, key string, weight uint64) *slot {
	s.total += weight
	i, ok := s.find(hash)
	switch {
	case ok:
		s.counts[i] += weight
	case s.used < len(s.slots):
		i = uint16(s.used)
		s.used++
		s.heap[i], s.at[i] = i, i
		s.occupy(i, hash, source, key, 0, weight)
		s.up(int(i))
		return &s.slots[i]
	default:
		i = s.heap[0]
		s.remove(s.hashes[i])
		s.occupy(i, hash, source, key, s.counts[i], weight)
	}
	s.down(int(s.at[i]))
	return &s.slots[i]
}

// occupy gives a slot to a key, which inherits a count.
func (s *sketch) occupy(i uint16, hash uint64, source *Source, key string, inherited, weight uint64) {
	s.hashes[i], s.counts[i] = hash, inherited+weight
	slot := &s.slots[i]
	slot.source, slot.error, slot.shadowed, slot.decided = source, inherited, 0, 0
	slot.length, slot.rest = uint32(len(key)), restOf(key)
	copy(slot.key[:], key)
	s.insert(hash, i)
}

// restOf returns a checksum by which keys with the same beginning are told apart.
func restOf(key string) uint32 {
	if len(key) <= keyBytes {
		return 0
	}
	var sum uint32
	var chunk [256]byte
	for rest := key; len(rest) > 0; {
		n := copy(chunk[:], rest)
		sum = crc32.Update(sum, castagnoli, chunk[:n])
		rest = rest[n:]
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *slot) kept() []byte { return s.key[:min(s.length, keyBytes)] }

// holds reports whether the slot is a key's.
func (s *slot) holds(key string, rest uint32) bool {
	return int(s.length) == len(key) && s.rest == rest && string(s.kept()) == key[:min(len(key), keyBytes)]
}

// keep keeps a decision in place of the oldest.
func (s *slot) keep(d keptDecision) {
	s.last[s.decided%keptDecisions] = d
	s.decided++
}

// The index.

func (s *sketch) find(hash uint64) (slot uint16, ok bool) {
	for i := hash & s.mask; s.index[i] != 0; i = (i + 1) & s.mask {
		if n := s.index[i] - 1; s.hashes[n] == hash {
			return n, true
		}
	}
	return 0, false
}

func (s *sketch) insert(hash uint64, slot uint16) {
	i := hash & s.mask
	for s.index[i] != 0 {
		i = (i + 1) & s.mask
	}
	s.index[i] = slot + 1
}

// remove removes a hash that is in the index, and closes the gap: it moves entries that
// could not be found behind an empty place.
func (s *sketch) remove(hash uint64) {
	gap := hash & s.mask
	for s.hashes[s.index[gap]-1] != hash {
		gap = (gap + 1) & s.mask
	}
	for i := (gap + 1) & s.mask; s.index[i] != 0; i = (i + 1) & s.mask {
		home := s.hashes[s.index[i]-1] & s.mask
		if (i-home)&s.mask >= (i-gap)&s.mask {
			s.index[gap] = s.index[i]
			gap = i
		}
	}
	s.index[gap] = 0
}

// The heap.

func (s *sketch) down(i int) {
	moved := s.heap[i]
	count := s.counts[moved]
	for {
		least := heapWidth*i + 1
		if least >= s.used {
			break
		}
		for child := least + 1; child < min(least+heapWidth, s.used); child++ {
			if s.counts[s.heap[child]] < s.counts[s.heap[least]] {
				least = child
			}
		}
		if s.counts[s.heap[least]] >= count {
			break
		}
		s.place(i, s.heap[least])
		i = least
	}
	s.place(i, moved)
}

func (s *sketch) up(i int) {
	moved := s.heap[i]
	for i > 0 {
		parent := (i - 1) / heapWidth
		if s.counts[s.heap[parent]] <= s.counts[moved] {
			break
		}
		s.place(i, s.heap[parent])
		i = parent
	}
	s.place(i, moved)
}

func (s *sketch) place(i int, slot uint16) {
	s.heap[i], s.at[slot] = slot, uint16(i)
}
