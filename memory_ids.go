package penstock

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// An idTake is a request under an ID: its limit, where the states of its key and of the
// record are, and the time.
type idTake struct {
	limit     *compiledLimit
	hash, id  uint64 // of the key, and of the record
	now, mono int64  // on the clock of the limit, and on the monotonic clock
}

// takeWithID decides a request with an ID. The record of the grant is in the
// shard of its key, so charge and record are written under one lock.
func (m *Memory) takeWithID(cl *compiledLimit, r *Request, d *Decision) error {
	t := idTake{limit: cl, hash: m.hashOf(cl, r.Key)}
	t.id = m.hashOfID(t.hash, r.ID)
	s := m.shard(t.hash)
	s.mu.Lock()
	s.prefetchWithID(cl, t.hash, t.id)
	t.now, t.mono = m.clocks(cl.table)
	err := s.takeWithID(&t, r, d)
	s.mu.Unlock()
	return err
}

// prefetchWithID prefetches the slots of a key and of a record, so that a request waits
// for both at once.
func (s *shard) prefetchWithID(cl *compiledLimit, h, id uint64) {
	if t := &s.tables[idTableOf(cl)]; t.Len() > 0 {
		t.Prefetch(id)
	}
	if t := &s.tables[cl.table]; t.Len() > 0 {
		t.Prefetch(h)
	}
}

func (s *shard) takeWithID(t *idTake, r *Request, d *Decision) error {
	slot := s.tables[idTableOf(t.limit)].Slot(t.id)
	known := slot != nil && hashtable.Expiry(slot) > t.mono
	switch {
	case !known && r.Settle:
		s.peekID(t, d) // as a denial, it corrects a state from the future
		*d = Decision{}
		return errNotRemembered
	case r.Settle:
		s.settleID(t, r.Cost, slot, d)
	case r.Cost >= 0 && !known:
		return s.takeNewID(t, r, slot, d)
	case r.Cost < 0 && known:
		s.refundID(t, r.Cost, slot, d)
	case known:
		s.repeatID(t, recordOf(slot), d)
	default: // there is nothing to refund
		s.peekID(t, d)
	}
	return nil
}

// peekID writes the state of the key, and charges nothing.
func (s *shard) peekID(t *idTake, d *Decision) {
	s.take(t.limit, t.hash, t.now, &algorithm.Request{}, d)
}

// hashOfID returns the hash of an ID under a key with that hash; never 0.
func (m *Memory) hashOfID(h uint64, id string) uint64 {
	return max(h*0x9e3779b97f4a7c15^m.sum(id), 1)
}

// takePermits takes, renews or releases permits of a concurrency limit. They are
// their own record: if the overflow bucket granted them, they stay in it, even if
// their key has a slot by now.
func (m *Memory) takePermits(cl *compiledLimit, r *Request) (d Decision) {
	h := m.hashOf(cl, r.Key)
	req := r.forAlgorithm()
	req.ID = m.hashOfID(h, r.ID)
	s := m.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.overflowHolds(cl, req.ID) {
		s.takeOverflow(cl, &req, &d)
		return d
	}
	s.take(cl, h, m.now(cl.onWallClock), &req, &d)
	return d
}

// overflowHolds reports whether the overflow bucket of a limit holds permits under an ID.
func (m *Memory) overflowHolds(cl *compiledLimit, id uint64) bool {
	if m.overflowDecisions.Load() == 0 && !m.overflowRestored {
		return false
	}
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	return m.overflow.holds(cl, cl.overflowHash(), id, m.now(cl.onWallClock))
}

// holds reports whether the key with that hash holds permits under an ID.
func (s *shard) holds(cl *compiledLimit, hash, id uint64, now int64) bool {
	slot := s.tables[cl.table].Slot(hash)
	if slot == nil {
		return false
	}
	p := s.permits(cl, slot)
	return p.Holds(id, now)
}

// recordSlot returns the slot of a record that has not expired, or nil.
func (s *shard) recordSlot(cl *compiledLimit, id uint64, mono int64) []uint64 {
	slot := s.tables[idTableOf(cl)].Slot(id)
	if slot == nil || hashtable.Expiry(slot) <= mono {
		return nil
	}
	return slot
}

// takeNewID takes under an ID without a record. It allocates the record before it
// charges anything: without a record, a retry would be charged again. The slot is that of
// a record that has expired, or nil.
func (s *shard) takeNewID(t *idTake, r *Request, slot []uint64, d *Decision) error {
	k := idTableOf(t.limit)
	if slot == nil {
		slot = s.newSlot(k, t.id, t.mono)
	}
	if slot == nil {
		return errNoRecord
	}
	lifetime := t.limit.lifetimeOf(r)
	slot[expiryWord] = uint64(t.mono + lifetime)
	s.usedOverflow = false
	req := r.forAlgorithm()
	due, moved := s.charge(t.limit, t.hash, t.now, &req, d)
	if moved {
		slot = s.tables[k].Slot(t.id) // or nil, if it was swept after a short lifetime
	}
	if slot != nil {
		s.putNewRecord(slot, due, t.mono, lifetime, d)
		s.tables[k].NoteExpiry(hashtable.Expiry(slot))
	}
	return nil
}

// charge decides a request of a key, and returns when time will have paid back what it
// charged, and whether slots may have moved.
func (s *shard) charge(cl *compiledLimit, h uint64, now int64, req *algorithm.Request, d *Decision) (due int64, moved bool) {
	t := &s.tables[cl.table]
	slot := t.Slot(h)
	if slot == nil || cl.hasBlocks {
		s.take(cl, h, now, req, d)
		return s.dueOf(cl, h), true
	}
	s.decide(cl, slot, now, req, d)
	t.NoteExpiry(hashtable.Expiry(slot))
	return algorithm.RoundUp(hashtable.Expiry(slot), cl.tick), false
}

// lifetimeOf returns how long a grant to the request is remembered.
func (cl *compiledLimit) lifetimeOf(r *Request) int64 {
	return max(cl.idLifetime, algorithm.RoundUp(int64(r.Hold), cl.tick))
}

// errNoRecord is returned if the store has no room for a record.
var errNoRecord = fmt.Errorf("penstock: memory: store is full, cannot record the ID: %w", ErrUnavailable)

// putNewRecord records a decision on units that time will have paid back at due. The
// record of a denial has already expired.
func (s *shard) putNewRecord(slot []uint64, due, mono, lifetime int64, d *Decision) {
	r := idRecord{actAt: mono + int64(d.Delay), overflow: s.usedOverflow}
	if d.Allowed {
		r.expiry = mono + lifetime
	}
	if d.Allowed && d.Granted > 0 {
		r.grant = algorithm.Grant{Units: d.Granted, Owed: d.Granted, Due: due}
	}
	putRecord(slot, &r)
}

// dueOf returns when time will have paid back the units that were just charged to a
// key, or to the overflow bucket: its slot has expired then.
func (s *shard) dueOf(cl *compiledLimit, h uint64) int64 {
	if s.usedOverflow {
		return algorithm.RoundUp(s.overflowDue, cl.tick)
	}
	slot := s.tables[cl.table].Slot(h)
	if slot == nil {
		return 0 // nothing was charged
	}
	return algorithm.RoundUp(hashtable.Expiry(slot), cl.tick)
}

// repeatID answers a retry with the earlier grant, and the state of the key now.
func (s *shard) repeatID(t *idTake, rec idRecord, d *Decision) {
	s.peekID(t, d)
	d.Granted = rec.grant.Units
	d.Delay = max(0, time.Duration(rec.actAt-t.mono))
}

// refundID refunds a grant under an ID, once.
func (s *shard) refundID(t *idTake, cost int64, slot []uint64, d *Decision) {
	rec := recordOf(slot)
	if rec.refunded {
		s.peekID(t, d)
		return
	}
	rec.refunded = true
	moved := s.moveGrant(t, &rec, max(cost, -rec.grant.Units), d)
	if rec.grant.Units == 0 {
		rec.expiry = 0
	}
	s.putRecord(t, slot, moved, &rec)
}

// settleID makes what is charged under an ID equal to the cost.
func (s *shard) settleID(t *idTake, cost int64, slot []uint64, d *Decision) {
	rec := recordOf(slot)
	moved := s.moveGrant(t, &rec, cost-rec.grant.Units, d)
	s.putRecord(t, slot, moved, &rec)
	d.settled(rec.grant.Units)
}

// errNotRemembered is returned for an ID without a record.
var errNotRemembered = fmt.Errorf("penstock: settle: %w: nothing was granted under it, or it has expired", ErrUnknownID)

// settled turns the decision on a change of a charge into the decision on its
// settlement, which is never denied.
func (d *Decision) settled(units int64) {
	d.Allowed, d.Granted, d.RetryAfter, d.Delay = true, units, 0, 0
}

// putRecord writes a record that was read from a slot, which may have moved since.
func (s *shard) putRecord(t *idTake, slot []uint64, moved bool, rec *idRecord) {
	records := &s.tables[idTableOf(t.limit)]
	if moved {
		slot = records.Slot(t.id)
	}
	if slot != nil {
		putRecord(slot, rec)
		records.NoteExpiry(hashtable.Expiry(slot))
	}
}

// moveGrant charges more units under an ID, or refunds some of them, and updates the
// record. It reports whether slots may have moved.
func (s *shard) moveGrant(t *idTake, rec *idRecord, change int64, d *Decision) (moved bool) {
	cl, g, interval := t.limit, &rec.grant, t.limit.interval()
	if change <= 0 {
		back := min(-change, g.Unpaid(t.now, interval))
		moved = s.refundDue(t, rec, back, d)
		*g = g.Refunded(t.now, -change, back, interval, cl.tick)
		return moved
	}
	req := &algorithm.Request{Cost: change, Overdraw: cl.limit.canOwe(), AtMost: !cl.limit.canOwe()}
	var due int64
	if s.usedOverflow = rec.overflow; rec.overflow {
		s.takeOverflow(cl, req, d)
		due, moved = s.dueOf(cl, t.hash), true
	} else {
		due, moved = s.charge(cl, t.hash, t.now, req, d)
	}
	rec.overflow = s.usedOverflow
	*g = g.Charged(t.now, d.Granted, due, interval)
	return moved
}

// refundDue refunds units of a grant to the key, or to the overflow bucket. It reports
// whether slots may have moved.
func (s *shard) refundDue(t *idTake, rec *idRecord, units int64, d *Decision) (moved bool) {
	cl, h, now := t.limit, t.hash, t.now
	if rec.overflow {
		s, h = &s.store.overflow, cl.overflowHash()
		s.mu.Lock()
		defer s.mu.Unlock()
		now = s.store.now(cl.onWallClock) // other shards may have used it since
	}
	states := &s.tables[cl.table]
	slot := states.Slot(h)
	if slot == nil || units == 0 {
		s.take(cl, h, now, &algorithm.Request{}, d)
		return true
	}
	s.ask(&algorithm.Request{Cost: -units}).due = rec.grant.Due
	out, bal := cl.steps.decide(s, cl, slot, now)
	d.set(cl, out, bal)
	states.NoteExpiry(hashtable.Expiry(slot))
	return false
}

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
		expiry:   int64(slot[expiryWord]),
		grant:    algorithm.NewGrant(int64(slot[grantedWord]&^flagBit), int64(slot[owedWord]), int64(slot[dueWord])),
		actAt:    int64(slot[actAtWord] &^ flagBit),
		overflow: slot[grantedWord]&flagBit != 0,
		refunded: slot[actAtWord]&flagBit != 0,
	}
}

func putRecord(slot []uint64, r *idRecord) {
	slot[expiryWord], slot[grantedWord], slot[actAtWord] = uint64(r.expiry), uint64(r.grant.Units), uint64(r.actAt)
	slot[owedWord], slot[dueWord] = uint64(r.grant.EncodedOwed()), uint64(r.grant.Due)
	if r.overflow {
		slot[grantedWord] |= flagBit
	}
	if r.refunded {
		slot[actAtWord] |= flagBit
	}
}
