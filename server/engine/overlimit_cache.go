package engine

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// An overLimitCache remembers which counters are over their limit, under compat: such a
// counter stays over it until its window ends, so it need not be asked for. The deny cache of
// the store cannot know that, because the store denies nothing under a counting limit.
//
// With Options.CacheDenials it also remembers which windows have nothing left. Unlike the deny
// cache it does so after the first denial, as envoyproxy/ratelimit does.
//
// It is a table without buckets: a key replaces the one that has its slot. A hash of 64 bits
// with a random seed stands for the key.
type overLimitCache struct {
	seed  maphash.Seed
	age   time.Duration
	start time.Time
	slots []overLimitSlot

	hits, misses atomic.Uint64 // see Engine.CacheLookups
}

// An overLimitSlot has the hash of a key, and when it may no longer be answered for, in
// nanoseconds since the start of the cache. Both are read without a lock, so the end is mixed
// into the hash: while another key is written, neither of them is found.
type overLimitSlot struct {
	check atomic.Uint64 // the hash of the key, mixed with the end
	end   atomic.Int64
}

const defaultOverLimitAge = time.Second

func newOverLimitCache(keys int, age time.Duration) *overLimitCache {
	if keys <= 0 {
		return nil
	}
	if age <= 0 {
		age = defaultOverLimitAge
	}
	return &overLimitCache{seed: maphash.MakeSeed(), age: age, start: time.Now(), slots: make([]overLimitSlot, keys)}
}

// find returns the slot and the hash of a counter. An override has other numbers than its
// rule, and a rule may keep units of another free, so the count that may be reached is part
// of it.
func (c *overLimitCache) find(l *penstock.Limit, key string, count int64) (*overLimitSlot, uint64) {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_, _ = h.WriteString(l.Name)
	maphash.WriteComparable(&h, [3]int64{int64(l.Period), count, int64(len(l.Name))})
	_, _ = h.WriteString(key)
	sum := h.Sum64()
	return &c.slots[sum%uint64(len(c.slots))], sum
}

// until returns for how long a counter is known to be over its limit.
func (c *overLimitCache) until(l *penstock.Limit, key string, count int64) time.Duration {
	slot, sum := c.find(l, key, count)
	end := slot.end.Load()
	if slot.check.Load() != sum^uint64(end) {
		return 0
	}
	return max(time.Duration(end)-time.Since(c.start), 0)
}

// add remembers a counter that is over its limit for that long.
func (c *overLimitCache) add(l *penstock.Limit, key string, count int64, until time.Duration) {
	slot, sum := c.find(l, key, count)
	end := int64(time.Since(c.start) + min(until, c.age))
	slot.end.Store(end)
	slot.check.Store(sum ^ uint64(end))
}

// remove forgets a counter, because units were refunded.
func (c *overLimitCache) remove(l *penstock.Limit, key string, count int64) {
	slot, sum := c.find(l, key, count)
	if slot.check.Load() == sum^uint64(slot.end.Load()) {
		slot.check.Store(0)
	}
}

// knownOver decides a descriptor whose counter is known to be over its limit. As in Envoy's
// service, its hits are not counted then.
func (ev *evaluation) knownOver(d *limitedDescriptor) bool {
	c := ev.engine.overLimit
	switch {
	case c == nil:
		return false
	case d.cost < 0:
		ev.forgetKnown(d)
		return false
	case !ev.isCacheable(d):
		return false
	}
	until := c.until(&d.template.Limit, ev.keyOf(d), d.count-d.rule.KeepFree)
	if until <= 0 {
		return false
	}
	d.decided, d.denied = true, true
	dec := penstock.Decision{Limit: d.count, RetryAfter: until, ResetAfter: ev.windowEnd(d, until), Source: penstock.SourceDenyCache}
	if d.cost > d.count-d.rule.KeepFree {
		dec.RetryAfter = penstock.Never
	}
	ev.setStatus(d, &dec)
	return true
}

// forgetKnown forgets the counter of a descriptor that may refund units.
func (ev *evaluation) forgetKnown(d *limitedDescriptor) {
	if c := ev.engine.overLimit; c != nil {
		c.remove(&d.template.Limit, ev.keyOf(d), d.count-d.rule.KeepFree)
	}
}

// isCacheable reports whether a counter that is over its limit is remembered. A take under an ID
// may be a repeat, which the store must be asked for.
func (ev *evaluation) isCacheable(d *limitedDescriptor) bool {
	return d.isCounting() || ev.engine.cacheDenials && canCount(&d.rule.Limit) && d.id == ""
}

// decideKnown decides the descriptors whose windows are known to have nothing left. Gates charge
// nevertheless, and requests with their own limit may still fit.
func (ev *evaluation) decideKnown() {
	if !ev.engine.cacheDenials {
		return
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.decided && d.cost != 0 && !d.override && !ev.isGate(d) {
			ev.knownOver(d)
		}
	}
}

// windowEnd returns the time until the descriptor's window ends, by the clock of this
// machine, and at least until the cached denial ends.
func (ev *evaluation) windowEnd(d *limitedDescriptor, until time.Duration) time.Duration {
	if d.rule.Limit.Align == penstock.AlignFirst {
		return until
	}
	now := time.Now()
	_, end := d.rule.Limit.Window(now)
	return max(end.Sub(now), until)
}

// cacheOver remembers the descriptors that are over their limit. Where denied hits are not counted,
// a denial tells nothing about smaller costs unless nothing is left.
func (ev *evaluation) cacheOver() {
	c := ev.engine.overLimit
	if c == nil {
		return
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		dec := &ev.result.Statuses[d.index].Decision
		over := d.denied && ev.isCacheable(d) && (d.isCounting() || dec.Remaining <= d.rule.KeepFree)
		if over && dec.Source == penstock.SourceStore && dec.ResetAfter > 0 {
			c.add(&d.template.Limit, ev.keyOf(d), d.count-d.rule.KeepFree, dec.ResetAfter)
		}
	}
}

// CacheLookups returns how many descriptors were denied without asking the store, and for how many
// it was asked. They are counted if there is a cache, and Options.CountHits is set.
func (e *Engine) CacheLookups() (hits, misses uint64) {
	if e.overLimit == nil {
		return 0, 0
	}
	return e.overLimit.hits.Load(), e.overLimit.misses.Load()
}

// countLookup counts a descriptor that was decided, a peek included.
func (ev *evaluation) countLookup(d *limitedDescriptor) {
	switch c := ev.engine.overLimit; {
	case c == nil:
	case ev.isCachedDenial(d):
		c.hits.Add(1)
	default:
		c.misses.Add(1)
	}
}

// isCachedDenial reports whether a descriptor was denied without asking the store.
func (ev *evaluation) isCachedDenial(d *limitedDescriptor) bool {
	return d.denied && ev.result.Statuses[d.index].Decision.Source == penstock.SourceDenyCache
}
