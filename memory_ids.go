package penstock

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// takeWithID decides a request with an ID. The record of the grant is in the
// shard of its key, so charge and record are written under one lock.
func (m *Memory) takeWithID(cl *compiledLimit, r *Request) (Decision, error) {
	h := m.hashOf(cl, r.Key)
	id := m.hashOfID(h, r.ID)
	s := m.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, mono := m.clocks(cl.table)
	slot := s.recordSlot(cl, id, mono)
	switch {
	case r.Cost < 0:
		return s.refundID(cl, r, h, now, slot), nil
	case slot != nil:
		return s.repeatID(cl, h, now, mono, recordOf(slot)), nil
	}
	return s.takeNewID(cl, r, h, id, now, mono)
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
		s.takeOverflow(cl, req, &d)
		return d
	}
	s.take(cl, h, m.now(cl.onWallClock), req, &d)
	return d
}

// overflowHolds reports whether the overflow bucket of a limit holds permits under an ID.
func (m *Memory) overflowHolds(cl *compiledLimit, id uint64) bool {
	if m.overflowDecisions.Load() == 0 {
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
// charges anything: without a record, a retry would be charged again.
func (s *shard) takeNewID(cl *compiledLimit, r *Request, h, id uint64, now, mono int64) (Decision, error) {
	t := &s.tables[idTableOf(cl)]
	slot := t.Slot(id)
	if slot == nil {
		slot = s.newSlot(idTableOf(cl), id, mono)
	}
	if slot == nil {
		return Decision{}, errNoRecord
	}
	slot[expiryWord] = uint64(mono + cl.idLifetime)
	var d Decision
	s.usedOverflow = false
	s.take(cl, h, now, r.forAlgorithm(), &d)
	if slot = t.Slot(id); slot != nil { // take may have moved it, or swept it after a short lifetime
		putRecord(slot, s.newRecord(mono, cl.idLifetime, d))
		t.NoteExpiry(hashtable.Expiry(slot))
	}
	return d, nil
}

// errNoRecord is returned if the store has no room for a record.
var errNoRecord = fmt.Errorf("penstock: memory: store is full, cannot record the ID: %w", ErrUnavailable)

// newRecord returns the record of a decision. The record of a denial has already
// expired.
func (s *shard) newRecord(mono, lifetime int64, d Decision) idRecord {
	r := idRecord{granted: d.Granted, actAt: mono + int64(d.Delay), overflow: s.usedOverflow}
	if d.Allowed {
		r.expiry = mono + lifetime
	}
	return r
}

// repeatID answers a retry with the earlier grant, and the state of the key now.
func (s *shard) repeatID(cl *compiledLimit, h uint64, now, mono int64, rec idRecord) (d Decision) {
	s.take(cl, h, now, algorithm.Request{}, &d)
	d.Granted = rec.granted
	d.Delay = max(0, time.Duration(rec.actAt-mono))
	return d
}

// refundID refunds a grant under an ID, once.
func (s *shard) refundID(cl *compiledLimit, r *Request, h uint64, now int64, slot []uint64) (d Decision) {
	if slot == nil || recordOf(slot).refunded {
		s.take(cl, h, now, algorithm.Request{}, &d)
		return d
	}
	rec, req := recordOf(slot), r.forAlgorithm()
	req.Cost = max(req.Cost, -rec.granted)
	rec.granted += req.Cost
	rec.refunded = true
	if rec.granted == 0 {
		rec.expiry = 0
	}
	putRecord(slot, rec)
	if rec.overflow {
		s.takeOverflow(cl, req, &d)
	} else {
		s.take(cl, h, now, req, &d)
	}
	return d
}
