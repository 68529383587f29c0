package penstock

import (
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/slab"
)

// This file encodes the state of a key into the words of a slot, and decodes it. A
// key without a slot is idle: its bucket is full, its window empty. A slot of zeroes
// decodes to an idle state too.

// A tableKind is one of the tables of a shard. States with the same width and the
// same clock share a table. Untrusted limits have tables of their own, so what they
// use can be counted without a mark in each slot.
type tableKind int

const (
	bucketTable tableKind = 2 * iota // token and leaky buckets
	windowTable                      // fixed windows from the first request, sliding windows
	clockTable                       // fixed windows on the wall clock
	ringTable                        // rolling windows, whose counts are in a block of words
	logTable                         // sliding logs and concurrency limits, which are in a block but for their length
	idTable                          // grants under a Request.ID
	tableKinds

	// untrustedTable is added to a kind.
	untrustedTable tableKind = 1
)

func (k tableKind) onWallClock() bool { return k&^untrustedTable == clockTable }
func (k tableKind) hasBlocks() bool   { return k&^untrustedTable == ringTable || k.readsBlock() }

// readsBlock reports whether every decision reads the block of its slot.
func (k tableKind) readsBlock() bool { return k&^untrustedTable == logTable }

// trust returns the index of what tables of trusted limits share, and those of
// untrusted ones.
func (k tableKind) trust() trust { return trust(k & untrustedTable) }

// A trust says for which limits a quota or a slab is.
type trust int

const (
	trusted   trust = 0
	untrusted trust = trust(untrustedTable)
	trusts          = 2
)

// idTableOf returns the table of the records of a limit.
func idTableOf(cl *compiledLimit) tableKind { return idTable | cl.table&untrustedTable }

// tableKindOf returns the table that holds the states of a normal limit.
func tableKindOf(l Limit) tableKind {
	if l.Untrusted {
		l.Untrusted = false
		return tableKindOf(l) | untrustedTable
	}
	switch l.Algorithm {
	case TokenBucket, LeakyBucket:
		return bucketTable
	case RollingWindow:
		return ringTable
	case SlidingLog, Concurrent:
		return logTable
	case FixedWindow:
		if l.Align != AlignFirst {
			return clockTable
		}
	}
	return windowTable
}

// slotWidth returns the words per slot, including the hash.
func (k tableKind) slotWidth() uint64 {
	return [...]uint64{bucketTable: 2, windowTable: 3, clockTable: 3, ringTable: 6, logTable: 4, idTable: 6}[k&^untrustedTable]
}

const maxSlotWidth = 6

// The words of a slot. The hash table uses the first two; see [hashtable.Table].
const (
	hashWord   = 0
	expiryWord = 1

	countWord  = 2 // windowTable, clockTable, ringTable: the units used
	newestWord = 3 // ringTable: number of the newest bucket

	grantedWord = 2 // idTable: units charged; flagged if the overflow bucket was charged
	actAtWord   = 3 // idTable: when to act; flagged if refunded
	owedWord    = 4 // idTable: of the units charged, those that are paid back at due
	dueWord     = 5 // idTable: when, on the clock of the key's state
)

// flagBit is the top bit of a word. No time or count needs it.
const flagBit = hashtable.Flag

// A bucket is stored as the instant at which it is full, flagged if it is overdrawn.
func bucketOf(slot []uint64) algorithm.Bucket {
	return algorithm.Bucket{Full: int64(slot[expiryWord] &^ flagBit), Overdrawn: slot[expiryWord]&flagBit != 0}
}

func putBucket(slot []uint64, b algorithm.Bucket) {
	slot[expiryWord] = uint64(b.Full)
	if b.Overdrawn {
		slot[expiryWord] |= flagBit
	}
}

// isOverdrawn is for the expiry word alone, which is the whole state of a bucket
// that is not overdrawn: the instant at which it is full.
func isOverdrawn(full uint64) bool { return full >= flagBit }

// A fixed window is stored as its end, and the units used, flagged if they are
// overdrawn.
func counterOf(slot []uint64) algorithm.Counter {
	return algorithm.Counter{
		End:       int64(slot[expiryWord]),
		Used:      int64(slot[countWord] &^ flagBit),
		Overdrawn: slot[countWord]&flagBit != 0,
	}
}

func putCounter(slot []uint64, c algorithm.Counter) {
	slot[expiryWord], slot[countWord] = uint64(c.End), uint64(c.Used)
	if c.Overdrawn {
		slot[countWord] |= flagBit
	}
}

// A sliding window is stored as the end of the window after the current one, when
// it is empty, and two counts of 32 bits, flagged if they are overdrawn.
func slideOf(cl *compiledLimit, slot []uint64) algorithm.Slide {
	return algorithm.Slide{
		Previous:  int64(slot[countWord] &^ flagBit >> 32),
		Current:   int64(uint32(slot[countWord])),
		End:       int64(slot[expiryWord]) - cl.period,
		Overdrawn: slot[countWord]&flagBit != 0,
	}
}

func putSlide(cl *compiledLimit, slot []uint64, c algorithm.Slide) {
	slot[expiryWord], slot[countWord] = 0, uint64(c.Previous)<<32|uint64(c.Current)
	if c.Overdrawn {
		slot[countWord] |= flagBit
	}
	if c.End != 0 {
		slot[expiryWord] = uint64(c.End + cl.period)
	}
}

// The last two words of a slot with a block are the block, or 0 if the key is idle, and a
// position: of a ring the index of the newest count, of a log the index of the oldest time, the
// slack and the length, of permits the number of grants.
func blockOf(slot []uint64) slab.Block     { return slab.Block(slot[len(slot)-2]) }
func putBlock(slot []uint64, b slab.Block) { slot[len(slot)-2] = uint64(b) }
func positionOf(slot []uint64) uint64      { return slot[len(slot)-1] }
func putPosition(slot []uint64, p uint64)  { slot[len(slot)-1] = p }

// A rolling window is stored as a ring of counts in a block. In place of the newest count the
// block has the sum of the others, so that a take from the newest bucket changes only the
// total, and does not read the block. A ring that is decoded must be put back.
func ringOf(cl *compiledLimit, slot []uint64, words []int64) algorithm.Ring {
	r := algorithm.Ring{
		Head:   firstOf(slot),
		Newest: int64(slot[newestWord]),
		Total:  int64(slot[countWord]),
		Counts: words[:cl.rolling.Buckets+1],
	}
	r.Counts[r.Head] = r.Total - r.Counts[r.Head]
	return r
}

// putRing writes everything but the expiry.
func putRing(slot []uint64, r *algorithm.Ring) {
	r.Counts[r.Head] = r.Total - r.Counts[r.Head]
	slot[countWord], slot[newestWord] = uint64(r.Total), uint64(r.Newest)
	putPosition(slot, uint64(r.Head)<<32)
}

// A sliding log is stored as a ring of times in a block. It expires one period after the newest.
// Blocks come in certain sizes, and the slack is what the ring leaves of one: a full ring without
// free places writes each new time where the oldest was, and so into the line that it has read.
func logOf(cl *compiledLimit, slot []uint64, words []int64) algorithm.Log {
	return algorithm.Log{
		Head:   firstOf(slot),
		Len:    lenOf(slot),
		Newest: int64(slot[expiryWord]) - cl.period,
		Times:  words[:len(words)-slackOf(slot)],
	}
}

func putLog(cl *compiledLimit, slot []uint64, l *algorithm.Log) {
	slot[expiryWord] = uint64(cl.log.Empty(l))
	slack := cap(l.Times) - len(l.Times)
	putPosition(slot, uint64(l.Head)<<32|uint64(slack)<<16|uint64(l.Len))
}

// Permits are stored in a block, and expire with the last of them.
func permitsOf(slot []uint64, words []int64) algorithm.Permits {
	return algorithm.Permits{Len: min(lenOf(slot), len(words)/algorithm.PermitWords), Words: words}
}

func putPermits(slot []uint64, p *algorithm.Permits) {
	slot[expiryWord] = uint64(p.Empty())
	putPosition(slot, uint64(p.Len))
}

// The parts of a position. No log has more than maxLogCount times, and no key more grants of
// permits than maxConcurrentCount.
func firstOf(slot []uint64) int { return int(positionOf(slot) >> 32) }
func slackOf(slot []uint64) int { return int(uint16(positionOf(slot) >> 16)) }
func lenOf(slot []uint64) int   { return int(uint16(positionOf(slot))) }

// An idRecord is a grant under a [Request.ID].
type idRecord struct {
	expiry   int64
	grant    algorithm.Grant
	actAt    int64
	overflow bool // whether the overflow bucket was charged
	refunded bool // a second refund has no effect
}

func recordOf(slot []uint64) idRecord {
	return idRecord{
		expiry: int64(slot[expiryWord]),
		grant: algorithm.Grant{
			Units: int64(slot[grantedWord] &^ flagBit),
			Owed:  int64(slot[owedWord]),
			Due:   int64(slot[dueWord]),
		},
		actAt:    int64(slot[actAtWord] &^ flagBit),
		overflow: slot[grantedWord]&flagBit != 0,
		refunded: slot[actAtWord]&flagBit != 0,
	}
}

func putRecord(slot []uint64, r *idRecord) {
	slot[expiryWord], slot[grantedWord], slot[actAtWord] = uint64(r.expiry), uint64(r.grant.Units), uint64(r.actAt)
	slot[owedWord], slot[dueWord] = uint64(r.grant.Owed), uint64(r.grant.Due)
	if r.overflow {
		slot[grantedWord] |= flagBit
	}
	if r.refunded {
		slot[actAtWord] |= flagBit
	}
}
