package penstock

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// TakeAll decides the requests as one, under the locks of all their shards. It
// is what [TakeAll] calls.
func (m *Memory) TakeAll(_ context.Context, rs []Request, ds []Decision) error {
	if err := checkTogether(rs, ds); err != nil {
		return err
	}
	b := batch{store: m}
	var few [8]member
	b.members = few[:0]
	for i := range rs {
		mt, err := m.meter(&rs[i])
		if err != nil {
			return requestError(i, err)
		}
		b.add(mt, &rs[i])
	}
	b.lock()
	defer b.unlock()
	return b.decide(ds)
}

// A batch is a TakeAll under way.
type batch struct {
	store   *Memory
	members []member
	shards  []int // whose locks are held, in order
	crowded bool  // whether the overflow shard's lock is held as well
}

// A member is one request of a batch.
type member struct {
	meter   *meter
	ask     algorithm.Ask
	hash    uint64
	shard   *shard
	now     int64             // on the limit's clock
	total   int64             // what the batch asks of this key
	pinned  bool              // whether the key's slot is kept from being swept
	until   uint64            // what the pin covers
	verdict algorithm.Verdict // on the total
}

// pin, as the instant at which an entry is as good as new, is never reached.
const pin = math.MaxInt64

func (b *batch) add(mt *meter, r *Request) {
	h := hashOf(mt, r.Key)
	b.members = append(b.members, member{meter: mt, ask: r.ask(), hash: h, shard: b.store.shard(h)})
	if i := int(h >> b.store.shift); !slices.Contains(b.shards, i) {
		b.shards = append(b.shards, i)
	}
}

// lock takes the locks in one order for everybody, so that batches cannot wait
// for each other in a circle.
func (b *batch) lock() {
	slices.Sort(b.shards)
	for _, i := range b.shards {
		b.store.shards[i].mu.Lock()
	}
	clock, wall := b.store.now(false), b.store.now(true)
	for i := range b.members {
		b.members[i].now = clock
		if b.members[i].meter.kind == clocked {
			b.members[i].now = wall
		}
	}
}

func (b *batch) unlock() {
	if b.crowded {
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
		b.members[i].look(&ds[i])
	}
	return nil
}

// place gives every member that takes something a slot with room for it; those
// for which there is none are moved to the bucket that their limit's new keys
// share, which may add up costs that were apart. It reports whether that
// worked for all.
func (b *batch) place() (ok bool, err error) {
	for again := true; again; {
		b.unpin()
		if again, err = false, b.addUp(); err != nil {
			return false, err
		}
		for i := range b.members {
			mb := &b.members[i]
			if mb.ask.Cost == 0 || b.hold(mb) {
				continue
			}
			if mb.shard == &b.store.overflow {
				mb.verdict = mb.meter.noPlace(mb.ask)
				return false, nil
			}
			b.share(mb)
			again = true
		}
	}
	return true, nil
}

// addUp works out what the batch asks of each key.
func (b *batch) addUp() error {
	for i := range b.members {
		mb := &b.members[i]
		mb.total = 0
		for j := range b.members {
			if other := &b.members[j]; other.hash == mb.hash && other.shard == mb.shard {
				if other.ask.Cost > math.MaxInt64-mb.total {
					return requestError(i, costError("Cost", "costs of one key add up to more than fits"))
				}
				mb.total += other.ask.Cost
			}
		}
	}
	return nil
}

// hold gives a member's key a slot, and pins it until all have theirs.
func (b *batch) hold(mb *member) bool {
	t := &mb.shard.tables[mb.meter.kind]
	if at, held := t.find(mb.hash); held && t.words[at+1] == pin {
		return true // the same key twice
	}
	all := mb.ask
	all.Cost = mb.total
	if !mb.shard.hold(mb.meter, mb.hash, mb.now, all) {
		return false
	}
	at, _ := t.find(mb.hash)
	mb.pinned, mb.until = true, t.words[at+1]
	t.words[at+1] = pin
	return true
}

// share moves a member to the bucket that its limit's new keys share.
func (b *batch) share(mb *member) {
	if !b.crowded {
		b.store.overflow.mu.Lock()
		b.crowded = true
	}
	b.store.shared.Add(1)
	mb.shard, mb.hash = &b.store.overflow, mb.meter.sharedHash()
}

func (b *batch) unpin() {
	for i := range b.members {
		if mb := &b.members[i]; mb.pinned {
			t := &mb.shard.tables[mb.meter.kind]
			at, _ := t.find(mb.hash)
			t.words[at+1] = mb.until
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
		ask := mb.ask
		ask.Cost = mb.total
		mb.verdict = mb.shard.verdictOn(mb.meter, mb.hash, mb.now, ask)
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
