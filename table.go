package penstock

import "math"

// A table maps hashes to slots of a few words, by open addressing with linear
// probing. It holds no pointers, so the garbage collector does not look inside.
//
// Word 0 of a slot is the hash; a slot whose hash is 0 is empty. Word 1 is the
// instant at which the entry is as good as new: from then on the slot is free
// space, and nobody needs to know the limit to see that. The other words are
// the entry's own.
//
// A table knows hashes and not keys. Two keys that share all 64 bits share an
// entry: one may pay for the other, or be let off. Among a million keys that
// happens once in 37 million processes, and nobody can bring it about, because
// the hash is seeded anew in every process.
type table struct {
	words      []uint64
	mask       uint64
	width      uint64 // words in a slot
	used       int    // slots that are not empty
	firstStale int64  // no entry is as good as new before this
	purged     int64  // when entries were last looked at for that
}

// minSlots is the size of a table with its first entry.
const minSlots = 16

// find returns the place of an entry in words.
func (t *table) find(hash uint64) (at uint64, ok bool) {
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

// slot returns the words of an entry, or nil.
func (t *table) slot(hash uint64) []uint64 {
	at, held := t.find(hash)
	if !held {
		return nil
	}
	return t.words[at : at+t.width]
}

// large reports whether the table is too large to be at hand in the caches.
func (t *table) large() bool { return t.mask >= 1023 }

// crowded reports whether one more entry needs another array.
func (t *table) crowded() bool {
	return t.used >= len(t.words)/int(t.width)*7/8
}

// add writes a hash into its first empty slot, and returns the place. The
// caller makes sure that the table is not crowded, and that the hash is new.
func (t *table) add(hash uint64) uint64 {
	i := hash & t.mask
	for t.words[i*t.width] != 0 {
		i = (i + 1) & t.mask
	}
	t.words[i*t.width] = hash
	t.used++
	return i * t.width
}

// stale returns the place of an entry that is as good as new, among those that
// a search for the hash passes by. The hash can take that slot over and will be
// found there.
func (t *table) stale(hash uint64, now int64) (at uint64, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	for i := hash & t.mask; t.words[i*t.width] != 0; i = (i + 1) & t.mask {
		if at = i * t.width; t.until(at) <= now {
			return at, true
		}
	}
	return 0, false
}

// until returns when the entry is as good as new. The sign bit is the token
// bucket's own.
func (t *table) until(at uint64) int64 {
	return int64(t.words[at+1] &^ signBit)
}

const signBit = 1 << 63

// relieve makes a crowded table less so. An entry that is as good as new now
// may belong to a key that comes back in a moment, and finds its slot sooner
// than a new one, so entries are dropped at most once a second; otherwise the
// table grows.
func (t *table) relieve(now int64, drop func(slot []uint64)) int {
	if now >= t.purged && now < t.purged+purgeEvery {
		return t.rebuild(keepAll, drop)
	}
	return t.rebuild(now, drop)
}

const (
	purgeEvery = 1_000_000_000
	keepAll    = -1 // a time before which no entry is as good as new
)

// purge drops what is as good as new, and returns how much that was. If nothing
// is, it costs a look at every slot and no more.
func (t *table) purge(now int64, drop func(slot []uint64)) int {
	live, first := t.live(now)
	if live == t.used {
		t.firstStale, t.purged = first, now
		return 0
	}
	return t.rebuild(now, drop)
}

// rebuild moves the entries that still matter into an array of the right size,
// passing each of the others to drop. It returns how many it dropped.
func (t *table) rebuild(now int64, drop func(slot []uint64)) int {
	live, first := t.live(now)
	old := *t
	size := t.sizeFor(live)
	*t = table{
		words:      make([]uint64, size*old.width),
		mask:       size - 1,
		width:      old.width,
		firstStale: first,
		purged:     max(now, old.purged),
	}
	for at := uint64(0); at < uint64(len(old.words)); at += old.width {
		slot := old.words[at : at+old.width]
		switch {
		case slot[0] == 0:
		case old.until(at) > now:
			copy(t.words[t.add(slot[0]):], slot)
		default:
			drop(slot)
		}
	}
	return old.used - t.used
}

// live counts the entries that still matter, and finds the first instant at
// which one of them will not.
func (t *table) live(now int64) (n int, firstStale int64) {
	firstStale = math.MaxInt64
	for at := uint64(0); at < uint64(len(t.words)); at += t.width {
		if until := t.until(at); t.words[at] != 0 && until > now {
			n++
			firstStale = min(firstStale, until)
		}
	}
	return n, firstStale
}

// sizeFor returns how many slots to give to that many entries: room for a third
// more, so that the next rebuild is worth its cost.
func (t *table) sizeFor(live int) uint64 {
	size := uint64(minSlots)
	for uint64(live)*4 > size*3 {
		size *= 2
	}
	return size
}
