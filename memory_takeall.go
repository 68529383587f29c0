package penstock

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// TakeAll decides the requests all or nothing, with the locks of all their shards
// held. It implements [AtomicStore].
func (m *Memory) TakeAll(_ context.Context, rs []Request, ds []Decision) error {
	if m.takeAllFast(rs, ds) {
		return nil
	}
	return undecided(m.takeAll(rs, ds), rs, ds)
}

func (m *Memory) takeAll(rs []Request, ds []Decision) error {
	if err := checkLengths(rs, ds); err != nil {
		return err
	}
	clearDecisions(rs, ds)
	b := newMemoryBatch(m, len(rs))
	for i := range rs {
		if err := b.add(&rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	if err := validateTogether(rs); err != nil {
		return err
	}
	b.lock()
	defer b.unlock()
	if commonID(rs) != "" {
		return b.decideWithID(ds, rs[0].Settle)
	}
	for i := range b.items {
		b.items[i].renews = b.isKnown(&b.items[i])
	}
	return b.decide(ds)
}

// A memoryBatch is the state of one TakeAll.
type memoryBatch struct {
	store    *Memory
	items    []batchItem
	shards   []int        // indexes of the locked shards, ascending
	byKey    []*batchItem // sorted so that items of one key are adjacent
	overflow bool         // whether the overflow shard's lock is held as well
	lifetime int64        // of the records, if the requests have an ID

	wall, mono int64 // the time on both clocks
}

// A batchItem is one request of a batch.
type batchItem struct {
	limit  *compiledLimit
	req    algorithm.Request
	hash   uint64
	shard  *shard
	index  int    // of the request
	now    int64  // on the limit's clock
	total  int64  // cost of all items of the same key that do not overdraw it or renew permits
	prior  int64  // of these, cost of those before this one
	grants int    // items of the same key, up to this one
	isNew  bool   // whether this batch allocated the slot, or the key is idle
	pinned bool   // whether the slot is kept from being swept
	renews bool   // whether the item only renews permits
	expiry uint64 // of the slot, before it was pinned
	result algorithm.Outcome

	// Of a request with an ID.
	home     *shard // of the record, which is the key's, even if an overflow bucket decides
	homeHash uint64 // of the key
	record   uint64 // hash of the record; 0 if there is none to write
}

// newMemoryBatch returns a batch with room for n requests.
func newMemoryBatch(m *Memory, n int) memoryBatch {
	return memoryBatch{store: m, items: make([]batchItem, 0, n), shards: make([]int, 0, n), byKey: make([]*batchItem, 0, n)}
}

// push adds an item, and returns it.
func (b *memoryBatch) push(cl *compiledLimit, key string, req algorithm.Request) *batchItem {
	h := b.store.hashOf(cl, key)
	b.items = append(b.items, batchItem{limit: cl, req: req, hash: h, shard: b.store.shard(h), index: len(b.items)})
	b.shards = append(b.shards, int(h>>b.store.shift))
	return &b.items[len(b.items)-1]
}

func (b *memoryBatch) add(r *Request) error {
	if err := r.validateForAll(); err != nil {
		return err
	}
	cl, err := b.store.compile(r)
	if err != nil {
		return err
	}
	it := b.push(cl, r.Key, r.forAlgorithm())
	switch {
	case !r.isRecorded():
	case cl.limit.hasPermits():
		it.req.ID = b.store.hashOfID(it.hash, r.ID)
	default:
		it.home, it.homeHash, it.record = it.shard, it.hash, b.store.hashOfID(it.hash, r.ID)
	}
	b.lifetime = max(b.lifetime, cl.lifetimeOf(r))
	return nil
}

// lock acquires the locks in ascending order, so that batches cannot deadlock.
func (b *memoryBatch) lock() {
	slices.Sort(b.shards)
	b.shards = slices.Compact(b.shards)
	for _, i := range b.shards {
		b.store.shards[i].mu.Lock()
	}
	b.wall, b.mono = b.store.clocks(clockTable)
	for i := range b.items {
		b.setNow(&b.items[i])
		b.byKey = append(b.byKey, &b.items[i])
	}
}

func (b *memoryBatch) unlock() {
	b.unlockOverflow()
	for _, i := range b.shards {
		b.store.shards[i].mu.Unlock()
	}
}

// unlockOverflow releases the overflow shard, if the batch holds it.
func (b *memoryBatch) unlockOverflow() {
	if b.overflow {
		b.store.overflow.mu.Unlock()
		b.overflow = false
	}
}

// decide charges all items or none.
func (b *memoryBatch) decide(ds []Decision) error {
	ok, err := b.ensureSlots()
	if err == nil && ok {
		err = b.ensureRecords()
	}
	b.unpin()
	if err != nil {
		b.release()
		return err
	}
	if ok && b.fits() && b.commit(ds) {
		b.putRecords(ds)
		return nil
	}
	b.release()
	for i := range b.items {
		b.items[i].peek(&ds[i])
	}
	return nil
}

// release frees what the batch has allocated and not used.
func (b *memoryBatch) release() {
	b.releaseRecords()
	for i := range b.items {
		b.items[i].releaseSlot()
	}
}

// ensureSlots gives every item with a cost a slot that has room for it, and
// reports whether all got one. Moving items to overflow buckets can add up the
// costs of different keys, so it starts over after that.
func (b *memoryBatch) ensureSlots() (ok bool, err error) {
	for moved := true; moved; {
		b.unpin()
		if err = b.sumCosts(); err != nil {
			return false, err
		}
		if moved, ok = b.ensureSlotsOnce(); !ok {
			return false, nil
		}
	}
	return true, nil
}

// ensureSlotsOnce reports whether it moved items to an overflow bucket, and
// whether all items have a slot.
func (b *memoryBatch) ensureSlotsOnce() (moved, ok bool) {
	for i := range b.items {
		it := &b.items[i]
		if it.req.Cost == 0 || it.pinSlot() {
			continue
		}
		if it.shard == &b.store.overflow || it.shard.isActive(it.limit.table, it.hash, it.now) {
			if it.req.Overdraw {
				it.req = algorithm.Request{} // there is no place for the debt, which denies nothing
				continue
			}
			it.result = it.limit.denyWhenFull(&it.req)
			return moved, false
		}
		b.moveToOverflow(it)
		moved = true
	}
	return moved, true
}

// sumCosts sums the costs of each key.
func (b *memoryBatch) sumCosts() error {
	slices.SortFunc(b.byKey, func(x, y *batchItem) int {
		return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.index, y.index))
	})
	for rest := b.byKey; len(rest) > 0; {
		same, takes, charges := 0, int64(0), int64(0)
		for ; same < len(rest) && rest[same].hash == rest[0].hash; same++ {
			total := &takes
			switch {
			case rest[same].renews: // beside takes of other keys in an overflow bucket
				continue
			case rest[same].req.Overdraw:
				total = &charges
			}
			if rest[same].req.Cost > math.MaxInt64-*total {
				return requestError(rest[same].index, costError("Cost", "the costs of this key add up to more than an int64 holds"))
			}
			rest[same].prior = takes
			*total += rest[same].req.Cost
		}
		for i, it := range rest[:same] {
			it.total, it.grants = takes, i+1
			if it.renews {
				it.total, it.prior = it.req.Cost, 0
			}
		}
		rest = rest[same:]
	}
	return nil
}

// moveToOverflow moves an item to the overflow bucket of its limit.
func (b *memoryBatch) moveToOverflow(it *batchItem) {
	if !b.overflow {
		b.store.overflow.mu.Lock()
		b.overflow = true
		b.wall, b.mono = b.store.clocks(clockTable) // another shard may have used the bucket since
	}
	b.store.overflowDecisions.Add(1)
	it.shard, it.hash, it.isNew = &b.store.overflow, it.limit.overflowHash(), false
	b.setNow(it)
}

// setNow sets the time of an item, on its limit's clock.
func (b *memoryBatch) setNow(it *batchItem) {
	it.now = b.mono
	if it.limit.onWallClock {
		it.now = b.wall
	}
}

// unpin lets all pinned slots expire again.
func (b *memoryBatch) unpin() {
	for i := range b.items {
		if it := &b.items[i]; it.pinned {
			it.shard.tables[it.limit.table].Slot(it.hash)[expiryWord] = it.expiry
			it.pinned = false
		}
	}
}

// fits reports whether every item can be granted. It charges nothing.
func (b *memoryBatch) fits() bool {
	all := true
	for i := range b.items {
		it := &b.items[i]
		if it.req.Cost == 0 || it.req.Overdraw {
			continue // always allowed
		}
		total := it.totalRequest()
		it.result = it.shard.preview(it.limit, it.shard.tables[it.limit.table].Slot(it.hash), it.now, &total)
		all = all && it.result.Allowed
	}
	return all
}

// commit charges the items one by one. Costs that fit in total also fit one by
// one, with one exception: in an overflow bucket, one key may take after another was
// overdrawn. Then the items charged so far are refunded, which at the same instant
// restores their state exactly.
func (b *memoryBatch) commit(ds []Decision) bool {
	for i := range b.items {
		it := &b.items[i]
		it.shard.takeInPlace(it.limit, it.hash, it.now, &it.req, &ds[i])
		if !ds[i].Allowed {
			it.result = algorithm.Outcome{RetryAfter: int64(ds[i].RetryAfter)}
			b.refund(ds[:i])
			return false
		}
	}
	return true
}

// refund refunds what the first items were granted. Permits that were only renewed stay held.
func (b *memoryBatch) refund(granted []Decision) {
	var d Decision
	for i := range granted {
		it := &b.items[i]
		if it.renews {
			continue
		}
		it.shard.takeInPlace(it.limit, it.hash, it.now, &algorithm.Request{Cost: -granted[i].Granted, ID: it.req.ID}, &d)
	}
}

// totalRequest returns the item's request with the cost of all items of its key. In a leaky bucket it is
// queued behind those before it.
func (it *batchItem) totalRequest() algorithm.Request {
	req := it.req
	req.Cost, req.Prior = it.total, it.prior
	return req
}

// pinSlot gives the item's key a slot, and pins it until all items have theirs.
func (it *batchItem) pinSlot() bool {
	t := &it.shard.tables[it.limit.table]
	slot := t.Slot(it.hash)
	if slot != nil && slot[expiryWord] == pin { // the same key twice
		return !it.limit.limit.hasPermits() || it.shard.growPermitsFor(it.limit, slot, it.now, it.grants)
	}
	total := it.totalRequest()
	if !it.shard.ensureSlot(it.limit, it.hash, it.now, &total) {
		return false
	}
	slot = t.Slot(it.hash)
	it.isNew = it.isNew || slot[expiryWord] == 0
	it.pinned, it.expiry = true, slot[expiryWord]
	slot[expiryWord] = pin
	return true
}

// releaseSlot frees the slot that the batch allocated for a denied item.
func (it *batchItem) releaseSlot() {
	t := &it.shard.tables[it.limit.table]
	if slot := t.Slot(it.hash); it.isNew && slot != nil {
		it.shard.clearSlot(it.limit.table, slot)
		t.NoteExpiry(0)
	}
}

// peek writes the state of an item's key after a denial. Items that caused the
// denial are denied, with a RetryAfter.
func (it *batchItem) peek(d *Decision) {
	*d = Decision{}
	it.shard.takeInPlace(it.limit, it.hash, it.now, &algorithm.Request{}, d)
	if it.result.RetryAfter > 0 {
		d.Allowed, d.Delay = false, 0
		d.RetryAfter = time.Duration(it.result.RetryAfter)
	}
}

// The rest of this file decides a TakeAll with an ID. The record of each item is in the shard of
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
			it.shard.takeInPlace(it.limit, it.hash, it.now, &it.req, &ds[i])
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
