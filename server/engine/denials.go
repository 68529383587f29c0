package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// denials remember which counters are over their limit, under compat: such a counter stays over
// it until its window ends, so it need not be asked for. The deny cache of the store cannot know
// that, because the store denies nothing under a hits limit; so the engine tells a deny cache of
// its own. With Options.CacheDenials that also knows which windows have nothing left, after the
// first denial, as in envoyproxy/ratelimit.
//
// A denial may be remembered for a day, so it must not outlive a refund: as a store, denials call
// the engine's, and forget the counters of which units may have been returned.
type denials struct {
	cache        *penstock.DenyCache
	store        penstock.Store
	hits, misses atomic.Uint64 // see CacheLookups
}

func newDenials(store penstock.Store, o *Options) *denials {
	if o.OverLimitKeys <= 0 {
		return nil
	}
	cache := penstock.WithDenyCache(nil, &penstock.DenyCacheOptions{MaxKeys: o.OverLimitKeys, MaxAge: o.OverLimitAge})
	return &denials{cache: cache, store: store}
}

// ForgetReturned ends the denials that are remembered of a counter, if the request may have
// returned units of it. APIs call it after [Engine.Store] has answered: a limit of the name
// override is a counter of Envoy's overrides.
func (s *denials) ForgetReturned(r *penstock.Request) {
	if s != nil && (r.Cost < 0 || r.Settle) {
		s.cache.Forget(*r)
	}
}

// CacheLookups returns how many descriptors were denied without asking the store, and for how many
// it was asked. They are counted if there is a cache, and Options.CountHits is set.
func (s *denials) CacheLookups() (hits, misses uint64) {
	if s == nil {
		return 0, 0
	}
	return s.hits.Load(), s.misses.Load()
}

func (s *denials) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.store.Take(ctx, r)
	s.ForgetReturned(&r)
	return d, err
}

func (s *denials) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := penstock.TakeEach(ctx, s.store, rs, ds)
	for i := range rs {
		s.ForgetReturned(&rs[i])
	}
	return err
}

// TakeAll also forgets the counters of a batch that was denied or failed. A store that does
// not decide it at once, such as several slots of a Redis Cluster, takes units of some and returns
// them. Nothing was taken where the store denied.
func (s *denials) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := penstock.TakeAll(ctx, s.store, rs, ds)
	rolledBack := err != nil || !allAllowed(ds[:len(rs)])
	for i := range rs {
		if rolledBack && (err != nil || ds[i].Allowed) {
			s.cache.Forget(rs[i])
		}
		s.ForgetReturned(&rs[i])
	}
	return err
}

func allAllowed(ds []penstock.Decision) bool {
	return !slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
}

// remembersDenials reports whether denials of the request are remembered.
func (f *found) remembersDenials() bool {
	return f.engine.denials != nil && (f.compat || f.engine.options.CacheDenials) && !f.terms.Settle
}

// isRemembered reports whether a denial of the descriptor is remembered. Peeked descriptors are
// charged nevertheless. Those with their own limit may still fit, and so may a take under an ID,
// which may be a repetition.
func (f *found) isRemembered(d *limitedDescriptor) bool {
	switch {
	case d.cost < 0 || d.phase == phasePeeked:
		return false
	case d.keepFree != d.rule.KeepFree: // it may be denied where others are not
		return false
	case f.compat:
		return d.addsHits()
	}
	return d.cost > 0 && !d.own && hasHitsLimit(&d.rule.Limit) && d.id == ""
}

// counterOf returns the request for which a denial of the descriptor is remembered: one unit of
// its counter, under a limit that has its identity and the count that may be reached.
func (f *found) counterOf(d *limitedDescriptor) penstock.Request {
	r := *d.template
	r.Limit.Count, r.Limit.Debt = d.maxHits, 0
	r.Key, r.Cost, r.KeepFree = f.keyOf(d), 1, d.keepFree
	return r
}

// decideKnown decides the descriptors for which the store need not be asked.
func (ev *evaluation) decideKnown() {
	remembers := ev.remembersDenials()
	if remembers {
		ev.forgetRefunds()
		ev.began = ev.engine.denials.cache.Now()
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		var dec penstock.Decision
		known := d.phase == phaseKnown
		if known {
			dec = d.ban()
		} else if remembers && ev.isRemembered(d) {
			dec, known = ev.lookUp(d)
		}
		if known {
			d.decided, d.denied = true, !dec.Allowed
			d.setStatus(&dec)
		}
	}
}

// forgetRefunds forgets the counters of refunds before the store is called: what they refund is
// there for the rest of the request.
func (ev *evaluation) forgetRefunds() {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.cost < 0 {
			ev.engine.denials.cache.Forget(ev.counterOf(d))
		}
	}
}

// ban returns the decision about a banned key. Peeks ask for nothing, so they are allowed, except
// Envoy's, which ask whether a request may begin. It is also that about too many permits.
func (d *limitedDescriptor) ban() penstock.Decision {
	capacity := d.rule.Limit.Capacity()
	if !d.isBanned() {
		return penstock.Decision{Limit: capacity, RetryAfter: penstock.Never}
	}
	left := d.override.Remaining()
	dec := penstock.Decision{Allowed: true, Limit: capacity, ResetAfter: min(left, longestBan), Source: penstock.SourceOverride}
	if d.cost > 0 || d.denyInDebt {
		dec.Allowed, dec.RetryAfter = false, left
	}
	return dec
}

// longestBan is the ResetAfter of a ban for good: as long as the longest period of a limit.
const longestBan = 366 * 24 * time.Hour

// lookUp returns the denial of a counter that is known to be over its limit. As in Envoy's
// service, its hits are not counted then.
func (ev *evaluation) lookUp(d *limitedDescriptor) (dec penstock.Decision, denied bool) {
	dec, denied = ev.engine.denials.cache.Cached(ev.counterOf(d), ev.began)
	if denied && d.cost > d.maxHits-d.keepFree {
		dec.RetryAfter = penstock.Never
	}
	return dec, denied
}

// noteDenials remembers the descriptors that are over their limit. Where denied hits are not
// counted, a denial tells nothing about smaller costs unless nothing is left.
func (ev *evaluation) noteDenials() {
	if !ev.remembersDenials() {
		return
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		if !d.denied || !ev.isRemembered(d) {
			continue
		}
		dec := d.status.Decision
		if d.addsHits() || dec.Remaining <= d.keepFree {
			dec.RetryAfter = dec.ResetAfter
			ev.engine.denials.cache.Note(ev.counterOf(d), dec, ev.began)
		}
	}
}

// isCachedDenial reports whether a descriptor was denied without asking the store.
func (d *limitedDescriptor) isCachedDenial() bool {
	return d.denied && d.status.Decision.Source == penstock.SourceDenyCache
}
