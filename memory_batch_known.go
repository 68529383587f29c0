package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// This file decides the usual TakeAll: a few takes of different keys that all have a slot,
// whose whole state is in the words of that slot, and without IDs. Nothing is allocated then,
// so a charge can be undone by writing the old words back. A memoryBatch decides all others.

// maxKnown is the largest such batch. Its state is on the stack.
const maxKnown = 8

// A knownBatch is the state of one such TakeAll.
type knownBatch struct {
	store *Memory
	items [maxKnown]knownItem
	order [maxKnown]uint8 // of the items by hash, and so by shard
	n     int
	wall  bool // whether a limit needs the wall clock

	wallNow, now int64 // on both clocks
}

// A knownItem is one request of a knownBatch.
type knownItem struct {
	limit *compiledLimit
	shard *shard
	hash  uint64
	at    uint64    // position of the slot in its table
	old   [2]uint64 // the words of the slot after the hash, before the charge
}

// takeKnown decides the requests if they are a knownBatch. If it is not ok, nothing has
// changed, and takeAll decides them or returns their error.
func (m *Memory) takeKnown(rs []Request, ds []Decision) (ok bool) {
	if len(rs) > maxKnown || len(ds) < len(rs) {
		return false
	}
	b := knownBatch{store: m}
	for i := range rs {
		if !b.add(&rs[i]) {
			return false
		}
	}
	b.lock()
	charged, ok := b.charge(rs, ds)
	if ok && !charged {
		ok = b.deny(rs, ds)
	}
	b.unlock()
	return ok
}

// add adds a request. It is not ok if the request has to be decided in another way.
func (b *knownBatch) add(r *Request) (ok bool) {
	if !r.isSimple() {
		return false
	}
	cl, err := b.store.compile(r)
	if err != nil || cl.hasBlocks {
		return false
	}
	it := &b.items[b.n]
	it.limit, it.hash = cl, b.store.hashOf(cl, r.Key)
	it.shard = b.store.shard(it.hash)
	b.wall = b.wall || cl.onWallClock
	return b.insert(it.hash)
}

// insert puts the last item in order. It is not ok if its key is there already: the costs
// of equal keys add up.
func (b *knownBatch) insert(hash uint64) (ok bool) {
	at := b.n
	for ; at > 0; at-- {
		before := b.order[at-1]
		if b.items[before].hash <= hash {
			ok = b.items[before].hash < hash
			break
		}
		b.order[at] = before
	}
	b.order[at] = uint8(b.n)
	b.n++
	return ok || at == 0
}

// lock acquires the locks in ascending order, as all batches do, and then reads the clock,
// while the slots arrive in the cache.
func (b *knownBatch) lock() {
	var locked *shard
	for _, i := range b.order[:b.n] {
		it := &b.items[i]
		if it.shard != locked {
			locked = it.shard
			locked.mu.Lock()
		}
		locked.tables[it.limit.table].Prefetch(it.hash)
	}
	if b.wall {
		b.wallNow, b.now = b.store.clocks(clockTable)
	} else {
		b.now = b.store.now(false)
	}
}

func (b *knownBatch) unlock() {
	var unlocked *shard
	for _, i := range b.order[:b.n] {
		if s := b.items[i].shard; s != unlocked {
			unlocked = s
			s.mu.Unlock()
		}
	}
}

// nowOf returns the time on the clock of an item's limit.
func (b *knownBatch) nowOf(it *knownItem) int64 {
	if it.limit.onWallClock {
		return b.wallNow
	}
	return b.now
}

// charge charges all items, or none. It is not ok if a key has no slot.
func (b *knownBatch) charge(rs []Request, ds []Decision) (charged, ok bool) {
	for i := range b.items[:b.n] {
		it := &b.items[i]
		slot := it.find()
		if slot == nil {
			b.restore(i)
			return false, false
		}
		if it.take(slot, b.nowOf(it), &rs[i], &ds[i]); !ds[i].Allowed {
			b.restore(i + 1)
			return false, true
		}
	}
	return true, true
}

// find returns the slot of the item's key, and keeps its words. It returns nil if there is
// none.
func (it *knownItem) find() (slot []uint64) {
	t, ok := it.table(), false
	if it.at, ok = t.Find(it.hash); !ok {
		return nil
	}
	slot = t.At(it.at)
	it.old[0] = slot[expiryWord]
	if len(slot) > countWord { // a call of copy would take longer
		it.old[1] = slot[countWord]
	}
	return slot
}

func (it *knownItem) table() *hashtable.Table { return &it.shard.tables[it.limit.table] }

// restore writes back the words of the first n items. Their expiries were noted when they
// were written first.
func (b *knownBatch) restore(n int) {
	for i := range b.items[:n] {
		it := &b.items[i]
		copy(it.table().At(it.at)[expiryWord:], it.old[:])
	}
}

// deny writes the state of all keys. Items that do not fit are denied, with a RetryAfter. It
// is not ok if a key has no slot.
func (b *knownBatch) deny(rs []Request, ds []Decision) (ok bool) {
	for i := range b.items[:b.n] {
		if b.items[i].find() == nil {
			return false
		}
	}
	for i := range b.items[:b.n] {
		it, d, now := &b.items[i], &ds[i], b.nowOf(&b.items[i])
		out := it.shard.preview(it.limit, it.hash, now, rs[i].forAlgorithm())
		it.decide(it.table().At(it.at), now, algorithm.Request{}, d)
		if out.RetryAfter > 0 {
			d.Allowed, d.Delay = false, 0
			d.RetryAfter = time.Duration(out.RetryAfter)
		}
	}
	return true
}

// take decides a request in the item's slot.
func (it *knownItem) take(slot []uint64, now int64, r *Request, d *Decision) {
	d.Source = SourceStore
	if r.Cost > 0 && r.MaxDelay == 0 && r.KeepFree == 0 && it.limit.spend(slot, now, r.Cost, d) {
		return
	}
	it.decide(slot, now, r.forAlgorithm(), d)
}

func (it *knownItem) decide(slot []uint64, now int64, req algorithm.Request, d *Decision) {
	d.Source = SourceStore
	it.shard.decide(it.limit, slot, now, req, d)
	it.table().NoteExpiry(hashtable.Expiry(slot))
}
