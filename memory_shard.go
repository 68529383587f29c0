package penstock

import (
	"math"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/quota"
	"github.com/penstock-io/penstock/internal/slab"
)

// A shard holds the keys whose hashes have the same top bits, under one lock.
// Callers of its methods hold the lock.
type shard struct {
	mu     sync.Mutex
	blocks [trusts]slab.Slab // next to the lock, because both are read together
	store  *Memory
	slots  [trusts]*quota.Quota // shared by several shards
	missed int                  // failed allocations of a slot or block since the last sweep

	usedOverflow bool  // set by takeOverflow
	overflowDue  int64 // set by takeOverflow: when the overflow bucket expires

	// Padding: each table fills one cache line, and no two shards share one.
	_      [24]byte
	tables [tableKinds]hashtable.Table

	idle  [maxSlotWidth]uint64 // see idleSlot
	asked stepRequest          // what a step decides
	_     [16]byte
}

func (s *shard) init(m *Memory, slots, bytes [trusts]*quota.Quota) {
	s.store, s.slots = m, slots
	for i := range s.blocks {
		s.blocks[i].SetQuota(bytes[i])
	}
	for k := range tableKinds {
		s.tables[k].Init(k.slotWidth())
	}
}

// take decides a request of the key with that hash.
func (s *shard) take(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request, d *Decision) {
	s.takeSlot(cl, s.tables[cl.table].Slot(hash), hash, now, req, d)
}

// takeSlot decides a request of the key with that hash, whose slot is known.
func (s *shard) takeSlot(cl *compiledLimit, slot []uint64, hash uint64, now int64, req *algorithm.Request, d *Decision) {
	switch {
	case slot == nil:
		s.takeNew(cl, hash, now, req, d)
		return
	case cl.hasBlocks && !s.hasRoom(cl, slot, req):
		s.takeGrowing(cl, hash, now, req, d)
		return
	}
	s.decide(cl, slot, now, req, d)
	if req.Cost == algorithm.Reset {
		s.clearSlot(cl.table, slot)
	}
	s.tables[cl.table].NoteExpiry(hashtable.Expiry(slot))
}

// takeNew decides a request of a key without a slot. The key needs a slot only if
// it is granted units.
func (s *shard) takeNew(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request, d *Decision) {
	fresh := s.idleSlot()
	s.decide(cl, fresh, now, req, d)
	switch {
	case d.Granted > 0 && s.ensureSlot(cl, hash, now, req):
		s.storeNew(cl, hash, now, req, fresh, d)
	case d.Granted > 0 || !s.slotAvailable(cl.table, hash, now):
		s.takeOverflow(cl, req, d)
	}
}

// storeNew writes the state of a new key into its slot. The first decision had no
// block to record a log or a ring in, so these are decided again.
func (s *shard) storeNew(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request, fresh []uint64, d *Decision) {
	t := &s.tables[cl.table]
	slot := t.Slot(hash)
	if cl.hasBlocks {
		s.decide(cl, slot, now, req, d)
	} else {
		copy(slot[expiryWord:], fresh[expiryWord:])
	}
	t.NoteExpiry(hashtable.Expiry(slot))
}

// takeGrowing decides a request whose units do not fit into the key's block. If
// the block cannot grow, an active key continues with the one it has.
func (s *shard) takeGrowing(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request, d *Decision) {
	grown := s.ensureRoom(cl, hash, now, req)
	t := &s.tables[cl.table]
	slot := t.Slot(hash) // ensureRoom may have moved it
	switch {
	case slot == nil: // it had expired, and was swept to make room
		s.takeNew(cl, hash, now, req, d)
		return
	case grown:
		s.decide(cl, slot, now, req, d)
	case s.isActive(cl.table, hash, now):
		s.decideTruncated(cl, slot, now, req, d)
	default:
		s.takeOverflow(cl, req, d)
		return
	}
	t.NoteExpiry(hashtable.Expiry(slot))
}

// takeOverflow decides by the overflow bucket, which all new keys of a limit
// share when the store is full. Only idle keys may use it: an active key would
// get its own units and those of the overflow bucket. If there is no slot for the
// overflow bucket either, the request is denied.
func (s *shard) takeOverflow(cl *compiledLimit, req *algorithm.Request, d *Decision) {
	o := &s.store.overflow
	if s == o {
		d.set(cl, cl.denyWhenFull(req), algorithm.Balance{})
		return
	}
	o.mu.Lock()
	s.store.overflowDecisions.Add(1)
	s.usedOverflow = true
	now := s.store.now(cl.onWallClock) // other shards may have used it since
	o.take(cl, cl.overflowHash(), now, req, d)
	s.overflowDue = o.dueOf(cl, cl.overflowHash())
	o.mu.Unlock()
}

// takeInPlace decides a request of a key whose slot has room for it. Without a
// slot the key is idle, and the request must be a peek.
func (s *shard) takeInPlace(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request, d *Decision) {
	t := &s.tables[cl.table]
	slot := t.Slot(hash)
	if slot == nil {
		s.decide(cl, s.idleSlot(), now, req, d)
		return
	}
	s.decide(cl, slot, now, req, d)
	t.NoteExpiry(hashtable.Expiry(slot))
}

// idleSlot returns the slot of an idle key, until it is called again. It is not on the stack, because
// what is passed to steps would move to the heap.
func (s *shard) idleSlot() []uint64 {
	clear(s.idle[:])
	return s.idle[:]
}

// isActive reports whether the key has a slot that has not expired.
func (s *shard) isActive(k tableKind, hash uint64, now int64) bool {
	slot := s.tables[k].Slot(hash)
	return slot != nil && hashtable.Expiry(slot) > now
}

// decide decides a request, and updates the slot and its block. It writes the
// decision to the caller's result, because copying so large a struct from
// function to function takes longer than making it.
func (s *shard) decide(cl *compiledLimit, slot []uint64, now int64, req *algorithm.Request, d *Decision) {
	if cl.steps.spend != nil && cl.bucketRate == nil && req.IsTake() && cl.spend(slot, now, req.Cost, d) {
		return // buckets have tried it
	}
	s.ask(req)
	out, bal := cl.steps.decide(s, cl, slot, now)
	d.set(cl, out, bal)
}

// ask sets what the next step decides.
func (s *shard) ask(req *algorithm.Request) *stepRequest {
	a := &s.asked
	a.Request, a.due, a.preview, a.truncated = *req, 0, false, false
	return a
}

// spend decides by the algorithm's spend, which must have one.
func (cl *compiledLimit) spend(slot []uint64, now, cost int64, d *Decision) (ok bool) {
	bal, ok := cl.steps.spend(cl, slot, now, cost)
	if ok {
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: cost}, bal)
	}
	return ok
}

// preview returns the outcome of a request, and charges nothing.
func (s *shard) preview(cl *compiledLimit, slot []uint64, now int64, req *algorithm.Request) algorithm.Outcome {
	if slot == nil {
		slot = s.idleSlot()
	}
	s.ask(req).preview = true
	out, _ := cl.steps.decide(s, cl, slot, now)
	return out
}

// decideTruncated decides by a state that should be longer, but cannot grow because
// the store has reached MaxBytes.
func (s *shard) decideTruncated(cl *compiledLimit, slot []uint64, now int64, req *algorithm.Request, d *Decision) {
	s.ask(req).truncated = true
	out, bal := cl.steps.decide(s, cl, slot, now)
	d.set(cl, out, bal)
	if d.RetryAfter == Never && !req.NeverFits(cl.capacity) {
		d.RetryAfter = time.Duration(cl.period)
	}
}

// The rest of this file allocates slots and blocks to keys, and frees those of keys that have
// become idle.

// pin, as the expiry of a slot, keeps the slot from being swept.
const pin = math.MaxInt64

// ensureSlot makes sure that a key has a slot, with room for what the request may
// be granted.
func (s *shard) ensureSlot(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request) bool {
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
func (s *shard) hasRoom(cl *compiledLimit, slot []uint64, req *algorithm.Request) bool {
	return req.Cost <= 0 || blockOf(slot) != 0 && cl.steps.fits(s, cl, slot, req.Cost)
}

// ensureRoom makes sure that what the request may be granted can be recorded. It
// fails only if the store has reached MaxBytes, or untrusted limits their share of
// it, and no state with a block has expired. It may move the key's slot.
func (s *shard) ensureRoom(cl *compiledLimit, hash uint64, now int64, req *algorithm.Request) bool {
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
func (s *shard) growBlock(cl *compiledLimit, slot []uint64, now int64, req *algorithm.Request) bool {
	return s.hasRoom(cl, slot, req) || cl.steps.grow(s, cl, slot, now, *req)
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
