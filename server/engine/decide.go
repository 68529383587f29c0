package engine

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rules"
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
	return s.Rule != nil && (!s.Rule.Unlimited || s.Decision.Source == penstock.SourceOverride)
}

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
	return e.evaluate(ctx, domain, under{}, ds, r)
}

// evaluate decides the descriptors, or settles them.
func (e *Engine) evaluate(ctx context.Context, domain string, u under, ds []Descriptor, r *Result) error {
	t, err := e.validate(domain, ds)
	if err != nil {
		return err
	}
	r.reset(len(ds))
	d := t.set.Domain(domain)
	if d == nil {
		if !u.settle {
			e.decideUnknownDomain(domain, ds, r)
		}
		return nil
	}
	ev := evaluations.Get().(*evaluation)
	defer ev.release()
	ev.engine, ev.result, ev.under, ev.compat = e, r, u, d.CompatEnvoy || e.compatEnvoy
	over, err := ev.run(ctx, t, d, ds)
	if err != nil {
		r.reset(0)
		return err
	}
	r.OverLimit = over && !e.shadow
	if !u.settle {
		ev.checkUnmatched(t, d, ds)
	}
	return nil
}

// run reports whether the request is over a limit, and updates the counters.
func (ev *evaluation) run(ctx context.Context, t *ruleTable, d *rules.Domain, ds []Descriptor) (over bool, err error) {
	if err := ev.prepare(ctx, t, d, ds); err != nil {
		return false, err
	}
	over, err = ev.decideAdmitted(ctx)
	ev.count(d, ds, err)
	return over, err
}

// decideAdmitted decides the request, and settles the admissions of its descriptors.
func (ev *evaluation) decideAdmitted(ctx context.Context) (over bool, err error) {
	err = errPanicked
	defer func() { ev.settleAdmissions(err) }()
	return ev.decide(ctx)
}

// HasID reports whether a descriptor has an entry that names a permit under the rules of the
// domain.
func (e *Engine) HasID(domain string, entries []rules.Entry) bool {
	t := e.table.Load()
	return t != nil && t.set.Domain(domain).HasID(entries)
}

// MarkReleases marks the descriptors that release permits, for which the caller needs no
// right to refund: it knows their IDs.
func (e *Engine) MarkReleases(domain string, ds []Descriptor) {
	for i := range ds {
		ds[i].ReleaseOnly = ds[i].Cost < 0 && e.HasID(domain, ds[i].Entries)
	}
}

// validate returns the current rules, or an error if the request is not valid.
func (e *Engine) validate(domain string, ds []Descriptor) (*ruleTable, error) {
	t := e.table.Load()
	switch {
	case domain == "":
		return nil, ErrNoDomain
	case len(ds) == 0:
		return nil, ErrNoDescriptors
	case len(ds) > e.maxDescriptors:
		return nil, fmt.Errorf("%w: %d, at most %d", ErrTooManyDescriptors, len(ds), e.maxDescriptors)
	case t == nil:
		return nil, ErrNoRules
	}
	return t, nil
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
