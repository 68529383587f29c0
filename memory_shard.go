package penstock

import (
	"sync"
	"time"
	"unsafe"

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
func (s *shard) take(cl *compiledLimit, hash uint64, now int64, req algorithm.Request, d *Decision) {
	s.takeSlot(cl, s.tables[cl.table].Slot(hash), hash, now, req, d)
}

// takeSlot decides a request of the key with that hash, whose slot is known.
func (s *shard) takeSlot(cl *compiledLimit, slot []uint64, hash uint64, now int64, req algorithm.Request, d *Decision) {
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
func (s *shard) takeNew(cl *compiledLimit, hash uint64, now int64, req algorithm.Request, d *Decision) {
	var fresh [maxSlotWidth]uint64
	s.decide(cl, fresh[:], now, req, d)
	switch {
	case d.Granted > 0 && s.ensureSlot(cl, hash, now, req):
		s.storeNew(cl, hash, now, req, &fresh, d)
	case d.Granted > 0 || !s.slotAvailable(cl.table, hash, now):
		s.takeOverflow(cl, req, d)
	}
}

// storeNew writes the state of a new key into its slot. The first decision had no
// block to record a log or a ring in, so these are decided again.
func (s *shard) storeNew(cl *compiledLimit, hash uint64, now int64, req algorithm.Request, fresh *[maxSlotWidth]uint64, d *Decision) {
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
func (s *shard) takeGrowing(cl *compiledLimit, hash uint64, now int64, req algorithm.Request, d *Decision) {
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
func (s *shard) takeOverflow(cl *compiledLimit, req algorithm.Request, d *Decision) {
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
func (s *shard) takeInPlace(cl *compiledLimit, hash uint64, now int64, req algorithm.Request, d *Decision) {
	var fresh [maxSlotWidth]uint64
	t := &s.tables[cl.table]
	if slot := t.Slot(hash); slot != nil {
		s.decide(cl, slot, now, req, d)
		t.NoteExpiry(hashtable.Expiry(slot))
		return
	}
	s.decide(cl, fresh[:], now, req, d)
}

// isActive reports whether the key has a slot that has not expired.
func (s *shard) isActive(k tableKind, hash uint64, now int64) bool {
	slot := s.tables[k].Slot(hash)
	return slot != nil && hashtable.Expiry(slot) > now
}

// decide decides a request, and updates the slot and its block. It writes the
// decision to the caller's result, because copying so large a struct from
// function to function takes longer than making it.
func (s *shard) decide(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request, d *Decision) {
	switch cl.limit.Algorithm {
	case TokenBucket:
		b, out := cl.token.Decide(bucketOf(slot), now, req)
		putBucket(slot, b)
		d.set(cl, out, cl.token.Balance(max(b.Full-now, 0)))
	case LeakyBucket:
		b, out := cl.leaky.Decide(bucketOf(slot), now, req)
		putBucket(slot, b)
		d.set(cl, out, cl.leaky.Balance(max(b.Full-now, 0)))
	case FixedWindow:
		if req.IsTake() && cl.spend(slot, now, req.Cost, d) {
			return
		}
		c, out := cl.fixed.Decide(counterOf(slot), now, cl.window(now), req)
		putCounter(slot, c)
		d.set(cl, out, cl.fixed.Balance(c, now))
	case SlidingWindow:
		c, out := cl.sliding.Decide(slideOf(cl, slot), now, req)
		putSlide(cl, slot, c)
		d.set(cl, out, cl.sliding.Balance(c, now))
	case RollingWindow:
		if req.IsTake() && cl.spend(slot, now, req.Cost, d) {
			return
		}
		s.decideRolling(cl, slot, now, req, d)
	case SlidingLog:
		s.decideLog(cl, &cl.log, slot, now, req, d)
	case Concurrent:
		s.decidePermits(cl, &cl.permits, slot, now, req, d)
	}
}

// spend decides the most frequent requests: units that are left in a token bucket, a fixed
// window, or the newest bucket of a rolling window. If it is not ok, nothing has changed.
func (cl *compiledLimit) spend(slot []uint64, now, cost int64, d *Decision) (ok bool) {
	switch cl.limit.Algorithm {
	case TokenBucket:
		full, ok := cl.token.SpendOne(int64(slot[expiryWord]), now)
		if !ok || cost != 1 || isOverdrawn(slot[expiryWord]) {
			return false
		}
		slot[expiryWord] = uint64(full)
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: 1}, cl.token.Balance(full-now))
		return true
	case FixedWindow:
		c := counterOf(slot)
		bal, ok := cl.fixed.Spend(&c, now, cl.period, cost)
		if !ok || cl.calendar != nil { // whose windows differ in length
			return false
		}
		slot[countWord] = uint64(c.Used)
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: cost}, bal)
		return true
	case RollingWindow:
		total := int64(slot[countWord])
		bal, ok := cl.rolling.Spend(int64(slot[newestWord]), total, now, cost)
		if !ok || total == 0 { // there may be no ring
			return false
		}
		slot[expiryWord], slot[countWord] = uint64(now+bal.ResetAfter), uint64(total+cost)
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: cost}, bal)
		return true
	}
	return false
}

// spendLog is spend for a sliding log with a block.
func (cl *compiledLimit) spendLog(slot []uint64, l *algorithm.Log, now, cost int64, d *Decision) (ok bool) {
	bal, ok := cl.log.Spend(l, now, cost)
	if ok {
		putLog(cl, slot, l)
		d.set(cl, algorithm.Outcome{Allowed: true, Granted: cost}, bal)
	}
	return ok
}

func (s *shard) decidePermits(cl *compiledLimit, c *algorithm.Concurrent, slot []uint64, now int64, req algorithm.Request, d *Decision) {
	p := s.permits(cl, slot)
	c.Normalize(&p, now)
	out := c.Decide(&p, now, req)
	if p.Words != nil {
		if out.Granted != 0 {
			c.Record(&p, now, req, out.Granted)
		}
		putPermits(slot, &p)
	}
	d.set(cl, out, c.Balance(&p, now))
}

func (s *shard) decideRolling(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request, d *Decision) {
	r, recorded := s.ring(cl, slot)
	cl.rolling.Normalize(&r, now)
	out := cl.rolling.Decide(&r, now, req)
	if recorded && out.Granted != 0 {
		cl.rolling.Record(&r, now, out.Granted)
	}
	d.set(cl, out, cl.rolling.Balance(&r, now))
	if recorded {
		slot[expiryWord] = uint64(cl.rolling.Empty(&r))
		putRing(slot, &r)
	}
}

// decideTruncated decides by a state that should be longer, but cannot grow because
// the store has reached MaxBytes. A log counts up to the length that it has, and no
// more permits are granted than are held.
func (s *shard) decideTruncated(cl *compiledLimit, slot []uint64, now int64, req algorithm.Request, d *Decision) {
	if cl.limit.hasPermits() {
		short, p := cl.permits, s.permits(cl, slot)
		short.Count = min(short.Count, p.Held(now))
		s.decidePermits(cl, &short, slot, now, req, d)
	} else {
		short := cl.log
		short.Count = int64(len(s.log(cl, slot).Times))
		s.decideLog(cl, &short, slot, now, req, d)
	}
	if d.RetryAfter == Never && !req.NeverFits(cl.capacity) {
		d.RetryAfter = time.Duration(cl.period)
	}
}

func (s *shard) decideLog(cl *compiledLimit, w *algorithm.SlidingLog, slot []uint64, now int64, req algorithm.Request, d *Decision) {
	l := s.log(cl, slot)
	w.Normalize(&l, now)
	out := w.Decide(&l, now, req)
	if l.Times != nil {
		if out.Granted != 0 {
			w.Record(&l, now, out.Granted)
		}
		putLog(cl, slot, &l)
	}
	d.set(cl, out, w.Balance(&l, now))
}

// preview returns the outcome of a request, and charges nothing.
func (s *shard) preview(cl *compiledLimit, hash uint64, now int64, req algorithm.Request) (out algorithm.Outcome) {
	var fresh [maxSlotWidth]uint64
	slot := s.tables[cl.table].Slot(hash)
	if slot == nil {
		slot = fresh[:]
	}
	switch cl.limit.Algorithm {
	case TokenBucket:
		_, out = cl.token.Decide(bucketOf(slot), now, req)
	case LeakyBucket:
		_, out = cl.leaky.Decide(bucketOf(slot), now, req)
	case FixedWindow:
		_, out = cl.fixed.Decide(counterOf(slot), now, cl.window(now), req)
	case SlidingWindow:
		_, out = cl.sliding.Decide(slideOf(cl, slot), now, req)
	case RollingWindow:
		r, recorded := s.ring(cl, slot)
		cl.rolling.Normalize(&r, now)
		out = cl.rolling.Decide(&r, now, req)
		if recorded {
			putRing(slot, &r) // Normalize may have moved units
		}
	case SlidingLog:
		l := s.log(cl, slot)
		cl.log.Normalize(&l, now)
		out = cl.log.Decide(&l, now, req)
	case Concurrent:
		p := s.permits(cl, slot)
		cl.permits.Normalize(&p, now)
		out = cl.permits.Decide(&p, now, req)
	}
	return out
}

// ring decodes a rolling window. It is not ok if the slot has no block; then the
// ring is idle and cannot be recorded in.
func (s *shard) ring(cl *compiledLimit, slot []uint64) (r algorithm.Ring, ok bool) {
	b := blockOf(slot)
	if b == 0 {
		return r, false
	}
	return ringOf(cl, slot, s.blocks[cl.table.trust()].Words(b)), true
}

// log decodes a sliding log. If the slot has no block, the log is empty and Times
// is nil.
func (s *shard) log(cl *compiledLimit, slot []uint64) (l algorithm.Log) {
	if b := blockOf(slot); b != 0 {
		l = logOf(cl, slot, s.blocks[cl.table.trust()].Words(b))
	}
	return l
}

// permits decodes the permits of a concurrency limit. If the slot has no block, there
// are none, and Words is nil.
func (s *shard) permits(cl *compiledLimit, slot []uint64) (p algorithm.Permits) {
	if b := blockOf(slot); b != 0 {
		p = permitsOf(slot, s.blocks[cl.table.trust()].Words(b))
	}
	return p
}

// prefetchLog prefetches the two oldest times of a log, which a take reads, and the place of the
// next one. In a full log that is the place of the oldest.
func prefetchLog(l *algorithm.Log) {
	next := l.Head + l.Len
	if next >= len(l.Times) {
		next -= len(l.Times)
	}
	hashtable.Prefetch(unsafe.Pointer(&l.Times[l.Head]))
	hashtable.Prefetch(unsafe.Pointer(&l.Times[min(l.Head+1, len(l.Times)-1)]))
	hashtable.Prefetch(unsafe.Pointer(&l.Times[next]))
}
