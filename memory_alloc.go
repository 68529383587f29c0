package penstock

import (
	"math"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// This file allocates slots and blocks to keys, and frees those of keys that have
// become idle.

// pin, as the expiry of a slot, keeps the slot from being swept.
const pin = math.MaxInt64

// ensureSlot makes sure that a key has a slot, with room for what the request may
// be granted.
func (s *shard) ensureSlot(cl *compiledLimit, hash uint64, now int64, req algorithm.Request) bool {
	t := &s.tables[cl.table]
	if t.Slot(hash) != nil {
		if ok := s.ensureRoom(cl, hash, now, req); ok || t.Slot(hash) != nil {
			return ok
		} // it had expired, and was swept to make room
	}
	slot := s.newSlot(cl.table, hash, now)
	if slot == nil || !cl.hasBlocks {
		return slot != nil
	}
	slot[expiryWord] = pin // keeps ensureRoom from sweeping it
	ok := s.ensureRoom(cl, hash, now, req)
	t.Slot(hash)[expiryWord] = 0
	if !ok {
		t.NoteExpiry(0)
	}
	return ok
}

// newSlot returns a slot for a new entry: a free one while the quota lasts, or
// else that of an expired entry. It returns nil if there is neither.
func (s *shard) newSlot(k tableKind, hash uint64, now int64) []uint64 {
	t, slots := &s.tables[k], s.slots[k.trust()]
	if slots.Acquire(1) || s.sweepFor(k, hash, now) && slots.Acquire(1) {
		if t.Crowded() {
			slots.Release(int64(t.Grow(now, s.onDrop(k))))
		}
		return t.At(t.Insert(hash))
	}
	at, ok := t.Reusable(hash, now)
	if !ok {
		return nil
	}
	slot := t.At(at)
	s.clearSlot(k, slot)
	slot[hashWord] = hash
	return slot
}

// slotAvailable reports whether newSlot would return a slot.
func (s *shard) slotAvailable(k tableKind, hash uint64, now int64) bool {
	slots := s.slots[k.trust()]
	return slots.Available() || s.sweepFor(k, hash, now) && slots.Available() || s.hasReusable(k, hash, now)
}

func (s *shard) hasReusable(k tableKind, hash uint64, now int64) bool {
	_, ok := s.tables[k].Reusable(hash, now)
	return ok
}

// hasRoom reports whether the slot's block can certainly record what the request
// may be granted.
func (s *shard) hasRoom(cl *compiledLimit, slot []uint64, req algorithm.Request) bool {
	b := blockOf(slot)
	if req.Cost <= 0 || b == 0 || cl.limit.Algorithm == RollingWindow {
		return req.Cost <= 0 || b != 0
	}
	size := s.blocks[cl.table.trust()].Size(b)
	if cl.limit.hasPermits() {
		return size >= algorithm.PermitWords*int(cl.permits.Count) || size >= algorithm.PermitWords*(lenOf(slot)+1)
	}
	size -= slackOf(slot)
	return size >= int(cl.log.Count) || int64(size-lenOf(slot)) >= req.Cost
}

// ensureRoom makes sure that what the request may be granted can be recorded. It
// fails only if the store has reached MaxBytes, or untrusted limits their share of
// it, and no state with a block has expired. It may move the key's slot.
func (s *shard) ensureRoom(cl *compiledLimit, hash uint64, now int64, req algorithm.Request) bool {
	if !cl.hasBlocks || s.growBlock(cl, s.tables[cl.table].Slot(hash), now, req) {
		return true
	}
	s.missed++
	grow := func() bool {
		slot := s.tables[cl.table].Slot(hash)
		return slot != nil && s.growBlock(cl, slot, now, req)
	}
	return s.sweep() > 0 && grow() || s.store.sweepUntil(cl.table.trust(), grow)
}

// growBlock gives a slot a block that can record what the request may be granted.
func (s *shard) growBlock(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool {
	switch {
	case s.hasRoom(cl, slot, req):
		return true
	case cl.limit.Algorithm == RollingWindow:
		return s.newBlock(cl, slot, int(cl.rolling.Buckets)+1)
	case cl.limit.hasPermits():
		return s.growPermits(cl, slot, now, req)
	}
	return s.growLog(cl, slot, now, req)
}

// growLog moves a log that is too short for the request into a longer block.
func (s *shard) growLog(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool {
	l := s.log(cl, slot)
	cl.log.Normalize(&l, now)
	need := cl.log.Room(&l, now, max(cl.log.Decide(&l, now, req).Granted, 0))
	if need <= len(l.Times) {
		return true
	}
	old := blockOf(slot)
	if !s.newBlock(cl, slot, min(max(need, 2*l.Len), int(cl.log.Count))) {
		return false
	}
	words := s.blocks[cl.table.trust()].Words(blockOf(slot))
	longer := algorithm.Log{Times: words[:min(len(words), int(cl.log.Count))]}
	l.CopyTo(&longer)
	putLog(cl, slot, &longer)
	if old != 0 {
		s.blocks[cl.table.trust()].Free(old)
	}
	return true
}

// growPermits moves permits to which the request will add some into a longer block.
func (s *shard) growPermits(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request) bool {
	p := s.permits(cl, slot)
	cl.permits.Normalize(&p, now)
	if cl.permits.Decide(&p, now, req).Granted <= 0 {
		return true
	}
	return s.growPermitsTo(cl, slot, &p, cl.permits.Room(&p, now))
}

// growPermitsFor makes room for n more grants to a key whose slot has a block.
func (s *shard) growPermitsFor(cl *compiledLimit, slot []uint64, now int64, n int) bool {
	p := s.permits(cl, slot)
	cl.permits.Normalize(&p, now)
	need := cl.permits.Room(&p, now) + algorithm.PermitWords*(n-1)
	return len(p.Words) >= algorithm.PermitWords*int(cl.permits.Count) || s.growPermitsTo(cl, slot, &p, need)
}

// growPermitsTo moves permits into a block of as many words as are needed, unless they have one.
func (s *shard) growPermitsTo(cl *compiledLimit, slot []uint64, p *algorithm.Permits, need int) bool {
	if need <= len(p.Words) {
		return true
	}
	old := blockOf(slot)
	most := max(need, algorithm.PermitWords*int(cl.permits.Count))
	if !s.newBlock(cl, slot, min(max(need, 2*len(p.Words)), most)) {
		return false
	}
	copy(s.permits(cl, slot).Words, p.Words)
	if old != 0 {
		s.blocks[cl.table.trust()].Free(old)
	}
	return true
}

// newBlock gives a slot a new block of n zero words.
func (s *shard) newBlock(cl *compiledLimit, slot []uint64, n int) bool {
	b := s.blocks[cl.table.trust()].Alloc(n)
	if b == 0 {
		return false
	}
	putBlock(slot, b)
	return true
}

// clearSlot makes the key of a slot idle.
func (s *shard) clearSlot(k tableKind, slot []uint64) {
	s.freeBlock(k, slot)
	clear(slot[expiryWord:])
}

func (s *shard) freeBlock(k tableKind, slot []uint64) {
	if k.hasBlocks() && blockOf(slot) != 0 {
		s.blocks[k.trust()].Free(blockOf(slot))
	}
}

// onDrop returns the function that a table calls for each entry it drops.
func (s *shard) onDrop(k tableKind) func(slot []uint64) {
	return func(slot []uint64) { s.freeBlock(k, slot) }
}

// A sweep reads every slot of a table. It is due if an entry may have expired since the
// last sweep, and the table is small, or sweepEvery nanoseconds have passed, or enough
// requests have missed that each of them pays for at most slotsPerMiss slots.
const (
	smallTable    = 1024
	sweepEvery    = 10_000_000
	slotsPerMiss  = 128
	backoffMisses = 256 // failed allocations after which all shards are swept again
)

// sweepFor sweeps for a new entry, unless newSlot can reuse the slot of an expired one. It
// reports whether that freed any.
func (s *shard) sweepFor(k tableKind, hash uint64, now int64) bool {
	if s.hasReusable(k, hash, now) {
		return false
	}
	s.missed++
	return s.sweep() > 0 || s.store.sweepNext() > 0
}

// sweep drops the expired entries of the tables for which that is due.
func (s *shard) sweep() (freed int) {
	for k := range tableKinds {
		t := &s.tables[k]
		if t.Len() == 0 {
			continue
		}
		now, slots := s.store.now(k.onWallClock()), t.Slots()
		due := slots <= smallTable || now-t.LastPurge() >= sweepEvery || s.missed >= slots/slotsPerMiss
		if due && now >= t.FirstExpiry() {
			dropped := t.Purge(now, s.onDrop(k))
			s.slots[k.trust()].Release(int64(dropped))
			freed += dropped
			s.missed = 0
		}
	}
	return freed
}

// sweepNext sweeps the next shard in turn, unless it is locked.
func (m *Memory) sweepNext() (freed int) {
	s := &m.shards[m.lastSwept.Add(1)%uint32(len(m.shards))]
	if !s.mu.TryLock() {
		return 0
	}
	defer s.mu.Unlock()
	return s.sweep()
}

// sweepUntil sweeps one shard after the other until grow succeeds. One shard is
// often not enough: there are fewer logs than keys, and a page is released only
// with its last block. If all shards are not enough, later calls sweep only one,
// until backoffMisses of them have failed. Failures of untrusted limits are counted
// apart, because their share of the bytes can be used up for longer.
func (m *Memory) sweepUntil(of trust, grow func() bool) bool {
	tries := len(m.shards)
	if left := &m.sweepBackoff[of]; left.Load() > 0 && left.Add(-1) > 0 { // not below zero, or it would wrap around
		tries = 1
	}
	for ; tries > 0; tries-- {
		if m.sweepNext() > 0 && grow() {
			return true
		}
	}
	if m.sweepBackoff[of].Load() <= 0 {
		m.sweepBackoff[of].Store(backoffMisses)
	}
	return false
}
