package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// A Descriptor names one counter of a request.
type Descriptor struct {
	Entries []rules.Entry
	Cost    int64 // above 0 takes, 0 peeks, below 0 refunds

	// Own replaces the rules for this descriptor. Nil means that the rules apply.
	Own *OwnLimit

	// Permits says what the API does about permits of concurrent limits.
	Permits PermitUse

	// ReleaseOnly is for a caller that may not refund: a negative cost releases
	// permits, and applies to no other rule.
	ReleaseOnly bool

	// Void is for what the caller may not do: nothing applies to it, and the others are decided as
	// if it were not there.
	Void bool

	// DenyInDebt denies a peek at a key that owes, or under compat has more hits
	// than the limit. Envoy asks this before it reports hits.
	DenyInDebt bool
}

// An OwnLimit is a limit that a descriptor brings.
type OwnLimit struct {
	Limit penstock.Limit // named [requestlimits.EnvoyName] if it has no name

	// RequestsPerUnit and Unit describe the limit in responses to Envoy.
	RequestsPerUnit uint32
	Unit            rules.Unit

	// MayRefund exempts the limit from the bound of what limits in requests leave
	// behind.
	MayRefund bool
}

// A PermitUse says what an API does about permits of concurrent limits.
type PermitUse uint8

const (
	// NewPermits is for callers that pass on IDs of others: a take under an ID that
	// holds a permit is denied, or else one ID would do for any number of requests.
	NewPermits PermitUse = iota

	// RenewPermits is for callers that know what they hold: the same ID renews.
	RenewPermits

	// NoPermits is for APIs that never learn when a request has ended.
	NoPermits
)

// A Status is the result of one descriptor.
type Status struct {
	// Rule is the rule that decided. It is nil if none matched, or if another
	// rule replaced it. For a descriptor's own limit it is made of that limit, and
	// valid until the Result is used again.
	Rule *rules.Rule

	// Decision is the store's, or that of a ban, and zero for an unlimited rule. If the request
	// is denied because of another descriptor, it is a peek.
	Decision penstock.Decision

	// Quota means that the descriptor denies only together with the request's other
	// quotas.
	Quota bool

	// OverLimit means that the descriptor denies the request. It is false for shadow
	// rules. Without a rule it is true if the options deny unmatched requests.
	OverLimit bool
}

// Limited reports whether the Decision has numbers: those of a limit, or of a ban, which keys of
// unlimited rules can have, too.
func (s *Status) Limited() bool {
	return s.Rule != nil && (!s.Rule.Unlimited || s.Decision.Source == penstock.SourceOverride) && HasNumbers(&s.Decision)
}

// HasNumbers reports whether a decision is about its key. Beside a denial of the deny cache those of
// other limits are not: nothing is known of their keys.
func HasNumbers(d *penstock.Decision) bool { return !d.Allowed || d.Source != penstock.SourceDenyCache }

// A Result holds the results of all descriptors of a request, in their order. It can be
// reused, which saves allocations.
type Result struct {
	OverLimit bool
	Statuses  []Status

	ownRules []rules.Rule // made of the descriptors' own limits
}

// Decide decides the descriptors by the rules of the domain: all or nothing, unless the
// domain has compat: envoy.
//
// A denied request takes and refunds nothing, but releases permits. Shadow rules are counted if it is allowed.
// Quota rules deny only if all of them do. After an error the result is empty, and nothing
// stays charged, as far as the store can be reached.
func (e *Engine) Decide(ctx context.Context, domain string, ds []Descriptor, r *Result) error {
	return e.DecideOn(ctx, domain, Terms{}, ds, r)
}

// An evaluation is one call of DecideOn. find finds the limits of the descriptors
// (find.go), decide takes from them in phases (phases.go), and updateStats updates the statistics
// of the rules (stats.go). Evaluations are pooled, since most of their memory has the same
// size every time.
type evaluation struct {
	found
	queue
	over       bool          // the request is over a limit, as far as it was decided
	began      time.Duration // before the store was called, by the clock of the denials
	metricPath []byte        // of one descriptor at a time
}

var evaluations = sync.Pool{New: func() any { return &evaluation{} }}

// maxKeptKeyBytes is the largest key buffer that goes back to the pool.
const maxKeptKeyBytes = 64 << 10

// release returns the evaluation to the pool, also if the store panicked.
func (ev *evaluation) release() {
	if len(ev.requests) > 0 { // the store panicked
		ev.queue.clear()
	}
	clear(ev.limited)
	if len(ev.templates)+len(ev.further)+len(ev.tried) > 0 { // few requests have any
		clear(ev.templates)
		clear(ev.admissions)
		clear(ev.further)
		clear(ev.tried)
	}
	f := found{
		limited: ev.limited[:0], keys: ev.keys[:0], unmatched: ev.unmatched[:0],
		admissions: ev.admissions[:0], templates: ev.templates[:0], further: ev.further[:0], tried: ev.tried[:0],
	}
	if cap(f.keys) > maxKeptKeyBytes {
		f.keys = nil
	}
	ev.found, ev.over = f, false
	evaluations.Put(ev)
}

// DecideOn is [Engine.Decide] on terms of the caller.
func (e *Engine) DecideOn(ctx context.Context, domain string, terms Terms, ds []Descriptor, r *Result) error {
	ev, err := e.open(domain, terms, ds, r)
	if err != nil {
		return err
	}
	defer ev.release()
	if ev.domain == nil {
		e.decideUnknownDomain(domain, ev)
	} else if err := ev.runByRules(ctx); err != nil {
		return err
	}
	if e.options.OnDecided != nil && !terms.Settle {
		e.options.OnDecided(domain, ds, r.OverLimit)
	}
	if e.options.OnResult != nil {
		e.options.OnResult(ctx, ds, r)
	}
	return nil
}

// runByRules decides a request to a domain with rules.
func (ev *evaluation) runByRules(ctx context.Context) error {
	e, r := ev.engine, ev.result
	ev.tries = len(ev.table.compared) > 0
	over, err := ev.run(ctx)
	if err != nil {
		r.reset(0)
		return err
	}
	if r.OverLimit = over && !e.options.Shadow; over && e.options.Shadow {
		e.Shadowed.Add(1)
	}
	ev.checkUnmatched()
	return nil
}

// open returns an evaluation of the descriptors. Its domain is nil if that has no rules.
func (e *Engine) open(domain string, terms Terms, ds []Descriptor, r *Result) (*evaluation, error) {
	t := e.table.Load()
	switch {
	case domain == "":
		return nil, ErrNoDomain
	case len(ds) == 0:
		return nil, ErrNoDescriptors
	case len(ds) > e.options.MaxDescriptors:
		return nil, fmt.Errorf("%w: %d, at most %d", ErrTooManyDescriptors, len(ds), e.options.MaxDescriptors)
	case t.set == noRules:
		return nil, ErrNoRules
	}
	r.reset(len(ds))
	ev := evaluations.Get().(*evaluation)
	d := t.set.Domain(domain)
	ev.engine, ev.table, ev.domain, ev.terms, ev.ds, ev.result = e, t, d, terms, ds, r
	ev.compat = e.options.CompatEnvoy || d != nil && d.CompatEnvoy
	return ev, nil
}

// run reports whether the request is over a limit, and updates the statistics.
func (ev *evaluation) run(ctx context.Context) (over bool, err error) {
	if err := ev.find(ctx); err != nil {
		return false, err
	}
	if err := ev.admitOwnLimits(); err != nil {
		return false, err
	}
	n := len(ev.limited)
	if ev.hasBeside {
		ev.addBeside()
	}
	over, err = ev.decideAdmitted(ctx)
	if ev.hasBeside {
		ev.mergeBeside(n)
	}
	ev.updateStats(err)
	if len(ev.further) > 0 {
		ev.mergeFurther()
	}
	return over, err
}

// decideAdmitted decides the request, and settles the admissions of its descriptors.
func (ev *evaluation) decideAdmitted(ctx context.Context) (over bool, err error) {
	err = requestlimits.ErrPanicked
	defer func() { ev.settleAdmissions(err) }()
	return ev.decide(ctx)
}

// HasID reports whether a descriptor has an entry that names a permit under the rules of the
// domain.
func (e *Engine) HasID(domain string, entries []rules.Entry) bool {
	return e.table.Load().set.Domain(domain).HasID(entries)
}

// MarkReleases marks the descriptors that release permits, for which the caller needs no
// right to refund: it knows their IDs.
func (e *Engine) MarkReleases(domain string, ds []Descriptor) {
	for i := range ds {
		ds[i].ReleaseOnly = ds[i].Cost < 0 && e.HasID(domain, ds[i].Entries)
	}
}

// reset makes it the result of n descriptors that are all allowed.
func (r *Result) reset(n int) {
	r.OverLimit = false
	clear(r.Statuses)
	if cap(r.Statuses) < n {
		r.Statuses = make([]Status, n)
	}
	r.Statuses = r.Statuses[:n]
	clear(r.ownRules)
	r.ownRules = r.ownRules[:0]
}

// ownRule returns a rule made of a descriptor's own limit.
func (r *Result) ownRule(own *OwnLimit) *rules.Rule {
	r.ownRules = append(r.ownRules, rules.Rule{Limit: own.Limit, RequestsPerUnit: own.RequestsPerUnit, Unit: own.Unit})
	rule := &r.ownRules[len(r.ownRules)-1]
	rule.Limit = requestlimits.Of(rule.Limit)
	if rule.Limit.Name == "" {
		rule.Limit.Name = requestlimits.EnvoyName
	}
	return rule
}

// A request is unmatched if no rule matches any of its descriptors, and none has a limit of
// its own: nothing limits it. Only takes count; a peek or a refund asks for nothing.

// UnmatchedCounter is how many requests to a domain were unmatched.
type UnmatchedCounter struct {
	Domain string // "" for all domains without rules, since callers choose their names
	Count  uint64
}

// UnmatchedCounters returns the counter of every domain, and of all unknown domains.
func (e *Engine) UnmatchedCounters() []UnmatchedCounter {
	all := []UnmatchedCounter{{Count: e.unknownDomain.Load()}}
	t := e.table.Load()
	for _, d := range t.set.Domains() {
		all = append(all, UnmatchedCounter{d.Name, t.unmatched[d.Name].Load()})
	}
	return all
}

// decideUnknownDomain decides a request to a domain without rules.
func (e *Engine) decideUnknownDomain(domain string, ev *evaluation) {
	if ev.takes() {
		e.options.OnUnmatched(domain, nil)
		e.decideUnmatched(&e.unknownDomain, ev.result)
	}
}

// checkUnmatched reports the descriptors without a rule, and decides the request if no
// descriptor has one.
func (ev *evaluation) checkUnmatched() {
	if len(ev.unmatched) == 0 || !ev.takes() {
		return
	}
	for _, i := range ev.unmatched {
		if !ev.ds[i].Void {
			ev.engine.options.OnUnmatched(ev.domain.Name, ev.ds[i].Entries)
		}
	}
	if len(ev.unmatched) == len(ev.ds) {
		ev.engine.decideUnmatched(ev.table.unmatched[ev.domain.Name], ev.result)
	}
}

// decideUnmatched counts an unmatched request, and denies it if the options say so.
func (e *Engine) decideUnmatched(counter *atomic.Uint64, r *Result) {
	counter.Add(1)
	if !e.options.DenyUnmatched || e.options.Shadow {
		return
	}
	r.OverLimit = true
	for i := range r.Statuses {
		r.Statuses[i].OverLimit = true
	}
}

// takes reports whether a descriptor asks for units.
func (r *request) takes() bool {
	return !r.terms.Settle && slices.ContainsFunc(r.ds, func(d Descriptor) bool { return d.Cost > 0 })
}
