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
}

// A knownItem is one request of a knownBatch.
type knownItem struct {
	limit *compiledLimit
	shard *shard
	hash  uint64
	now   int64 // on the limit's clock
	slot  []uint64
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
	ok = b.findSlots()
	if ok && !b.charge(rs, ds) {
		b.deny(rs, ds)
	}
	b.unlock()
	return ok
}

// add adds a request. It is not ok if the request has to be decided in another way.
func (b *knownBatch) add(r *Request) (ok bool) {
	if r.ID != "" || r.Overdraw || r.validateForAll() != nil {
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

// lock acquires the locks in ascending order, as all batches do, and then reads the clock.
func (b *knownBatch) lock() {
	var locked *shard
	for _, i := range b.order[:b.n] {
		it := &b.items[i]
		if it.shard != locked {
			locked = it.shard
			locked.mu.Lock()
		}
		if t := &locked.tables[it.limit.table]; t.Large() {
			t.Prefetch(it.hash)
		}
	}
	b.readClock()
}

func (b *knownBatch) readClock() {
	var wall, mono int64
	if b.wall {
		wall, mono = b.store.clocks(clockTable)
	} else {
		mono = b.store.now(false)
	}
	for i := range b.items[:b.n] {
		it := &b.items[i]
		if it.now = mono; it.limit.onWallClock {
			it.now = wall
		}
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

// findSlots reports whether all keys have a slot.
func (b *knownBatch) findSlots() bool {
	for i := range b.items[:b.n] {
		it := &b.items[i]
		if it.slot = it.shard.tables[it.limit.table].Slot(it.hash); it.slot == nil {
			return false
		}
	}
	return true
}

// charge charges all items, or none.
func (b *knownBatch) charge(rs []Request, ds []Decision) bool {
	for i := range b.items[:b.n] {
		it := &b.items[i]
		it.save()
		it.take(rs[i].forAlgorithm(), &ds[i])
		if !ds[i].Allowed {
			b.restore(i + 1)
			return false
		}
	}
	return true
}

// restore writes back the words of the first n items. Their expiries were noted when they
// were written first.
func (b *knownBatch) restore(n int) {
	for i := range b.items[:n] {
		copy(b.items[i].slot[expiryWord:], b.items[i].old[:])
	}
}

// save keeps the words of the slot. A call of copy would take longer.
func (it *knownItem) save() {
	it.old[0] = it.slot[expiryWord]
	if len(it.slot) > countWord {
		it.old[1] = it.slot[countWord]
	}
}

// deny writes the state of all keys. Items that do not fit are denied, with a RetryAfter.
func (b *knownBatch) deny(rs []Request, ds []Decision) {
	for i := range b.items[:b.n] {
		it, d := &b.items[i], &ds[i]
		out := it.shard.preview(it.limit, it.hash, it.now, rs[i].forAlgorithm())
		it.take(algorithm.Request{}, d)
		if out.RetryAfter > 0 {
			d.Allowed, d.Delay = false, 0
			d.RetryAfter = time.Duration(out.RetryAfter)
		}
	}
}

// take decides a request in the item's slot. As in [Memory.take], one available unit of a
// token bucket is the most frequent case.
func (it *knownItem) take(req algorithm.Request, d *Decision) {
	d.Source = SourceStore
	if it.limit.limit.Algorithm == TokenBucket && req == (algorithm.Request{Cost: 1}) && !isOverdrawn(it.slot[expiryWord]) {
		if full, ok := it.limit.token.SpendOne(int64(it.slot[expiryWord]), it.now); ok {
			it.slot[expiryWord] = uint64(full)
			d.set(it.limit, algorithm.Outcome{Allowed: true, Granted: 1}, it.limit.token.Balance(full-it.now))
			return
		}
	}
	it.shard.decide(it.limit, it.slot, it.now, req, d)
	it.shard.tables[it.limit.table].NoteExpiry(hashtable.Expiry(it.slot))
}
