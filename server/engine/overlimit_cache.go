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
//
// A denial may be remembered for a day, so it must not outlive a refund: neither a denial that
// is known already, nor that of a call in flight during the refund. Counters have epochs, which end
// when units were returned. The epoch is part of the hash, and is read before the store is called,
// so that denials of an earlier epoch are not found.
type overLimitCache struct {
	seed   maphash.Seed
	age    time.Duration
	start  time.Time
	slots  []overLimitSlot
	epochs []atomic.Uint32 // by the hash of a counter; some counters share one

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
	return &overLimitCache{
		seed: maphash.MakeSeed(), age: age, start: time.Now(),
		slots: make([]overLimitSlot, keys), epochs: make([]atomic.Uint32, keys),
	}
}

// hashOf returns the hash of a counter in its present epoch. An override has other numbers than
// its rule, and a rule may keep units of another free, so the count that may be reached is part
// of it.
func (c *overLimitCache) hashOf(l *penstock.Limit, key string, count int64) uint64 {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f // without a pattern, so that small numbers differ in all bits
	counter := c.hashCounter(l, key)
	return counter ^ uint64(count)*odd1 ^ uint64(c.epochOf(counter).Load())*odd2
}

func (c *overLimitCache) hashCounter(l *penstock.Limit, key string) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_, _ = h.WriteString(l.Name)
	maphash.WriteComparable(&h, [2]int64{int64(l.Period), int64(len(l.Name))})
	_, _ = h.WriteString(key)
	return h.Sum64()
}

// epochOf returns the epoch of a counter. All counts that are compared with it share one, because
// units that one request returns are there for the others.
func (c *overLimitCache) epochOf(counter uint64) *atomic.Uint32 {
	return &c.epochs[counter%uint64(len(c.epochs))]
}

// now returns the time since the start of the cache.
func (c *overLimitCache) now() time.Duration { return time.Since(c.start) }

// until returns for how long after that time a counter is known to be over its limit.
func (c *overLimitCache) until(hash uint64, now time.Duration) time.Duration {
	slot := &c.slots[hash%uint64(len(c.slots))]
	end := slot.end.Load()
	if slot.check.Load() != hash^uint64(end) {
		return 0
	}
	return max(time.Duration(end)-now, 0)
}

// add remembers a counter that was over its limit at that time, and for how long it is.
func (c *overLimitCache) add(hash uint64, now, until time.Duration) {
	slot := &c.slots[hash%uint64(len(c.slots))]
	end := int64(now + min(until, c.age))
	slot.end.Store(end)
	slot.check.Store(hash ^ uint64(end))
}

// forget ends the epoch of a counter, after units of it may have been returned.
func (c *overLimitCache) forget(l *penstock.Limit, key string) {
	if c != nil {
		c.epochOf(c.hashCounter(l, key)).Add(1)
	}
}

// forgetReturned forgets the counters of requests that may have returned units: refunds and
// settlements. The store has answered, so that a denial of a later call counts what they returned.
func (c *overLimitCache) forgetReturned(rs []penstock.Request) {
	if c == nil {
		return
	}
	for i := range rs {
		if rs[i].Cost < 0 || rs[i].Settle {
			c.forget(&rs[i].Limit, rs[i].Key)
		}
	}
}

// ForgetReturned ends the denials that are remembered of a counter, if the request may have
// returned units of it. APIs call it after [Engine.Store] has answered: a limit of the name
// override is a counter of Envoy's overrides.
func (e *Engine) ForgetReturned(r *penstock.Request) {
	if e.overLimit != nil && (r.Cost < 0 || r.Settle) {
		e.overLimit.forget(&r.Limit, r.Key)
	}
}

// forgetRolledBack forgets the counters of a batch that was denied or failed. A store that does
// not decide it at once, such as several slots of a Redis Cluster, takes units of some and returns
// them. Nothing was taken where the store denied.
func (c *overLimitCache) forgetRolledBack(rs []penstock.Request, ds []penstock.Decision, err error) {
	if c == nil || err == nil && allAllowed(ds) {
		return
	}
	for i := range rs {
		if err != nil || ds[i].Allowed {
			c.forget(&rs[i].Limit, rs[i].Key)
		}
	}
}

// beginLookups reads the epochs and the time that the cache needs, before the store is called.
func (ev *evaluation) beginLookups() {
	c := ev.engine.overLimit
	if c == nil {
		return
	}
	ev.began = c.now()
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.cost < 0 { // what it refunds is there for the rest of the request
			c.forget(&d.template.Limit, ev.keyOf(d))
		}
		if ev.isCacheable(d) {
			d.cacheHash = c.hashOf(&d.template.Limit, ev.keyOf(d), d.count-d.rule.KeepFree)
		}
	}
}

// decideFromCache decides a descriptor whose counter is known to be over its limit. As in Envoy's
// service, its hits are not counted then.
func (ev *evaluation) decideFromCache(d *limitedDescriptor) bool {
	c := ev.engine.overLimit
	if c == nil || d.cost < 0 || !ev.isCacheable(d) {
		return false
	}
	until := c.until(d.cacheHash, ev.began)
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

// isCacheable reports whether a counter that is over its limit is remembered. A take under an ID
// may be a repeat, which the store must be asked for.
func (ev *evaluation) isCacheable(d *limitedDescriptor) bool {
	return d.isCounting() || ev.engine.cacheDenials && canCount(&d.rule.Limit) && d.id == ""
}

// decideCached decides the descriptors whose windows are known to have nothing left. Gates charge
// nevertheless, and requests with their own limit may still fit.
func (ev *evaluation) decideCached() {
	if !ev.engine.cacheDenials {
		return
	}
	ev.beginLookups()
	for i := range ev.limited {
		if d := &ev.limited[i]; !d.decided && d.cost != 0 && !d.hasOwnLimit && !ev.isGate(d) {
			ev.decideFromCache(d)
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
			c.add(d.cacheHash, ev.began, dec.ResetAfter)
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
