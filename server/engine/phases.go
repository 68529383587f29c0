package engine

import (
	"context"
	"errors"
	"math/bits"
	"slices"

	"github.com/penstock-io/penstock"
)

// A request is decided in phases. find.go gives each descriptor its phase, and the way in which
// the store is asked about it; this file runs them in order. A phase calls the store once, for
// each of its descriptors independently or for all of them together, all or nothing. If the
// request is over a limit after it, only the last phase follows.
//
//	phase        its descriptors                        store   over the limit if
//	known        banned keys, too many permits,         not     (decided with the next one)
//	             counters that are known to be over     asked
//	peeked       charge: always; Envoy's peeks, which   each    one denies (not under compat)
//	             ask whether a key owes
//	hits         all others under compat: envoy         each    one denies, or all quotas do
//	own          takes under limits that they bring     each    one denies
//	quota        takes under quota rules                each    all quotas deny
//	atMost       takes under other rules, of at most    each    one has nothing left
//	             what is left
//	enforced     takes under other rules                all     one denies
//	settle       to settle, under rules that deny       all     never
//	settleKnown  to settle, under other rules           alone   never; an ID may be unknown
//	last         shadow rules, peeks and refunds        each    never
//
// Peeked descriptors come first, because their hits report what has happened: they are charged
// in full, whatever the rest of the request brings, and deny if nothing was left before. Those
// with their own limit follow: no store compares a window with the limit of a single request, so
// the hits are added, and refunded if they are too many. That never admits too much, but other
// requests may see them for a moment.
//
// The last phase completes the request; see complete. It does not run under compat, where a
// denied request counts, as in Envoy's own service.
type phase uint8

const (
	phaseKnown phase = iota
	phasePeeked
	phaseHits
	phaseOwn
	phaseQuota
	phaseAtMost
	phaseEnforced
	phaseSettle
	phaseSettleKnown
	phaseLast
)

var phases = [...]struct {
	all   bool                   // all or nothing
	alone bool                   // in one call for each descriptor
	stops func(*evaluation) bool // nil: never
}{
	phasePeeked:      {stops: func(ev *evaluation) bool { return !ev.compat && anyDenies(ev) }},
	phaseHits:        {stops: func(ev *evaluation) bool { return anyDenies(ev) || allQuotasDeny(ev) }},
	phaseOwn:         {stops: anyDenies},
	phaseQuota:       {stops: allQuotasDeny},
	phaseAtMost:      {stops: anyDenies},
	phaseEnforced:    {stops: anyDenies, all: true},
	phaseSettle:      {all: true},
	phaseSettleKnown: {all: true, alone: true},
	phaseLast:        {},
}

// A phaseSet has a bit for each phase that a request needs.
type phaseSet uint16

func (s phaseSet) has(p phase) bool { return s&(1<<p) != 0 }

// A way is how the store is asked about a descriptor.
type way struct {
	peekFirst bool // it is denied by what a peek says, and charged nevertheless
	overdraw  bool // its hits are charged even if they do not fit
	atMost    bool // it takes what is left if its hits do not fit
	peekAfter bool // a peek tells the sum that its own limit is compared with
	settle    bool
	held      bool // its hits are not counted, because others do not fit
}

// decide reports whether the request is over a limit. After an error nothing stays charged,
// as far as the store can be reached, except under an ID.
func (ev *evaluation) decide(ctx context.Context) (over bool, err error) {
	for rest := ev.phases &^ (1 << phaseLast); rest != 0 && err == nil && !ev.over; rest &= rest - 1 {
		p := phase(bits.TrailingZeros16(uint16(rest)))
		err = ev.runPhase(ctx, p)
		ev.over = err == nil && phases[p].stops != nil && phases[p].stops(ev)
		if p == phaseOwn && err == nil && !ev.over { // other descriptors of the key do not see hits of a quota that denied
			err = ev.call(ev.addRefunds(ctx), false)
		}
		if p == phaseAtMost && err == nil && !ev.over {
			err = ev.levelGrants(ctx)
		}
	}
	if err == nil && ev.phases.has(phaseLast) {
		err = ev.complete(ctx)
	}
	if err != nil {
		ev.refundAll(ctx)
		return false, err
	}
	ev.noteDenials()
	return ev.over, nil
}

// runPhase decides the descriptors of a phase.
func (ev *evaluation) runPhase(ctx context.Context, p phase) error {
	switch {
	case p == phaseKnown:
		ev.decideKnown()
		return nil
	case p == phaseHits && ev.engine.options.StopIncrement:
		if err := ev.holdBack(ctx); err != nil {
			return err
		}
	case p == phaseQuota && ev.terms.ID != "":
		// What quotas take under an ID stays charged after an error, so a request that the
		// store would reject afterwards takes nothing.
		if err := ev.checkTogether(); err != nil {
			return err
		}
	}
	all, alone := phases[p].all, phases[p].alone
	for i := range ev.limited {
		d := &ev.limited[i]
		if d.phase != p || d.decided {
			continue
		}
		ev.ask(d)
		if alone {
			if err := ev.settleIfKnown(ctx, d); err != nil {
				return err
			}
		}
	}
	return ev.call(ctx, all)
}

// holdBack decides which descriptors are only peeked at, as in Envoy's service, where shadow rules and quotas
// hold others back, too: all if a denial of one is remembered, or else, if some do not fit, those that fit.
func (ev *evaluation) holdBack(ctx context.Context) error {
	takes := func(d *limitedDescriptor) bool {
		return d.phase == phaseHits && d.cost >= 0 && !d.isCachedDenial() && d.trial == nil
	}
	known, n := false, 0
	for i := range ev.limited {
		d := &ev.limited[i]
		known = known || d.trial == nil && d.isCachedDenial()
		if takes(d) {
			ev.add(d, 0)
			n++
		}
	}
	if known || n < 2 {
		ev.queue.clear()
	} else if err := ev.call(ctx, false); err != nil {
		return err
	}
	hold := known
	for i := range ev.limited {
		d := &ev.limited[i]
		hold = hold || takes(d) && d.decided && !d.fits()
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; takes(d) {
			d.way.held, d.decided = hold && (known || d.fits()), false
		}
	}
	return nil
}

// fits reports whether the cost of a descriptor that was peeked at fits.
func (d *limitedDescriptor) fits() bool {
	return !d.denied && d.cost <= d.status.Decision.Remaining-d.keepFree
}

// settleIfKnown settles a descriptor. If its ID is not remembered, it is peeked at.
func (ev *evaluation) settleIfKnown(ctx context.Context, d *limitedDescriptor) error {
	err := ev.call(ctx, true)
	if errors.Is(err, penstock.ErrUnknownID) {
		d.cost, d.phase, d.way = 0, phaseLast, way{}
		return nil
	}
	return err
}

// complete does what follows from the outcome. If the request is allowed, it takes from shadow
// rules, and does the peeks and refunds of the request. If it is denied, it releases permits, whose
// work has ended whatever the answer is, and peeks at the rest. What denied descriptors have
// taken is refunded, and what all have if the request is denied.
func (ev *evaluation) complete(ctx context.Context) error {
	ctx = ev.addRefunds(ctx)
	for i := range ev.limited { // after all refunds, so that a peek that fails prevents none
		switch d := &ev.limited[i]; {
		case d.decided || d.trial != nil && (ev.over || d.phase != phaseLast):
		case !ev.over:
			ev.ask(d)
		case !d.releases():
			ev.add(d, 0)
		}
	}
	err := ev.call(ctx, false)
	if err == nil && ev.hasFurther && !ev.over {
		err = ev.returnPartial(ctx)
	}
	return err
}

// addRefunds adds the refunds of what denied descriptors have taken, and if the request is denied, of
// what all have, and its releases. Refunds are made even if the caller has gone.
func (ev *evaluation) addRefunds(ctx context.Context) context.Context {
	for i := range ev.limited {
		d := &ev.limited[i]
		d.returned = ev.mayReturn(d) && ev.isDenied(d)
		if ev.over && d.releases() {
			ev.add(d, d.cost)
		} else if d.returned {
			ev.add(d, -d.granted())
			ctx = context.WithoutCancel(ctx)
		}
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; d.returned && d.way.peekAfter {
			ev.add(d, 0)
		}
	}
	return ctx
}

// mayReturn reports whether a descriptor has taken units that are refunded if they are not used: neither reports of what
// has happened are, nor settlements.
func (r *request) mayReturn(d *limitedDescriptor) bool {
	return d.granted() > 0 && !d.rule.ChargeAlways && !r.terms.Settle
}

// isDenied reports whether what a descriptor has taken is not used: the request is denied, or the descriptor is. That
// of a candidate is, if the limits deny that it is tried with.
func (ev *evaluation) isDenied(d *limitedDescriptor) bool {
	if d.trial == nil {
		return ev.over || d.denied
	}
	_, denied, others := ev.limited.outcomes(d)
	return denied || others
}

// anyDenies reports whether a descriptor denies the request by itself.
func anyDenies(ev *evaluation) bool {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.overLimit() && !d.quota {
			return true
		}
	}
	return false
}

// allQuotasDeny reports whether there are quotas, and all of them deny.
func allQuotasDeny(ev *evaluation) bool {
	over := false
	for i := range ev.result.Statuses {
		if ev.engine.options.QuotaMode && ev.result.Statuses[i].Rule == nil && !ev.ds[i].Void {
			return false
		}
	}
	for i := range ev.limited {
		if d := &ev.limited[i]; d.quota {
			if over = d.overLimit() || ev.hasFurther && ev.limited.denyBeside(d) && !d.rule.Shadow; !over {
				return false
			}
		}
	}
	return over
}

// A queue is what the next call of the store decides. The request n is about queued[n], and what
// follows the last one is zero.
type queue struct {
	queued    []*limitedDescriptor
	requests  []penstock.Request
	decisions []penstock.Decision
}

// clear empties the queue, and does not keep the keys of callers.
func (q *queue) clear() {
	clear(q.queued)
	clear(q.requests)
	clear(q.decisions)
	q.queued, q.requests, q.decisions = q.queued[:0], q.requests[:0], q.decisions[:0]
}

// makeRoom makes room for the decisions.
func (q *queue) makeRoom() {
	q.decisions = slices.Grow(q.decisions, len(q.requests))[:len(q.requests)]
}

// ask adds what the store is asked about a descriptor.
func (ev *evaluation) ask(d *limitedDescriptor) {
	if d.way == (way{}) { // as most are
		ev.add(d, d.cost)
		return
	}
	if d.way.held {
		ev.add(d, 0)
		return
	}
	if d.way.peekFirst {
		ev.add(d, 0)
	}
	if !d.way.peekFirst || d.cost > 0 {
		r := ev.add(d, d.cost)
		r.AtMost, r.Overdraw, r.Settle = d.way.atMost, d.way.overdraw, d.way.settle
	}
	if d.way.peekAfter {
		ev.add(d, 0)
	}
}

// add adds a request about the key of a descriptor. A cost of 0 peeks, a negative cost refunds.
func (ev *evaluation) add(d *limitedDescriptor, cost int64) *penstock.Request {
	n := len(ev.requests)
	if n == cap(ev.requests) {
		ev.requests = slices.Grow(ev.requests, 1)
	}
	ev.queued, ev.requests = append(ev.queued, d), ev.requests[:n+1]
	r := &ev.requests[n]
	if cost == 0 && d.peeksAtHits() {
		*r = *d.hits
	} else {
		*r = *d.template
		if d.id != "" {
			r.ID, r.Hold, r.NewID = d.id, d.hold, d.newID && cost > 0
		}
	}
	r.Key, r.Cost = ev.keyOf(d), cost
	if cost > 0 {
		r.KeepFree, r.MaxDelay = max(r.KeepFree, d.keepFree), d.maxDelay
	}
	return r
}

// call has the store decide the queue, and records the decisions: also after an error, when
// some may have been made, so that refundAll knows them. All or nothing, none has, but for candidates.
func (ev *evaluation) call(ctx context.Context, all bool) (err error) {
	if len(ev.requests) == 0 {
		return nil
	}
	if len(ev.tried) > 0 {
		ev.putCandidatesLast()
	}
	ev.makeRoom()
	switch store := ev.engine.calls; {
	case len(ev.requests) == 1:
		ev.decisions[0], err = store.Take(ctx, ev.requests[0])
	case all && len(ev.tried) > 0:
		err = ev.callBeside(ctx)
	case all:
		err = penstock.TakeAll(ctx, store, ev.requests, ev.decisions)
	default:
		err = penstock.TakeEach(ctx, store, ev.requests, ev.decisions)
	}
	if err != nil && len(ev.tried) > 0 && ev.isAboutCandidate(err) {
		err = nil
	}
	if err == nil || !all || len(ev.tried) > 0 && len(ev.requests) > 1 {
		ev.record()
	}
	ev.queue.clear()
	return err
}

// record stores the decisions in the result. After a denied TakeAll, the descriptors that did
// not deny were only peeked at, as their decisions say. Where a request is denied already,
// nothing is granted, and only permits are released.
func (ev *evaluation) record() {
	for n, d := range ev.queued {
		dec := &ev.decisions[n]
		if d.trial != nil && *dec == (penstock.Decision{}) {
			continue // its store failed
		}
		if d.phase != phaseEnforced || ev.requests[n].Cost == 0 || !dec.Allowed {
			ev.interpret(d, n) // other takes mean what they say
		}
		if d.returned || ev.over && !d.releases() {
			dec.Granted = 0
		} else {
			d.decided, d.denied = true, !dec.Allowed
		}
		if d.returned && d.denied { // what was said about its hits stays true
			dec.Allowed, dec.RetryAfter = false, d.status.Decision.RetryAfter
		}
		d.setStatus(dec)
	}
}

// refundAll refunds all units taken, because the request cannot be decided. Units that
// cannot be refunded stay charged, which admits too little rather than too much. So do permits
// that the request may have renewed: their holder still works, and knows the ID to release them.
// Under an ID nothing is refunded: a repetition is granted the same.
func (ev *evaluation) refundAll(ctx context.Context) {
	if ev.terms.ID != "" {
		return
	}
	for i := range ev.limited {
		d := &ev.limited[i]
		renewable := d.id != "" && !d.newID
		if granted := d.granted(); granted > 0 && !renewable {
			ev.add(d, -granted)
		}
	}
	_ = ev.call(context.WithoutCancel(ctx), false)
}
