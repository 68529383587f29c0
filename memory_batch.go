package penstock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// TakeAll decides the requests as one, under the locks of all their shards. It
// is what [TakeAll] calls.
func (m *Memory) TakeAll(_ context.Context, rs []Request, ds []Decision) error {
	if err := checkLengths(rs, ds); err != nil {
		return err
	}
	b := batch{store: m}
	for i := range rs {
		if err := b.add(&rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	b.lock()
	defer b.unlock()
	return b.decide(ds)
}

// A batch is a TakeAll under way.
type batch struct {
	store    *Memory
	members  []member
	shards   []int     // whose locks are held, in order
	byKey    []*member // the members, those of one key side by side
	overflow bool      // whether the overflow shard's lock is held as well

	wall, steady int64 // the time, on both clocks
}

// A member is one request of a batch.
type member struct {
	meter   *compiledLimit
	ask     algorithm.Ask
	hash    uint64
	shard   *shard
	index   int    // among the requests
	now     int64  // on the limit's clock
	total   int64  // what the batch asks of this key
	placed  bool   // whether the key got its place from this batch
	pinned  bool   // whether the key's slot is kept from being swept
	until   uint64 // what the pin covers
	verdict algorithm.Verdict
}

func (b *batch) add(r *Request) error {
	if err := r.validateForAll(); err != nil {
		return err
	}
	cl, err := b.store.meter(r)
	if err != nil {
		return err
	}
	h := b.store.hashOf(cl, r.Key)
	b.members = append(b.members, member{
		meter: cl, ask: r.ask(), hash: h, shard: b.store.shard(h), index: len(b.members),
	})
	b.shards = append(b.shards, int(h>>b.store.shift))
	return nil
}

// lock takes the locks in one order for everybody, so that batches cannot wait
// for each other in a circle.
func (b *batch) lock() {
	slices.Sort(b.shards)
	b.shards = slices.Compact(b.shards)
	for _, i := range b.shards {
		b.store.shards[i].mu.Lock()
	}
	b.wall, b.steady = b.store.clocks(clockTable)
	for i := range b.members {
		b.setClock(&b.members[i])
		b.byKey = append(b.byKey, &b.members[i])
	}
}

func (b *batch) unlock() {
	if b.overflow {
		b.store.overflow.mu.Unlock()
	}
	for _, i := range b.shards {
		b.store.shards[i].mu.Unlock()
	}
}

// decide charges all members or none.
func (b *batch) decide(ds []Decision) error {
	placed, err := b.place()
	b.unpin()
	if err != nil {
		return err
	}
	if placed && b.fits() && b.commit(ds) {
		return nil
	}
	for i := range b.members {
		b.members[i].leave()
		b.members[i].look(&ds[i])
	}
	return nil
}

// place gives every member that takes something a slot with room for it, and
// reports whether that worked for all. Moving members to their limits' shared
// buckets may add up costs that were apart, so it begins again after that.
func (b *batch) place() (ok bool, err error) {
	for moved := true; moved; {
		b.unpin()
		if err = b.addUp(); err != nil {
			return false, err
		}
		if moved, ok = b.placeOnce(); !ok {
			return false, nil
		}
	}
	return true, nil
}

// placeOnce gives the members their slots. It reports whether some had to be
// moved to a shared bucket, and whether nobody was left without a place.
func (b *batch) placeOnce() (moved, ok bool) {
	for i := range b.members {
		mb := &b.members[i]
		if mb.ask.Cost == 0 || mb.hold() {
			continue
		}
		if mb.shard == &b.store.overflow || mb.shard.owes(mb.meter.kind, mb.hash, mb.now) {
			mb.verdict = mb.meter.noPlace(mb.ask)
			return moved, false
		}
		b.share(mb)
		moved = true
	}
	return moved, true
}

// addUp works out what the batch asks of each key.
func (b *batch) addUp() error {
	slices.SortFunc(b.byKey, func(x, y *member) int {
		return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.index, y.index))
	})
	for rest := b.byKey; len(rest) > 0; {
		same, total := 0, int64(0)
		for ; same < len(rest) && rest[same].hash == rest[0].hash; same++ {
			if rest[same].ask.Cost > math.MaxInt64-total {
				return requestError(rest[same].index, costError("Cost", "adds up, with others of this key, to more than fits"))
			}
			total += rest[same].ask.Cost
		}
		for _, mb := range rest[:same] {
			mb.total = total
		}
		rest = rest[same:]
	}
	return nil
}

// share moves a member to the bucket that its limit's new keys share.
func (b *batch) share(mb *member) {
	if !b.overflow {
		b.store.overflow.mu.Lock()
		b.overflow = true
		b.wall, b.steady = b.store.clocks(clockTable) // others may have been there since
	}
	b.store.shared.Add(1)
	mb.shard, mb.hash, mb.placed = &b.store.overflow, mb.meter.sharedHash(), false
	b.setClock(mb)
}

// setClock tells a member the time on its limit's clock.
func (b *batch) setClock(mb *member) {
	mb.now = b.steady
	if mb.meter.kind == clockTable {
		mb.now = b.wall
	}
}

func (b *batch) unpin() {
	for i := range b.members {
		if mb := &b.members[i]; mb.pinned {
			mb.shard.tables[mb.meter.kind].slot(mb.hash)[1] = mb.until
			mb.pinned = false
		}
	}
}

// fits works out, charging nothing, whether every member can be granted.
func (b *batch) fits() bool {
	all := true
	for i := range b.members {
		mb := &b.members[i]
		if mb.ask.Cost == 0 {
			continue // a look asks for nothing, and refuses nothing
		}
		mb.verdict = mb.shard.verdictOn(mb.meter, mb.hash, mb.now, mb.whole())
		all = all && mb.verdict.Allowed
	}
	return all
}

// commit charges the members one by one. What fits together fits one by one,
// with one exception: of two on one leaky bucket, the second waits behind the
// first, perhaps longer than it may. Then what was charged is given back, which
// at the same instant leaves no trace.
func (b *batch) commit(ds []Decision) bool {
	for i := range b.members {
		mb := &b.members[i]
		mb.shard.takeHeld(mb.meter, mb.hash, mb.now, mb.ask, &ds[i])
		if !ds[i].Allowed {
			mb.verdict = algorithm.Verdict{RetryAfter: int64(ds[i].RetryAfter)}
			b.giveBack(i)
			return false
		}
	}
	return true
}

// giveBack undoes the charges of the first n members.
func (b *batch) giveBack(n int) {
	var d Decision
	for i := range b.members[:n] {
		mb := &b.members[i]
		mb.shard.takeHeld(mb.meter, mb.hash, mb.now, algorithm.Ask{Cost: -mb.ask.Cost}, &d)
	}
}

// whole is what the batch asks of a member's key.
func (mb *member) whole() algorithm.Ask {
	ask := mb.ask
	ask.Cost = mb.total
	return ask
}

// hold gives a member's key a slot, and pins it until all have theirs.
func (mb *member) hold() bool {
	t := &mb.shard.tables[mb.meter.kind]
	slot := t.slot(mb.hash)
	if slot != nil && slot[1] == pin {
		return true // the same key twice
	}
	isNew := slot == nil
	if !mb.shard.hold(mb.meter, mb.hash, mb.now, mb.whole()) {
		return false
	}
	mb.placed = mb.placed || isNew
	slot = t.slot(mb.hash)
	mb.pinned, mb.until = true, slot[1]
	slot[1] = pin
	return true
}

// leave gives up the place that a refused member got from the batch.
func (mb *member) leave() {
	t := &mb.shard.tables[mb.meter.kind]
	if slot := t.slot(mb.hash); mb.placed && slot != nil {
		mb.shard.forget(mb.meter.kind, slot)
		t.firstStale = 0
	}
}

// look reports how a member stands when the batch is refused: the refusing ones
// say when to come back.
func (mb *member) look(d *Decision) {
	*d = Decision{}
	mb.shard.takeHeld(mb.meter, mb.hash, mb.now, algorithm.Ask{}, d)
	if mb.verdict.RetryAfter > 0 {
		d.Allowed, d.Delay = false, 0
		d.RetryAfter = time.Duration(mb.verdict.RetryAfter)
	}
}
