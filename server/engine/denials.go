package engine

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/hitlimit"
)

// remembersDenials reports whether denials of the request are remembered.
func (r *request) remembersDenials() bool {
	return r.engine.Denials != nil && (r.compat || r.engine.options.CacheDenials) && !r.terms.Settle
}

// isRemembered reports whether a denial of the descriptor is remembered. Peeked descriptors are
// charged nevertheless. Those with their own limit may still fit, and so may a take under an ID,
// which may be a repetition.
func (r *request) isRemembered(d *limitedDescriptor) bool {
	switch {
	case d.cost < 0 || d.phase == phasePeeked:
		return false
	case d.keepFree != d.rule.KeepFree, d.replaced: // it may be denied where others are not, or its candidate may not be
		return false
	case r.compat:
		return d.addsHits()
	}
	return d.cost > 0 && !d.own && hitlimit.Has(&d.rule.Limit) && d.id == ""
}

// counterOf returns the request for which a denial of the descriptor is remembered: one unit of
// its counter, under a limit that has its identity and the count that may be reached.
func (f *found) counterOf(d *limitedDescriptor) penstock.Request {
	r := *d.template
	r.Limit.Count, r.Limit.Debt = d.maxHits, 0
	r.Key, r.Cost, r.KeepFree = f.keyOf(d), 1, d.keepFree
	return r
}

// decideKnown decides the descriptors for which the store need not be asked. As in Envoy's service, the hits of a
// counter that is known to be over its limit are not counted.
func (ev *evaluation) decideKnown() {
	remembers := ev.remembersDenials()
	if remembers {
		ev.forgetRefunds()
		ev.began = ev.engine.Denials.Cache.Now()
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		var dec penstock.Decision
		known := d.phase == phaseKnown
		if known {
			dec = d.ban()
		} else if remembers && ev.isRemembered(d) {
			dec, known = ev.engine.Denials.Cache.Cached(ev.counterOf(d), ev.began)
			if known && d.cost > d.maxHits-d.keepFree {
				dec.RetryAfter = penstock.Never
			}
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
			ev.engine.Denials.Cache.Forget(ev.counterOf(d))
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
			ev.engine.Denials.Cache.Note(ev.counterOf(d), dec, ev.began)
		}
	}
}

// isCachedDenial reports whether a descriptor was denied without asking the store.
func (d *limitedDescriptor) isCachedDenial() bool {
	return d.denied && d.status.Decision.Source == penstock.SourceDenyCache
}
