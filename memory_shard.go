package penstock

import (
	"math"
	"sync"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A shard holds the keys whose hashes begin alike, under one lock. Its methods
// are called with the lock held.
type shard struct {
	mu     sync.Mutex
	blocks blocks // beside the lock, because they are asked for with it
	store  *Memory
	places *places // shared with the other shards
	missed int     // requests for a place that found none since the last sweep

	wentShared bool // whether the last decision was the overflow shard's

	// Each table has a cache line of its own, and no two shards share one.
	_      [31]byte
	tables [kinds]table
}

// A shard keeps a table for each width of state, and for each clock.
type kind int

const (
	bucketTable kind = iota // the instant at which a bucket is as good as new
	windowTable             // when it is, and the counts
	clockTable              // the same, on the wall clock
	runTable                // when it is, the run of words that holds the state, and where in it
	grantTable              // when it is forgotten, what was granted, and when to act
	kinds
)

// slotWidths are the words of a slot, hash included.
var slotWidths = [kinds]uint64{bucketTable: 2, windowTable: 3, clockTable: 3, runTable: 6, grantTable: 4}

// maxSlotWidth is the most words that a slot of any kind has.
const maxSlotWidth = 6

func (s *shard) open(m *Memory, p *places) {
	s.store, s.places = m, p
	for k := range s.tables {
		s.tables[k].width = slotWidths[k]
	}
}

// take decides about the key of a hash.
func (s *shard) take(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask, d *Decision) {
	t := &s.tables[cl.kind]
	at, held := t.find(hash)
	if !held {
		s.takeNew(cl, hash, now, ask, d)
		return
	}
	slot := t.words[at : at+t.width]
	if cl.kind == runTable && (slot[2] == 0 || cl.limit.Algorithm == SlidingLog) && !s.hasRoom(cl, slot, ask) {
		s.takeGrowing(cl, hash, now, ask, d)
		return
	}
	s.decide(cl, slot, now, ask, d)
	if ask.Cost == algorithm.Forget {
		s.forget(cl.kind, slot)
	}
	t.firstStale = min(t.firstStale, t.until(at))
}

// takeGrowing decides about a key whose run has to grow for what it asks. If it
// cannot, a key that owes something goes on with the room that it has.
func (s *shard) takeGrowing(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask, d *Decision) {
	grown := s.makeRoom(cl, hash, now, ask)
	t := &s.tables[runTable]
	slot := t.slot(hash) // making room may have moved it
	switch {
	case grown:
		s.decide(cl, slot, now, ask, d)
	case s.owes(runTable, hash, now):
		s.decideCramped(cl, slot, now, ask, d)
	default:
		s.takeShared(cl, ask, d)
		return
	}
	t.firstStale = min(t.firstStale, int64(slot[1]))
}

// takeNew decides about a key that is not held. It needs a place only if it is
// granted something.
func (s *shard) takeNew(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask, d *Decision) {
	var fresh [maxSlotWidth]uint64
	s.decide(cl, fresh[:], now, ask, d)
	switch {
	case d.Granted > 0 && s.hold(cl, hash, now, ask):
		s.take(cl, hash, now, ask, d)
	case d.Granted > 0 || !s.vacant(cl.kind, hash, now):
		s.takeShared(cl, ask, d)
	}
}

// takeShared decides by the bucket that a limit's new keys share when there is
// no place for them. It is only for keys that owe nothing: others would get what
// they have left, and what is shared on top. Where there is not even a place for
// the shared bucket, it denies.
func (s *shard) takeShared(cl *compiledLimit, ask algorithm.Ask, d *Decision) {
	o := &s.store.overflow
	if s == o {
		d.set(cl, cl.noPlace(ask), algorithm.Standing{})
		return
	}
	o.mu.Lock()
	s.store.shared.Add(1)
	s.wentShared = true
	now := s.store.now(cl.kind == clockTable) // others may have been here since
	o.take(cl, cl.sharedHash(), now, ask, d)
	o.mu.Unlock()
}

// noPlace is the verdict when there is no place for a key, nor for all the new
// keys of its limit together.
func (cl *compiledLimit) noPlace(ask algorithm.Ask) algorithm.Verdict {
	switch {
	case ask.Cost <= 0:
		return algorithm.Verdict{Allowed: true}
	case cl.most == 0 || ask.Cost > cl.most && !ask.AtMost:
		return algorithm.Verdict{RetryAfter: algorithm.Never}
	}
	return algorithm.Verdict{RetryAfter: cl.period}
}

// takeHeld decides about a key that has a place, and room there for what it
// asks; one that has none is as good as new, and only looked at.
func (s *shard) takeHeld(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask, d *Decision) {
	var fresh [maxSlotWidth]uint64
	t := &s.tables[cl.kind]
	if slot := t.slot(hash); slot != nil {
		s.decide(cl, slot, now, ask, d)
		t.firstStale = min(t.firstStale, int64(slot[1]&^signBit))
		return
	}
	s.decide(cl, fresh[:], now, ask, d)
}

// verdictOn tells what a key would get, and charges nothing.
func (s *shard) verdictOn(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask) algorithm.Verdict {
	var fresh [maxSlotWidth]uint64
	if slot := s.tables[cl.kind].slot(hash); slot != nil {
		return s.verdict(cl, slot, now, ask)
	}
	return s.verdict(cl, fresh[:], now, ask)
}

// owes reports whether a key has a place and is not as good as new.
func (s *shard) owes(k kind, hash uint64, now int64) bool {
	slot := s.tables[k].slot(hash)
	return slot != nil && int64(slot[1]&^signBit) > now
}

// hold makes sure that a key has a place, with room for what may be granted.
func (s *shard) hold(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask) bool {
	t := &s.tables[cl.kind]
	if t.slot(hash) != nil {
		return s.makeRoom(cl, hash, now, ask)
	}
	at, ok := s.place(cl.kind, hash, now)
	if !ok || cl.kind != runTable {
		return ok
	}
	t.words[at+1] = pin // or else making room would sweep it
	ok = s.makeRoom(cl, hash, now, ask)
	slot := t.slot(hash)
	slot[1] = 0
	if !ok {
		t.firstStale = 0
	}
	return ok
}

// pin, as the instant at which an entry is as good as new, is never reached.
const pin = math.MaxInt64

// makeRoom makes sure that what an ask may be granted can be recorded. It fails
// only when the store holds as many bytes as it may, and no log or ring is left
// that is as good as new. It may move the key's slot.
func (s *shard) makeRoom(cl *compiledLimit, hash uint64, now int64, ask algorithm.Ask) bool {
	if cl.kind != runTable || s.growRun(cl, s.tables[runTable].slot(hash), now, ask) {
		return true
	}
	s.missed++
	grow := func() bool {
		slot := s.tables[runTable].slot(hash)
		return slot != nil && s.growRun(cl, slot, now, ask)
	}
	return s.sweepTables() > 0 && grow() || s.store.sweepUntil(grow)
}

// place finds a slot for a new entry: an empty one while there are places left,
// or else one whose entry is as good as new.
func (s *shard) place(k kind, hash uint64, now int64) (at uint64, ok bool) {
	t := &s.tables[k]
	if s.places.claim() || s.sweep(k, hash, now) && s.places.claim() {
		if t.crowded() {
			s.places.free(t.relieve(now, s.dropper(k)))
		}
		return t.add(hash), true
	}
	if at, ok = t.stale(hash, now); ok {
		slot := t.words[at : at+t.width]
		s.drop(k, slot)
		clear(slot)
		slot[0] = hash
	}
	return at, ok
}

// vacant reports whether place would find one.
func (s *shard) vacant(k kind, hash uint64, now int64) bool {
	return s.places.left() || s.sweep(k, hash, now) && s.places.left() || s.hasStale(k, hash, now)
}

func (s *shard) hasStale(k kind, hash uint64, now int64) bool {
	_, ok := s.tables[k].stale(hash, now)
	return ok
}

// sweep takes back the places of entries that are as good as new, unless one
// lies on the hash's own way and can be taken over. It reports whether there
// were any.
func (s *shard) sweep(k kind, hash uint64, now int64) bool {
	if s.hasStale(k, hash, now) {
		return false
	}
	s.missed++
	return s.sweepTables() > 0 || s.store.sweepNeighbour() > 0
}

// Sweeping a table means a look at every slot. It is done when an entry can
// have become as good as new since the last time, and then at once if the table
// is small, or else after so many nanoseconds, or once so many requests have
// missed that each pays for a few slots only.
const (
	smallTable   = 1024
	sweepEvery   = 10_000_000
	slotsPerMiss = 128
	afterBarren  = 256 // requests for bytes, when a sweep of all shards freed none
)

func (s *shard) sweepTables() (freed int) {
	for k := range s.tables {
		t := &s.tables[k]
		if t.used == 0 {
			continue
		}
		now, slots := s.store.now(kind(k) == clockTable), len(t.words)/int(t.width)
		due := slots <= smallTable || now-t.purged >= sweepEvery || s.missed >= slots/slotsPerMiss
		if due && now >= t.firstStale {
			freed += t.purge(now, s.dropper(kind(k)))
			s.missed = 0
		}
	}
	s.places.free(freed)
	return freed
}

// sweepNeighbour sweeps the next shard, in turn, if nobody is using it.
func (m *Memory) sweepNeighbour() (freed int) {
	s := &m.shards[m.swept.Add(1)%uint32(len(m.shards))]
	if !s.mu.TryLock() {
		return 0
	}
	defer s.mu.Unlock()
	return s.sweepTables()
}

// sweepUntil sweeps one shard after the other until there are bytes to grow by.
// One shard will often not do: logs are fewer than keys, and a page is only free
// when all of its runs are. If no shard does, the next requests look at one only.
func (m *Memory) sweepUntil(grow func() bool) bool {
	tries := len(m.shards)
	if m.barren.Add(-1) > 0 {
		tries = 1
	}
	for ; tries > 0; tries-- {
		if m.sweepNeighbour() > 0 && grow() {
			return true
		}
	}
	if m.barren.Load() <= 0 {
		m.barren.Store(afterBarren)
	}
	return false
}

// drop takes back what an entry holds outside of its slot.
func (s *shard) drop(k kind, slot []uint64) {
	if k == runTable && slot[2] != 0 {
		s.blocks.free(run(slot[2]))
	}
}

// forget makes an entry as good as new.
func (s *shard) forget(k kind, slot []uint64) {
	s.drop(k, slot)
	clear(slot[1:])
}

func (s *shard) dropper(k kind) func(slot []uint64) {
	return func(slot []uint64) { s.drop(k, slot) }
}
