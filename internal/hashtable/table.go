// Package hashtable implements a hash table whose entries expire. It contains no
// pointers, so the garbage collector does not scan it.
package hashtable

import "math"

// A Table maps hashes to slots of a few words, by open addressing with linear
// probing.
//
// Word 0 of a slot is the hash; 0 means that the slot is empty. Word 1 is the
// time at which the entry expires. From then on the slot can be reused, without
// knowing anything else about the entry. All other words belong to the owner of the
// table.
//
// A table stores hashes, not keys. Two keys with the same 64-bit hash share an
// entry, so one may be charged for the other, or admitted in its place. With a
// million keys that happens once in 37 million processes. Callers seed the hash
// with a secret, so an attacker cannot choose keys that collide.
type Table struct {
	words       []uint64
	mask        uint64
	width       uint64 // words in a slot
	used        int    // slots that are not empty
	firstExpiry int64  // no entry expires earlier
	purged      int64  // when expired entries were last dropped
}

const (
	minSlots   = 16   // of a table that is not empty
	largeSlots = 1024 // from which a table may not fit into the processor's caches

	purgeEvery = 1_000_000_000 // nanoseconds
	keepAll    = -1            // a time at which no entry has expired
)

// Init makes t an empty table whose slots have width words.
func (t *Table) Init(width uint64) { *t = Table{width: width} }

// Len returns the number of slots in use, including those of expired entries.
func (t *Table) Len() int { return t.used }

// Slots returns the number of slots, including empty ones.
func (t *Table) Slots() int { return len(t.words) / int(t.width) }

// Large reports whether the table may exceed the processor's caches, so that
// [Table.Prefetch] helps.
func (t *Table) Large() bool { return t.mask >= largeSlots-1 }

// Find returns the position of an entry, for [Table.At].
func (t *Table) Find(hash uint64) (at uint64, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	for i := hash & t.mask; ; i = (i + 1) & t.mask {
		at = i * t.width
		switch t.words[at] {
		case hash:
			return at, true
		case 0:
			return at, false
		}
	}
}

// At returns the slot at a position.
func (t *Table) At(at uint64) []uint64 { return t.words[at : at+t.width] }

// Slot returns the slot of an entry, or nil.
func (t *Table) Slot(hash uint64) []uint64 {
	at, ok := t.Find(hash)
	if !ok {
		return nil
	}
	return t.words[at : at+t.width]
}

// Word returns one word of an entry's slot, or nil. It is faster than Slot.
func (t *Table) Word(hash, i uint64) *uint64 {
	at, ok := t.Find(hash)
	if !ok {
		return nil
	}
	return &t.words[at+i]
}

// All yields the slots in use, including those of expired entries.
func (t *Table) All(yield func(slot []uint64) bool) {
	for at := uint64(0); at < uint64(len(t.words)); at += t.width {
		if slot := t.At(at); slot[0] != 0 && !yield(slot) {
			return
		}
	}
}

// Crowded reports whether the table must [Table.Grow] before the next Insert.
func (t *Table) Crowded() bool { return t.used >= len(t.words)/int(t.width)*7/8 }

// Insert writes a hash to its first empty slot and returns the position. The
// table must not be crowded and the hash must be new.
func (t *Table) Insert(hash uint64) (at uint64) {
	i := hash & t.mask
	for t.words[i*t.width] != 0 {
		i = (i + 1) & t.mask
	}
	t.words[i*t.width] = hash
	t.used++
	return i * t.width
}

// Reusable returns the position of an expired entry on the probe sequence of a
// hash. If the hash is written there, Find will find it.
func (t *Table) Reusable(hash uint64, now int64) (at uint64, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	for i := hash & t.mask; t.words[i*t.width] != 0; i = (i + 1) & t.mask {
		if at = i * t.width; t.expiry(at) <= now {
			return at, true
		}
	}
	return 0, false
}

// Expiry returns when the entry in a slot expires.
func Expiry(slot []uint64) int64 { return int64(slot[1]) }

func (t *Table) expiry(at uint64) int64 { return int64(t.words[at+1]) }

// NoteExpiry must be called with an entry's expiry each time it has been written.
func (t *Table) NoteExpiry(expiry int64) { t.firstExpiry = min(t.firstExpiry, expiry) }

// FirstExpiry returns a time before which no entry expires.
func (t *Table) FirstExpiry() int64 { return t.firstExpiry }

// LastPurge returns the time of the last Purge.
func (t *Table) LastPurge() int64 { return t.purged }

// Grow makes room in a crowded table. It calls drop for each entry that it drops,
// and returns how many. It drops expired entries at most once a second, and
// otherwise only enlarges the table: a key whose entry has just expired often
// returns soon, and its old slot is cheaper to find than a new one.
func (t *Table) Grow(now int64, drop func(slot []uint64)) int {
	if now >= t.purged && now < t.purged+purgeEvery {
		return t.rebuild(keepAll, drop)
	}
	return t.rebuild(now, drop)
}

// Purge drops the expired entries, calls drop for each, and returns how many
// there were. If there are none, it only reads every slot.
func (t *Table) Purge(now int64, drop func(slot []uint64)) int {
	live, first := t.live(now)
	if live == t.used {
		t.firstExpiry, t.purged = first, now
		return 0
	}
	return t.rebuild(now, drop)
}

// rebuild moves the live entries to an array of the right size, and calls drop
// for each of the others. It returns how many it dropped.
func (t *Table) rebuild(now int64, drop func(slot []uint64)) int {
	live, first := t.live(now)
	old := *t
	size := t.sizeFor(live)
	*t = Table{
		words:       make([]uint64, size*old.width),
		mask:        size - 1,
		width:       old.width,
		firstExpiry: first,
		purged:      max(now, old.purged),
	}
	for at := uint64(0); at < uint64(len(old.words)); at += old.width {
		slot := old.words[at : at+old.width]
		switch {
		case slot[0] == 0:
		case old.expiry(at) > now:
			copy(t.words[t.Insert(slot[0]):], slot)
		default:
			drop(slot)
		}
	}
	return old.used - t.used
}

// live returns the number of live entries, and the time at which the first of
// them expires.
func (t *Table) live(now int64) (n int, firstExpiry int64) {
	firstExpiry = math.MaxInt64
	for at := uint64(0); at < uint64(len(t.words)); at += t.width {
		if expiry := t.expiry(at); t.words[at] != 0 && expiry > now {
			n++
			firstExpiry = min(firstExpiry, expiry)
		}
	}
	return n, firstExpiry
}

// sizeFor returns the number of slots for that many entries: at least a third
// more, so that the next rebuild is worth its cost.
func (t *Table) sizeFor(live int) uint64 {
	size := uint64(minSlots)
	for uint64(live)*4 > size*3 {
		size *= 2
	}
	return size
}
