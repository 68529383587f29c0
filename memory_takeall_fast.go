package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// This file is the fast path of TakeAll. It decides a few takes of different keys that all have
// a slot, without IDs, which change the words of that slot alone. Nothing is allocated then, so
// a charge can be undone by writing the old words back. A memoryBatch decides all others.

// maxFastBatch is the most takes in a fastBatch, whose state is on the stack. Most have no more
// than fewTakes, and clearing the others takes time.
const (
	maxFastBatch = 16
	fewTakes     = 4
)

// A fastBatch is the state of a TakeAll on the fast path.
type fastBatch struct {
	store *Memory
	takes []fastTake           // one for each request
	order [maxFastBatch]uint64 // the hashes, and so the shards, in ascending order, with the index of the take as the last digit
	wall  bool                 // whether a limit needs the wall clock

	wallNow, now int64 // on both clocks
}

// A fastTake is what is known of the key of a request.
type fastTake struct {
	limit *compiledLimit
	hash  uint64
	shard *shard
	table *hashtable.Table
	at    uint64    // position of the slot in its table
	old   [2]uint64 // the words of the slot after the hash, before the charge
}

// takeAllFast decides the requests if they can be a fastBatch. If it is not ok, nothing has
// changed, and takeAll decides them or returns their error.
func (m *Memory) takeAllFast(rs []Request, ds []Decision) (ok bool) {
	switch {
	case len(rs) > maxFastBatch || len(ds) < len(rs):
		return false
	case len(rs) <= fewTakes:
		var takes [fewTakes]fastTake
		return m.takeFast(rs, ds, takes[:len(rs)])
	}
	var takes [maxFastBatch]fastTake
	return m.takeFast(rs, ds, takes[:len(rs)])
}

func (m *Memory) takeFast(rs []Request, ds []Decision, takes []fastTake) (ok bool) {
	b := fastBatch{store: m, takes: takes} // not the requests, with which it would move to the heap
	for i := range rs {
		cl, err := m.compile(&rs[i])
		if err != nil || cl.readsBlock || !rs[i].isSimple() || !b.add(i, cl, rs[i].Key) {
			return false
		}
	}
	b.lock()
	denied, ok := b.charge(rs, ds)
	if ok && denied < len(rs) {
		ok = b.deny(denied, rs, ds)
	}
	b.unlock()
	return ok
}

// add finds the shard of take i. It is not ok if its key is that of another take: the costs of
// equal keys add up.
func (b *fastBatch) add(i int, cl *compiledLimit, key string) (ok bool) {
	t := &b.takes[i]
	t.limit, t.hash = cl, b.store.hashOf(cl, key)
	t.shard = b.store.shard(t.hash)
	t.table = &t.shard.tables[cl.table]
	b.wall = b.wall || cl.onWallClock
	return b.insert(i, t.hash)
}

// insert puts take n in order, after those before it. It is not ok if its hash is there already, but
// for the last digit.
func (b *fastBatch) insert(n int, hash uint64) (ok bool) {
	at, hash := n, hash&^(maxFastBatch-1)|uint64(n)
	for ; at > 0 && b.order[at-1] > hash; at-- {
		b.order[at] = b.order[at-1]
	}
	b.order[at] = hash
	return at == 0 || b.order[at-1]^hash >= maxFastBatch
}

// inOrder returns the take at a place of the order.
func (b *fastBatch) inOrder(place int) *fastTake { return &b.takes[b.order[place]%maxFastBatch] }

// lock acquires the locks in ascending order, as all batches do, and then reads the clock,
// while the slots arrive in the cache.
func (b *fastBatch) lock() {
	var locked *shard
	for place := range b.takes {
		t := b.inOrder(place)
		if t.shard != locked {
			locked = t.shard
			locked.mu.Lock()
		}
		t.table.Prefetch(t.hash)
	}
	if b.wall {
		b.wallNow, b.now = b.store.clocks(clockTable)
	} else {
		b.now = b.store.now(false)
	}
}

func (b *fastBatch) unlock() {
	var unlocked *shard
	for place := range b.takes {
		if s := b.inOrder(place).shard; s != unlocked {
			unlocked = s
			s.mu.Unlock()
		}
	}
}

// nowOf returns the time on the clock of a take's limit.
func (b *fastBatch) nowOf(t *fastTake) int64 {
	if t.limit.onWallClock {
		return b.wallNow
	}
	return b.now
}

// charge charges all takes, or none if one is denied: then it returns the first of these. It is not ok
// if a key has no slot, or if the charge needs its block.
func (b *fastBatch) charge(rs []Request, ds []Decision) (denied int, ok bool) {
	for i := range b.takes {
		t := &b.takes[i]
		slot := t.find()
		if slot == nil || !t.take(slot, b.nowOf(t), &rs[i], &ds[i]) {
			b.restore(i)
			return i, false
		}
		if !ds[i].Allowed {
			b.restore(i)
			return i, true
		}
	}
	return len(b.takes), true
}

// find returns the slot of the take's key, and keeps its words. It returns nil if there is
// none.
func (t *fastTake) find() (slot []uint64) {
	at, ok := t.table.Find(t.hash)
	if !ok {
		return nil
	}
	t.at, slot = at, t.table.At(at)
	t.old[0] = slot[expiryWord]
	if len(slot) > countWord { // a call of copy would take longer
		t.old[1] = slot[countWord]
	}
	return slot
}

// restore writes back the words of the first n takes. Their expiries were noted when they
// were written first.
func (b *fastBatch) restore(n int) {
	for i := range b.takes[:n] {
		t := &b.takes[i]
		copy(t.table.At(t.at)[expiryWord:], t.old[:])
	}
}

// deny writes the state of all keys but that of the first denied take, which charge has written. Takes after
// it that do not fit are denied as well, with a RetryAfter. It is not ok if a key has no slot.
func (b *fastBatch) deny(first int, rs []Request, ds []Decision) (ok bool) {
	for i := first + 1; i < len(b.takes); i++ {
		if b.takes[i].find() == nil {
			return false
		}
	}
	for i := range b.takes {
		if i != first {
			t := &b.takes[i]
			t.peek(b.nowOf(t), i > first, &rs[i], &ds[i])
		}
	}
	return true
}

// peek writes the state of a take's key. If the take may not fit, it is denied if it does not.
func (t *fastTake) peek(now int64, mayNotFit bool, r *Request, d *Decision) {
	var out algorithm.Outcome
	slot := t.table.At(t.at)
	if mayNotFit {
		req := r.forAlgorithm()
		out = t.shard.preview(t.limit, slot, now, &req)
	}
	t.decide(slot, now, &algorithm.Request{}, d)
	if out.RetryAfter > 0 {
		d.Allowed, d.Delay = false, 0
		d.RetryAfter = time.Duration(out.RetryAfter)
	}
}

// take decides a request in the slot of its key. It is not ok if that needs the slot's block, which
// could not be restored.
func (t *fastTake) take(slot []uint64, now int64, r *Request, d *Decision) (ok bool) {
	d.Source = SourceStore
	switch {
	case t.limit.steps.spend != nil && r.Cost > 0 && r.MaxDelay == 0 && r.KeepFree == 0 && t.limit.spend(slot, now, r.Cost, d):
	case t.limit.hasBlocks:
		return false
	default:
		req := r.forAlgorithm()
		t.decide(slot, now, &req, d)
	}
	return true
}

func (t *fastTake) decide(slot []uint64, now int64, req *algorithm.Request, d *Decision) {
	d.Source = SourceStore
	t.shard.ask(req)
	out, bal := t.limit.steps.decide(t.shard, t.limit, slot, now)
	d.set(t.limit, out, bal)
	t.table.NoteExpiry(hashtable.Expiry(slot))
}
