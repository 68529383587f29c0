package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
)

// A request is what is asked of an engine.
type request struct {
	engine *Engine
	table  *ruleTable
	domain *rules.Domain
	ds     []Descriptor
	terms  Terms
	compat bool // descriptors are decided as Envoy's service does
	result *Result
}

// A found is a request, and what find has found of it.
type found struct {
	request

	limited limitedDescriptors
	phases  phaseSet // that they need
	keys    []byte   // of all limited descriptors, one after the other
	text    string   // the keys, as the store gets them

	unmatched  []int // the descriptors without a rule
	hasSettle  bool  // whether one of the rules has settle
	admissions []ownAdmission
	templates  []penstock.Request // of descriptors with their own limit
	hasFurther bool               // whether one of the rules has further limits
	further    []Status           // under these
	hasBeside  bool               // whether the limit of a key was changed a moment ago
	tries      bool               // whether candidates are counted
	tried      []Status           // under these
}

// A limitedDescriptor is a descriptor that a limit applies to.
type limitedDescriptor struct {
	index    int // among the descriptors
	status   *Status
	rule     *rules.Rule
	state    *ruleState
	cost     int64
	key, end int               // position of its key in found.keys
	template *penstock.Request // without key and ID
	id       string            // of its permit, or of the request
	hold     time.Duration     // for how long the store remembers the ID
	newID    bool              // whether its ID must hold no permit
	tooMany  bool              // asks for more permits than any store grants at once
	keepFree int64             // how many units must remain; zero if it is plain, then its template says so
	maxDelay time.Duration     // the longest delay of a queue
	hurried  bool              // whether that is a wish

	phase phase
	way   way
	quota bool // denies only together with the other quotas of the request

	decided  bool // taken or denied, and not just peeked at
	denied   bool
	returned bool // what it has taken is refunded
	spent    bool // nothing was left before a charge that its rule makes always

	further    bool              // under a further limit of its rule
	trial      *trial            // the candidate that it is under; nil under a limit in force
	replaced   bool              // a candidate would replace its limit
	own        bool              // has its own limit, which decides in place of a rule
	underRule  bool              // its own limit, whose hits are added to those of a rule
	denyInDebt bool              // a peek denies if the key owes
	maxHits    int64             // what sums of hits are compared with
	hits       *penstock.Request // under the hits limit of its rule, without key; nil without one
	sum        int64             // of the hits, under a hits limit

	override *overrides.Entry // of its key; nil if the rule applies as it is
	beside   []penstock.Limit // which other daemons may decide by, because they do not know of a change of its limit
	first    int              // the descriptor that addBeside has added this one for
}

type limitedDescriptors []limitedDescriptor

// overLimit reports whether the descriptor denies the request. Shadow rules and candidates do not.
func (d *limitedDescriptor) overLimit() bool { return d.denied && !d.rule.Shadow && d.trial == nil }

// releases reports whether the descriptor releases permits.
func (d *limitedDescriptor) releases() bool { return d.cost < 0 && d.rule.ID != "" }

// granted returns how many units a descriptor has taken.
func (d *limitedDescriptor) granted() int64 { return d.status.Decision.Granted }

// isBanned reports whether a ban decides about the descriptor.
func (d *limitedDescriptor) isBanned() bool {
	return d.override != nil && d.override.Kind == overrides.Banned
}

func (d *limitedDescriptor) setState(s *ruleState) {
	d.state, d.template, d.maxHits, d.hits = s, &s.template, s.maxHits, s.hits
}

func (d *limitedDescriptor) setStatus(decision *penstock.Decision) {
	d.status.Decision, d.status.OverLimit = *decision, d.overLimit()
}

// find finds the limit, the key and the phase of every descriptor.
func (f *found) find(ctx context.Context) error {
	plain := !f.compat && f.terms.isPlain() && !f.remembersDenials()
	for i := range f.ds {
		isPlain, err := f.match(ctx, i)
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", i, err)
		}
		plain = plain && isPlain
	}
	if f.hasFurther {
		furtherPlain, err := f.addFurther(ctx)
		if err != nil {
			return err
		}
		plain = plain && furtherPlain
	}
	if f.tries && !f.terms.AtMost && !f.hasBeside {
		plain = f.addCandidates() && plain
	}
	if len(f.tried) > 0 && len(f.limited) > 2 { // one may be denied by the limits of others
		f.phases |= 1 << phaseLast
	}
	if plain { // as most requests are: match has assigned the phase
		f.phases |= 1 << phaseEnforced
		f.setText()
		return nil
	}
	return f.assignAll()
}

// assignAll gives the descriptors that have a limit their phases and ways.
func (f *found) assignAll() error {
	f.limited = f.limited.enforced()
	f.setText()
	if err := f.checkTerms(); err != nil {
		return err
	}
	if err := f.setID(); err != nil {
		return err
	}
	if f.remembersDenials() {
		f.phases |= 1<<phaseKnown | 1<<phasePeeked | 1<<phaseLast
	}
	for i := range f.limited {
		f.assign(&f.limited[i])
	}
	if f.compat {
		f.phases = f.phases&^(1<<phaseQuota|1<<phaseLast) | 1<<phaseHits
	}
	return nil
}

// assign gives a descriptor its phase and way.
func (f *found) assign(d *limitedDescriptor) {
	d.phase = f.phaseOf(d)
	d.way = f.wayOf(d)
	d.keepFree = max(d.rule.KeepFree, f.terms.KeepFree)
	if d.template.Limit.HasQueue() && !d.way.overdraw && !d.way.settle {
		d.maxDelay, d.hurried = f.terms.MaxDelay, f.terms.Hurried
	}
	f.phases |= 1 << d.phase
	if d.phase != phaseEnforced {
		f.phases |= 1 << phaseLast
	}
	if d.phase == phaseKnown {
		f.phases |= 1 << phasePeeked
	}
	if d.quota && !f.terms.Settle {
		f.phases |= 1 << phaseQuota
	}
}

func (f *found) phaseOf(d *limitedDescriptor) phase {
	switch r := d.rule; {
	case f.terms.Settle:
		return f.settle(d)
	case d.tooMany || d.isBanned() && d.cost >= 0:
		return phaseKnown
	case r.ChargeAlways && d.cost >= 0, d.denyInDebt && d.cost == 0 && !(f.compat && d.addsHits()):
		return phasePeeked
	case f.compat:
		return phaseHits
	case d.cost > 0 && d.own && (d.underRule || d.addsHits()):
		return phaseOwn
	case d.trial != nil:
		return f.limited.phaseBeside(d)
	case d.cost <= 0 || r.Shadow:
		return phaseLast
	case d.quota:
		return phaseQuota
	case f.terms.AtMost:
		return phaseAtMost
	}
	return phaseEnforced
}

// settle returns the phase in which a descriptor is settled. Under a rule without settle it is only peeked at. Bans
// deny nothing that has been used already.
func (r *request) settle(d *limitedDescriptor) phase {
	switch {
	case !d.rule.Settle:
		d.cost = 0
		return phaseLast
	case r.denies(d):
		return phaseSettle
	}
	return phaseSettleKnown
}

func (r *request) wayOf(d *limitedDescriptor) way {
	takes := d.cost > 0
	switch {
	case d.phase == phasePeeked:
		return way{peekFirst: true, overdraw: takes}
	case d.phase == phaseSettle || d.phase == phaseSettleKnown:
		return way{settle: true}
	case r.compat:
		return way{atMost: takes && d.rule.ID == ""} // a denied request holds no permit
	case d.own && d.addsHits():
		return way{atMost: takes}
	case d.underRule:
		return way{overdraw: takes, peekAfter: d.cost != 0}
	}
	return way{atMost: takes && r.terms.AtMost}
}

// denies reports whether a descriptor can deny the request by itself: if the request was
// allowed, the descriptor was granted.
func (r *request) denies(d *limitedDescriptor) bool {
	return !d.rule.Shadow && !d.quota && d.trial == nil && !r.engine.options.Shadow
}

// match finds the limit of a descriptor, if there is one. It is plain if it takes from a rule that
// decides by its limit alone, or has no rule.
func (f *found) match(ctx context.Context, i int) (plain bool, err error) {
	d, start, n := &f.ds[i], len(f.keys), len(f.limited)
	if n == cap(f.limited) {
		f.limited = slices.Grow(f.limited, 1)
		clear(f.limited[n:cap(f.limited)])
	}
	f.limited = f.limited[:n+1]
	l := &f.limited[n] // empty, as all beyond the length are; release empties it, also after an error
	l.index, l.status, l.cost, l.key, l.denyInDebt = i, &f.result.Statuses[i], d.Cost, start, d.DenyInDebt
	if d.Own != nil {
		err = f.useOwnLimit(l, d)
	} else if l.rule, f.keys = f.domain.Match(d.Entries, f.keys); l.rule != nil && d.ReleaseOnly && l.rule.ID == "" {
		l.rule = nil
	} else if l.rule != nil {
		l.end = len(f.keys)
		plain, err = f.useRule(ctx, l, d)
	}
	if err != nil {
		return false, err
	}
	if l.rule == nil {
		f.unmatched = append(f.unmatched, i)
		f.keys = f.keys[:start]
		*l, f.limited = limitedDescriptor{}, f.limited[:n]
		return true, nil
	}
	l.quota = l.rule.Quota || f.engine.options.QuotaMode
	l.status.Rule, l.status.Quota = l.rule, l.quota
	f.keys = rules.ShortenKey(f.keys, start)
	l.end = len(f.keys)
	f.hasFurther = f.hasFurther || l.rule.Also != nil
	return plain, nil
}

// useRule prepares a descriptor to be decided by its rule.
func (f *found) useRule(ctx context.Context, l *limitedDescriptor, d *Descriptor) (plain bool, err error) {
	f.hasSettle = f.hasSettle || l.rule.Settle
	state := &f.table.states[l.rule.Index]
	if !l.rule.Unlimited {
		l.setState(state)
	}
	if !state.overrides.Empty() {
		f.applyKeyOverride(ctx, l, state)
	}
	if state.plain && d.Cost > 0 && l.override == nil {
		l.phase = phaseEnforced
		return true, nil
	}
	if l.template != nil && l.template.Limit.HasPermits() {
		err = f.namePermit(l, d)
	}
	return false, err
}

// namePermit sets the ID of a request for a permit, which is an entry of its descriptor.
func (r *request) namePermit(l *limitedDescriptor, d *Descriptor) error {
	id := l.rule.IDOf(d.Entries)
	switch {
	case d.Permits == NoPermits:
		return fmt.Errorf("rule %s: %w", l.rule.Name, ErrNoRelease)
	case id == "" && d.Cost != 0:
		return fmt.Errorf("rule %s: %w: want an entry %q", l.rule.Name, ErrNoPermitID, l.rule.ID)
	case !r.engine.transientKeys:
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

// enforced returns the descriptors whose rules are not replaced by other rules of the request,
// even if those are replaced themselves, and that have a limit.
func (all limitedDescriptors) enforced() limitedDescriptors {
	for i := range all {
		for _, alias := range all[i].rule.Replaces {
			all.exempt(alias)
		}
	}
	return slices.DeleteFunc(all, func(d limitedDescriptor) bool { return d.state == nil })
}

// exempt removes the limit from descriptors under rules of an alias. Unlimited rules stay in
// the result.
func (all limitedDescriptors) exempt(alias string) {
	for i := range all {
		if d := &all[i]; d.rule.Alias == alias && !d.rule.Unlimited {
			d.state, d.status.Rule = nil, nil
		}
	}
}

// setText sets the text of the keys. A [penstock.TransientKeyStore] may get the buffer
// itself, which the next evaluation overwrites. Other stores may keep a key, for example
// after a timeout, and get a copy.
func (f *found) setText() {
	f.text = viewOf(f.keys)
	if !f.engine.transientKeys {
		f.text = string(f.keys)
	}
}

// viewOf returns the bytes as a text that changes with them.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// keyOf returns the key of a descriptor.
func (f *found) keyOf(d *limitedDescriptor) string { return f.text[d.key:d.end] }
