package penstock

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/hashtable"
)

// This file decides a TakeAll with an ID. The record of each item is in the shard of
// its key, whose lock the batch holds.

// decideWithID answers a retry with the recorded grants, or settles them. If none is
// recorded, it decides the items and records what they are granted. Permits are their
// own record.
func (b *memoryBatch) decideWithID(ds []Decision, settle bool) error {
	recorded, known := 0, 0
	for i := range b.items {
		it := &b.items[i]
		if it.record != 0 || it.req.ID != 0 {
			recorded++
		}
		if b.isKnown(it) {
			known++
		}
	}
	switch {
	case settle && known == recorded:
		return b.settle(ds)
	case known == 0 && !settle:
		return b.decide(ds)
	case known == recorded:
		b.repeat(ds)
		return nil
	}
	for i := range b.items {
		b.items[i].peek(&ds[i]) // as a denial does, in case the clock stepped back
	}
	return fmt.Errorf("penstock: %w: %d of %d grants are no longer remembered", ErrUnknownID, recorded-known, recorded)
}

// isKnown reports whether an item was granted under its ID before. Permits that the
// overflow bucket granted move the item there.
func (b *memoryBatch) isKnown(it *batchItem) bool {
	switch {
	case it.record != 0:
		return it.home.recordSlot(it.limit, it.record, b.mono) != nil
	case it.req.ID == 0:
		return false
	case it.shard.holds(it.limit, it.hash, it.req.ID, it.now):
		return true
	case !b.overflow && !b.store.overflowHolds(it.limit, it.req.ID),
		b.overflow && !b.store.overflow.holds(it.limit, it.limit.overflowHash(), it.req.ID, it.now):
		return false
	}
	b.moveToOverflow(it)
	return b.store.overflow.holds(it.limit, it.hash, it.req.ID, it.now)
}

// repeat writes the recorded grants, and the state of the keys now. It renews permits.
func (b *memoryBatch) repeat(ds []Decision) {
	// The records may have expired since they were found: moveToOverflow reads the clock again, and the peeks may sweep.
	records := make([]idRecord, len(b.items))
	for i := range b.items {
		switch it := &b.items[i]; {
		case it.record != 0:
			records[i] = recordOf(it.home.tables[idTableOf(it.limit)].Slot(it.record))
		case it.req.ID != 0:
			it.shard.takeInPlace(it.limit, it.hash, it.now, it.req, &ds[i])
		}
	}
	b.unlockOverflow() // a peek of a key without a slot locks it
	for i := range b.items {
		switch it := &b.items[i]; {
		case it.record != 0:
			t := b.idTake(it)
			it.home.repeatID(&t, records[i], &ds[i])
		case it.req.ID == 0:
			it.peek(&ds[i])
		}
	}
}

// settle makes what is charged to each item equal to its cost.
func (b *memoryBatch) settle(ds []Decision) error {
	for i := range b.items {
		it := &b.items[i]
		slot := it.home.recordSlot(it.limit, it.record, b.mono)
		if slot == nil { // a sweep for the items before dropped it: it expired meanwhile
			return requestError(it.index, errNotRemembered)
		}
		t := b.idTake(it)
		it.home.settleID(&t, it.req.Cost, slot, &ds[i])
	}
	return nil
}

// idTake returns an item as a request under its ID.
func (b *memoryBatch) idTake(it *batchItem) idTake {
	return idTake{limit: it.limit, hash: it.homeHash, id: it.record, now: it.now, mono: b.mono}
}

// ensureRecords allocates the records of all items before anything is charged, and
// pins them: without its record, a retry would be charged again.
func (b *memoryBatch) ensureRecords() error {
	for i := range b.items {
		it := &b.items[i]
		if it.record == 0 {
			continue
		}
		slot := it.home.tables[idTableOf(it.limit)].Slot(it.record)
		if slot == nil {
			slot = it.home.newSlot(idTableOf(it.limit), it.record, b.mono)
		}
		if slot == nil {
			return requestError(it.index, errNoRecord)
		}
		slot[expiryWord] = pin
	}
	return nil
}

// putRecords records the grants.
func (b *memoryBatch) putRecords(ds []Decision) {
	for i := range b.items {
		it := &b.items[i]
		if it.record == 0 {
			continue
		}
		s := it.home
		if s.usedOverflow = it.shard != s; s.usedOverflow {
			s.overflowDue = it.shard.dueOf(it.limit, it.hash)
		}
		t := &s.tables[idTableOf(it.limit)]
		slot := t.Slot(it.record)
		s.putNewRecord(slot, s.dueOf(it.limit, it.homeHash), b.mono, b.lifetime, &ds[i])
		t.NoteExpiry(hashtable.Expiry(slot))
	}
}

// releaseRecords frees the records that ensureRecords has allocated.
func (b *memoryBatch) releaseRecords() {
	for i := range b.items {
		it := &b.items[i]
		if it.record == 0 {
			continue
		}
		t := &it.home.tables[idTableOf(it.limit)]
		if slot := t.Slot(it.record); slot != nil && slot[expiryWord] == pin {
			clear(slot[expiryWord:])
			t.NoteExpiry(0)
		}
	}
}
