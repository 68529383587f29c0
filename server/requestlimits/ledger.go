package requestlimits

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/quota"
)

// A byteLedger bounds the bytes that takes under request limits leave behind in a store
// that other programs share, such as Redis. It knows each key that was granted units by a
// hash, with an upper bound of its bytes and of the time for which it lives, and so needs
// at most a fifth of the memory that it accounts for.
//
// A take is entered in two steps: reserve makes room before the store is called, and settle
// enters what was granted, or returns the room. So concurrent takes never exceed the bound.
type byteLedger struct {
	bytes  *quota.Quota // of entries that have not been dropped, and of takes in flight
	prefix int          // bytes that begin every name in the store
	clock  monotime.Clock
	seed   maphash.Seed
	shards [ledgerShards]ledgerShard
}

type ledgerShard struct {
	mu      sync.Mutex
	entries hashtable.Table
	_       [40]byte // no two shards share a cache line
}

const (
	ledgerShards     = 64 // a power of two
	ledgerShardShift = 58

	ledgerSlotWidth = 3 // hash, expiry and bytes
	expiryWord      = 1
	bytesWord       = 2

	// dropEvery is the least time between two searches of a shard for entries that have
	// expired, so that refusals do not cost a search each.
	dropEvery = 100 * time.Millisecond
)

func newByteLedger(maxBytes int64, prefix int, now func() time.Time) *byteLedger {
	l := &byteLedger{bytes: quota.New(maxBytes, nil), prefix: prefix, clock: monotime.New(now), seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].entries.Init(ledgerSlotWidth)
	}
	return l
}

// A ledgerEntry is what a take may leave behind under one name in the store.
type ledgerEntry struct {
	hash     uint64
	bytes    int64
	lifetime int64 // nanoseconds
	reserved int64 // bytes of it that reserve made room for
}

// odd keeps a combined hash from being symmetric in its parts.
const odd = 0x9e3779b97f4a7c15

// newEntry returns an entry of so many bytes under a name that has a request's key.
func (l *byteLedger) newEntry(r *penstock.Request, hash uint64, bytes int64, lifetime time.Duration) ledgerEntry {
	return ledgerEntry{hash: max(hash, 1), bytes: bytes + nameBytes(l.prefix, len(r.Key)), lifetime: int64(lifetime)}
}

// entry returns the entry of a request's state.
func (l *byteLedger) entry(r *penstock.Request) ledgerEntry {
	f := footprintOf(&r.Limit)
	hash := maphash.Comparable(l.seed, r.Limit.Identity())*odd ^ maphash.String(l.seed, r.Key)
	return l.newEntry(r, hash, f.bytes, f.lifetime)
}

// recordEntry returns the entry of the record of a request's ID.
func (l *byteLedger) recordEntry(r *penstock.Request, state uint64) ledgerEntry {
	lifetime := max(IDLifetime(&r.Limit), r.Hold) + expirySlack
	return l.newEntry(r, state*odd^maphash.String(l.seed, r.ID), recordBytes, lifetime)
}

// rollBackEntry returns the entry of the record of a request in a TakeAll. The store makes
// up an ID for it, so no other request has the same.
func (l *byteLedger) rollBackEntry(r *penstock.Request, memory time.Duration) ledgerEntry {
	return l.newEntry(r, rand.Uint64(), recordBytes, memory+expirySlack)
}

func (l *byteLedger) shard(hash uint64) *ledgerShard { return &l.shards[hash>>ledgerShardShift] }

// touch keeps the entry for the lifetime of a take, if it exists: a peek may rewrite a
// state.
func (l *byteLedger) touch(e *ledgerEntry) {
	s := l.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.clock.Now()
	e.extend(s.find(e.hash, now), now)
}

// reserve makes room for an entry, and reports whether there is any. An entry that exists
// needs room only for the bytes by which it grows, and cannot expire before settle.
func (l *byteLedger) reserve(e *ledgerEntry) bool {
	now := l.clock.Now()
	return l.tryReserve(e, now) || l.dropExpired(now) && l.tryReserve(e, now)
}

func (l *byteLedger) tryReserve(e *ledgerEntry, now int64) bool {
	s := l.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.find(e.hash, now)
	e.reserved = e.bytes
	if slot != nil {
		e.reserved = max(e.bytes-int64(slot[bytesWord]), 0)
	}
	if e.reserved > 0 && !l.bytes.Acquire(e.reserved) {
		return false
	}
	e.extend(slot, now)
	return true
}

// settle ends what reserve began. If the take was granted, or may have been, it enters the
// entry.
func (l *byteLedger) settle(e *ledgerEntry, granted bool) {
	unused := e.reserved
	if granted {
		unused -= l.enter(e)
	}
	l.bytes.Release(unused) // negative if the entry has expired meanwhile
	e.reserved = 0
}

// enter writes an entry, and returns by how many bytes that is more than before.
func (l *byteLedger) enter(e *ledgerEntry) (added int64) {
	now := l.clock.Now()
	s := l.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.find(e.hash, now)
	if slot == nil {
		slot = l.insert(s, e, now)
	}
	e.extend(slot, now)
	added = max(e.bytes-int64(slot[bytesWord]), 0)
	slot[bytesWord] += uint64(added)
	return added
}

// insert returns a slot for an entry that does not live, without bytes. It drops expired
// entries when the table must grow.
func (l *byteLedger) insert(s *ledgerShard, e *ledgerEntry, now int64) []uint64 {
	t := &s.entries
	slot := t.Slot(e.hash) // its own, expired
	if slot != nil {
		l.drop(slot)
	} else {
		if t.Crowded() {
			t.Grow(now, l.drop)
		}
		slot = t.At(t.Insert(e.hash))
	}
	slot[expiryWord], slot[bytesWord] = uint64(now+e.lifetime), 0
	t.NoteExpiry(now + e.lifetime)
	return slot
}

// find returns the slot of an entry that lives, or nil.
func (s *ledgerShard) find(hash uint64, now int64) []uint64 {
	slot := s.entries.Slot(hash)
	if slot == nil || hashtable.Expiry(slot) <= now {
		return nil
	}
	return slot
}

// extend lets an entry live as long as a take now would. The slot may be nil.
func (e *ledgerEntry) extend(slot []uint64, now int64) {
	if slot != nil {
		slot[expiryWord] = max(slot[expiryWord], uint64(now+e.lifetime))
	}
}

// drop returns the bytes of an entry that has expired.
func (l *byteLedger) drop(slot []uint64) { l.bytes.Release(int64(slot[bytesWord])) }

// dropExpired drops the entries that have expired, and reports whether there were any.
func (l *byteLedger) dropExpired(now int64) (dropped bool) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		t := &s.entries
		if t.Len() > 0 && now >= t.FirstExpiry() && now-t.LastPurge() >= int64(dropEvery) {
			dropped = t.Purge(now, l.drop) > 0 || dropped
		}
		s.mu.Unlock()
	}
	return dropped
}
