package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/hashtable"
)

// This file is the fast path of TakeAll. It decides a few takes of different keys that all have
// a slot, without IDs, which change the words of that slot alone. Nothing is allocated then, so
// a charge can be undone by writing the old words back. A memoryBatch decides all others.

// maxFastBatch is the most takes in a fastBatch, whose state is on the stack.
const maxFastBatch = 16

// A fastBatch is the state of a TakeAll on the fast path.
type fastBatch struct {
	store *Memory
	takes []fastTake
	order [maxFastBatch]uint8 // of the takes by hash, and so by shard
	wall  bool                // whether a limit needs the wall clock

	wallNow, now int64 // on both clocks
}

// A fastTake is a request of a fastBatch, and what is known of its key.
type fastTake struct {
	request  *Request
	decision *Decision // where it is written to
	limit    *compiledLimit
	hash     uint64
	shard    *shard
	table    *hashtable.Table
	at       uint64    // position of the slot in its table
	old      [2]uint64 // the words of the slot after the hash, before the charge
}

// takeAllFast decides the requests if they can be a fastBatch. If it is not ok, nothing has
// changed, and takeAll decides them or returns their error.
func (m *Memory) takeAllFast(rs []Request, ds []Decision) (ok bool) {
	if len(rs) > maxFastBatch || len(ds) < len(rs) {
		return false
	}
	var few [4]fastTake // most need no more, and clearing them takes time
	takes := few[:]
	if len(rs) > len(few) {
		var many [maxFastBatch]fastTake
		takes = many[:]
	}
	for i := range rs {
		r, t := &rs[i], &takes[i]
		cl, err := m.compile(r)
		if err != nil || !r.isSimple() {
			return false
		}
		t.request, t.decision, t.limit = r, &ds[i], cl
	}
	b := fastBatch{store: m, takes: takes[:len(rs)]}
	return b.run()
}

// run decides the takes. If it is not ok, nothing has changed.
func (b *fastBatch) run() (ok bool) {
	for i := range b.takes {
		if !b.add(i) {
			return false
		}
	}
	b.lock()
	charged, ok := b.charge()
	if ok && !charged {
		ok = b.deny()
	}
	b.unlock()
	return ok
}

// add finds the shard of a take. It is not ok if the take has to be decided in another way.
func (b *fastBatch) add(i int) (ok bool) {
	t := &b.takes[i]
	if t.limit.readsBlock {
		return false
	}
	t.hash = b.store.hashOf(t.limit, t.request.Key)
	t.shard = b.store.shard(t.hash)
	t.table = &t.shard.tables[t.limit.table]
	b.wall = b.wall || t.limit.onWallClock
	return b.insert(i, t.hash)
}

// insert puts take n in order, after those before it. It is not ok if its key is there
// already: the costs of equal keys add up.
func (b *fastBatch) insert(n int, hash uint64) (ok bool) {
	at := n
	for ; at > 0; at-- {
		before := b.order[at-1]
		if b.takes[before].hash <= hash {
			ok = b.takes[before].hash < hash
			break
		}
		b.order[at] = before
	}
	b.order[at] = uint8(n)
	return ok || at == 0
}

// lock acquires the locks in ascending order, as all batches do, and then reads the clock,
// while the slots arrive in the cache.
func (b *fastBatch) lock() {
	var locked *shard
	for _, i := range b.order[:len(b.takes)] {
		t := &b.takes[i]
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
	for _, i := range b.order[:len(b.takes)] {
		if s := b.takes[i].shard; s != unlocked {
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

// charge charges all takes, or none. It is not ok if a key has no slot, or if the charge needs
// its block.
func (b *fastBatch) charge() (charged, ok bool) {
	for i := range b.takes {
		t := &b.takes[i]
		slot := t.find()
		if slot == nil || !t.take(slot, b.nowOf(t)) {
			b.restore(i)
			return false, false
		}
		if !t.decision.Allowed {
			b.restore(i + 1)
			return false, true
		}
	}
	return true, true
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

// deny writes the state of all keys. Takes that do not fit are denied, with a RetryAfter. It
// is not ok if a key has no slot.
func (b *fastBatch) deny() (ok bool) {
	for i := range b.takes {
		if b.takes[i].find() == nil {
			return false
		}
	}
	for i := range b.takes {
		t, now := &b.takes[i], b.nowOf(&b.takes[i])
		out := t.shard.preview(t.limit, t.hash, now, t.request.forAlgorithm())
		t.decide(t.table.At(t.at), now, algorithm.Request{})
		if out.RetryAfter > 0 {
			t.decision.Allowed, t.decision.Delay = false, 0
			t.decision.RetryAfter = time.Duration(out.RetryAfter)
		}
	}
	return true
}

// take decides in the slot of the take's key. It is not ok if that needs the slot's block, which
// could not be restored.
func (t *fastTake) take(slot []uint64, now int64) (ok bool) {
	r := t.request
	t.decision.Source = SourceStore
	switch {
	case r.Cost > 0 && r.MaxDelay == 0 && r.KeepFree == 0 && t.limit.spend(slot, now, r.Cost, t.decision):
	case t.limit.hasBlocks:
		return false
	default:
		t.decide(slot, now, r.forAlgorithm())
	}
	return true
}

func (t *fastTake) decide(slot []uint64, now int64, req algorithm.Request) {
	t.decision.Source = SourceStore
	out, bal := t.limit.steps.decide(t.shard, t.limit, slot, now, req, 0, false)
	t.decision.set(t.limit, out, bal)
	t.table.NoteExpiry(hashtable.Expiry(slot))
}
