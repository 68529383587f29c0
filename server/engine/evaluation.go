package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rules"
)

// An evaluation is one call of Decide. It runs in three steps: prepare finds the limits
// and keys of the descriptors (own_limit.go has those with their own limit), decide takes
// them in one of two modes (all_or_nothing.go, envoy_compat.go), and count updates the
// rules' counters (evaluation_count.go). Evaluations are pooled, since most of their memory has
// the same size every time.
type evaluation struct {
	engine  *Engine
	result  *Result
	under   under
	compat  bool // descriptors are decided as Envoy's service does
	limited []limitedDescriptor
	plain   bool   // all of them take from enforced rules, and nothing changes their limits
	keys    []byte // of all limited descriptors, one after the other
	text    string // the keys, as the store gets them

	began time.Duration // before the store was called, by the clock of the cache of counters over their limit

	unmatched     []int // the descriptors without a rule
	hasSettle     bool  // whether one of the rules has settle
	ownAdmissions []ownAdmission
	templates     []penstock.Request // of descriptors with their own limit

	metricPath []byte // of one descriptor at a time

	// What the next call of the store decides. A queued request is about
	// limited[queued[i]].
	queued    []int
	requests  []penstock.Request
	decisions []penstock.Decision
}

// A limitedDescriptor is a descriptor that a limit applies to.
type limitedDescriptor struct {
	index    int // among the descriptors
	rule     *rules.Rule
	state    *ruleState
	cost     int64
	key, end int               // position of its key in evaluation.keys
	template *penstock.Request // without key and ID
	id       string            // of its permit, or of the request
	hold     time.Duration     // for how long the store remembers the ID
	quota    bool              // denies only together with the other quotas of the request
	decided  bool              // taken or denied, and not just peeked at
	denied   bool

	count       int64         // what decisions under a counting limit are compared with
	counter     *countedState // of a rule whose hits are counted; nil without one
	hasOwnLimit bool          // which decides in place of a rule
	before      int64         // the hits before this request, under a counting limit
	underRule   bool          // has its own limit, whose hits are counted under a rule
	denyInDebt  bool          // a peek denies if the key owes

	cacheHash uint64 // in the cache of counters over their limit

	keyOverride *overrides.Entry // nil if the rule applies as it is
	newID       bool             // whether its ID must hold no permit
	tooMany     bool             // asks for more permits than any store grants at once
}

// overLimit reports whether the descriptor denies the request. Shadow rules do not.
func (d *limitedDescriptor) overLimit() bool { return d.denied && !d.rule.Shadow }

// releases reports whether the descriptor releases permits.
func (d *limitedDescriptor) releases() bool { return d.cost < 0 && d.rule.ID != "" }

var evaluations = sync.Pool{New: func() any { return &evaluation{} }}

// maxKeptKeyBytes is the largest key buffer that goes back to the pool.
const maxKeptKeyBytes = 64 << 10

// release returns the evaluation to the pool, also if the store panicked.
func (ev *evaluation) release() {
	ev.clearQueue()
	clear(ev.limited)
	clear(ev.templates)
	ev.ownAdmissions, ev.templates = ev.ownAdmissions[:0], ev.templates[:0]
	ev.engine, ev.result, ev.text = nil, nil, ""
	ev.under, ev.hasSettle = under{}, false
	ev.limited, ev.keys, ev.unmatched = ev.limited[:0], ev.keys[:0], ev.unmatched[:0]
	if cap(ev.keys) > maxKeptKeyBytes {
		ev.keys = nil
	}
	evaluations.Put(ev)
}

// prepare finds the limit and the key of every descriptor.
func (ev *evaluation) prepare(ctx context.Context, t *ruleTable, domain *rules.Domain, ds []Descriptor) error {
	if err := ev.find(ctx, t, domain, ds); err != nil {
		return err
	}
	return ev.admitOwnLimits(ds)
}

// find is prepare without making room for what the descriptors leave behind.
func (ev *evaluation) find(ctx context.Context, t *ruleTable, domain *rules.Domain, ds []Descriptor) error {
	ev.plain = true
	for i := range ds {
		if err := ev.match(ctx, t, domain, i, &ds[i]); err != nil {
			return err
		}
	}
	ev.applyReplaces()
	ev.setText()
	return ev.setID(domain)
}

// match finds the limit of a descriptor, if there is one.
func (ev *evaluation) match(ctx context.Context, t *ruleTable, domain *rules.Domain, i int, d *Descriptor) error {
	n := len(ev.limited)
	l := ev.extend()
	l.index, l.cost, l.key, l.denyInDebt = i, d.Cost, len(ev.keys), d.DenyInDebt
	var err error
	if d.Own == nil {
		err = ev.matchRule(ctx, l, t, domain, d)
	} else {
		err = ev.useOwnLimit(l, t, domain, d)
	}
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", i, err)
	}
	if l.rule == nil {
		ev.unmatched = append(ev.unmatched, i)
		ev.keys = ev.keys[:l.key]
		*l, ev.limited = limitedDescriptor{}, ev.limited[:n]
		return nil
	}
	l.quota = l.rule.Quota || ev.engine.quotaMode
	ev.plain = ev.plain && l.isPlain()
	ev.result.Statuses[i].Rule, ev.result.Statuses[i].Quota = l.rule, l.quota
	ev.keys = ShortenKey(ev.keys, l.key)
	l.end = len(ev.keys)
	return nil
}

// extend appends an empty descriptor. Those beyond the length of the slice are empty, which
// saves making one and copying it.
func (ev *evaluation) extend() *limitedDescriptor {
	n := len(ev.limited)
	if n == cap(ev.limited) {
		ev.limited = slices.Grow(ev.limited, 1)
		clear(ev.limited[n:cap(ev.limited)])
	}
	ev.limited = ev.limited[:n+1]
	return &ev.limited[n]
}

// isPlain reports whether the descriptor takes from a rule that can deny the request, and
// that applies as it is.
func (d *limitedDescriptor) isPlain() bool {
	return d.cost > 0 && !d.quota && !d.hasOwnLimit && d.keyOverride == nil && !d.rule.Shadow && !d.rule.ChargeAlways && !d.tooMany
}

func (ev *evaluation) matchRule(ctx context.Context, l *limitedDescriptor, t *ruleTable, domain *rules.Domain, d *Descriptor) error {
	l.rule, ev.keys = domain.Match(d.Entries, ev.keys)
	if l.rule == nil {
		return nil
	}
	if d.ReleaseOnly && l.rule.ID == "" {
		l.rule = nil
		return nil
	}
	ev.hasSettle = ev.hasSettle || l.rule.Settle
	state := &t.states[l.rule.Index]
	if !l.rule.Unlimited {
		l.setState(state)
	}
	if !state.overrides.Empty() {
		ev.applyKeyOverride(ctx, l, t, state)
	}
	if l.template != nil && l.template.Limit.HasPermits() {
		return ev.namePermit(l, d)
	}
	return nil
}

// namePermit sets the ID of a request for a permit, which is an entry of its descriptor.
func (ev *evaluation) namePermit(l *limitedDescriptor, d *Descriptor) error {
	id := l.rule.IDOf(d.Entries)
	switch {
	case d.Permits == NoPermits:
		return fmt.Errorf("rule %s: %w", l.rule.Name, ErrNoRelease)
	case id == "" && d.Cost != 0:
		return fmt.Errorf("rule %s: %w: want an entry %q", l.rule.Name, ErrNoPermitID, l.rule.ID)
	case !ev.engine.transientKeys:
		id = strings.Clone(id)
	}
	l.id, l.newID = id, d.Permits == NewPermits
	l.tooMany = l.newID && d.Cost > maxPermits
	return nil
}

// maxPermits is how many permits a request may ask for, as penstock.Request.Validate allows. More
// of them are an error, except for callers that pass on the requests of others, such as Envoy: it
// lets a request pass whose call fails, so there they are denied.
const maxPermits = 100

func (d *limitedDescriptor) setState(s *ruleState) {
	d.state, d.template, d.count, d.counter = s, &s.template, s.count, s.counter
}

// maxKey is the longest key that is sent to a store. Longer keys are hashed rather than
// rejected: their values come from clients, and Envoy allows requests whose decision
// fails.
const maxKey = 4 << 10

// ShortenKey replaces the key that begins at start by its hash, if it is too long, so that a
// client cannot escape its limit with a long key. No other key of a rule begins with a bar.
func ShortenKey(keys []byte, start int) []byte {
	if len(keys)-start <= maxKey {
		return keys
	}
	sum := sha256.Sum256(keys[start:])
	keys = append(keys[:start], "|sha256:"...)
	return hex.AppendEncode(keys, sum[:])
}

// applyReplaces exempts descriptors whose rules are replaced by other rules of the request,
// even if those are replaced themselves. Then it drops descriptors without a limit.
func (ev *evaluation) applyReplaces() {
	for i := range ev.limited {
		for _, alias := range ev.limited[i].rule.Replaces {
			ev.exempt(alias)
		}
	}
	for i := range ev.limited {
		if ev.limited[i].state == nil {
			ev.dropUnlimited()
			return
		}
	}
}

func (ev *evaluation) dropUnlimited() {
	ev.limited = slices.DeleteFunc(ev.limited, func(d limitedDescriptor) bool { return d.state == nil })
}

// exempt removes the limit from descriptors under rules of an alias. Unlimited rules stay in
// the result.
func (ev *evaluation) exempt(alias string) {
	for i := range ev.limited {
		if d := &ev.limited[i]; d.rule.Alias == alias && !d.rule.Unlimited {
			d.state = nil
			ev.result.Statuses[d.index].Rule = nil
		}
	}
}

// setText sets the text of the keys. A [penstock.TransientKeyStore] may get the buffer
// itself, which the next evaluation overwrites. Other stores may keep a key, for example
// after a timeout, and get a copy.
func (ev *evaluation) setText() {
	ev.text = viewOf(ev.keys)
	if !ev.engine.transientKeys {
		ev.text = string(ev.keys)
	}
}

// viewOf returns the bytes as a text that changes with them.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// keyOf returns the key of a descriptor.
func (ev *evaluation) keyOf(d *limitedDescriptor) string { return ev.text[d.key:d.end] }

// decide reports whether the request is over a limit. After an error nothing stays charged,
// as far as the store can be reached.
func (ev *evaluation) decide(ctx context.Context) (over bool, err error) {
	switch {
	case ev.under.settle:
		return false, ev.settleID(ctx) // bans deny nothing that has been used already
	case ev.compat:
		over, err = ev.decideEach(ctx)
	case ev.plain && !ev.engine.cacheDenials:
		over, err = ev.takeEnforced(ctx) // there is nothing else to take, nor to complete
	default:
		over, err = ev.decideAll(ctx)
	}
	if err != nil && ev.under.id == "" {
		ev.refundAll(ctx)
	}
	return over, err
}

// quotaExhausted reports whether there are quota rules, and all of them deny.
func (ev *evaluation) quotaExhausted() bool {
	over := false
	for i := range ev.limited {
		if d := &ev.limited[i]; d.quota {
			if over = d.overLimit(); !over {
				return false
			}
		}
	}
	return over
}

// queue adds a request for the store. A cost of 0 peeks, a negative cost refunds.
func (ev *evaluation) queue(i int, cost int64) {
	d := &ev.limited[i]
	if cost == 0 && d.countsPeeks() {
		ev.enqueue(i, &d.counter.request, cost)
		return
	}
	r := ev.enqueue(i, d.template, cost)
	r.ID, r.Hold, r.NewID = d.id, d.hold, d.newID && cost > 0
}

// enqueue makes a request about the key of a descriptor where the store will read it.
func (ev *evaluation) enqueue(i int, template *penstock.Request, cost int64) *penstock.Request {
	ev.queued = append(ev.queued, i)
	ev.decisions = append(ev.decisions, penstock.Decision{})
	n := len(ev.requests)
	ev.requests = slices.Grow(ev.requests, 1)[:n+1]
	r := &ev.requests[n]
	*r = *template // append would copy it twice
	r.Key, r.Cost = ev.keyOf(&ev.limited[i]), cost
	return r
}

// callEach has the store decide the queued requests independently.
func (ev *evaluation) callEach(ctx context.Context) error {
	if len(ev.requests) < 2 {
		return ev.callAll(ctx)
	}
	err := penstock.TakeEach(ctx, ev.engine.store, ev.requests, ev.decisions)
	ev.engine.overLimit.forgetReturned(ev.requests)
	return err
}

// callAll has the store decide the queued requests all or nothing.
func (ev *evaluation) callAll(ctx context.Context) error {
	return ev.engine.takeAll(ctx, ev.requests, ev.decisions)
}

// takeAll has the store decide requests all or nothing. A single one needs no batch.
func (e *Engine) takeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (err error) {
	switch len(rs) {
	case 0:
	case 1:
		ds[0], err = e.store.Take(ctx, rs[0])
	default:
		err = penstock.TakeAll(ctx, e.store, rs, ds)
		e.overLimit.forgetRolledBack(rs, ds, err)
	}
	e.overLimit.forgetReturned(rs)
	return err
}

// takeEach decides the queued requests independently, and records the decisions: also after
// an error, when some may have been made, so that refundAll knows them.
func (ev *evaluation) takeEach(ctx context.Context) error {
	err := ev.callEach(ctx)
	ev.record()
	return err
}

// record stores the decisions in the result. After a denied callAll, the descriptors that
// did not deny were only peeked at, as their decisions say.
func (ev *evaluation) record() {
	for n, i := range ev.queued {
		d := &ev.limited[i]
		if !ev.plain || ev.compat || !ev.decisions[n].Allowed {
			ev.interpret(d, n)
		}
		d.decided, d.denied = true, !ev.decisions[n].Allowed
		ev.setStatus(d, &ev.decisions[n])
	}
	ev.clearQueue()
}

// recordPeeks stores the decisions about a denied request, where nothing is granted, and only
// permits are released.
func (ev *evaluation) recordPeeks() {
	for n, i := range ev.queued {
		d := &ev.limited[i]
		ev.interpret(d, n)
		if d.releases() {
			d.decided = true
		} else {
			ev.decisions[n].Granted = 0
		}
		ev.setStatus(d, &ev.decisions[n])
	}
	ev.clearQueue()
}

func (ev *evaluation) setStatus(d *limitedDescriptor, decision *penstock.Decision) {
	st := &ev.result.Statuses[d.index]
	st.Decision, st.OverLimit = *decision, d.overLimit()
}

func (ev *evaluation) clearQueue() {
	clear(ev.requests)
	ev.queued, ev.requests, ev.decisions = ev.queued[:0], ev.requests[:0], ev.decisions[:0]
}

// granted returns how many units a descriptor has taken.
func (ev *evaluation) granted(d *limitedDescriptor) int64 {
	return ev.result.Statuses[d.index].Decision.Granted
}

// refundAll refunds all units taken, because the request cannot be decided. Units that
// cannot be refunded stay charged, which admits too little rather than too much. So do permits
// that the request may have renewed: their holder still works, and knows the ID to release them.
func (ev *evaluation) refundAll(ctx context.Context) {
	for i := range ev.limited {
		d := &ev.limited[i]
		renewable := d.id != "" && !d.newID
		if granted := ev.granted(d); granted > 0 && !renewable {
			ev.queue(i, -granted)
		}
	}
	_ = ev.callEach(context.WithoutCancel(ctx))
	ev.clearQueue()
}
