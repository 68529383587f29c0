package engine

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// A Descriptor is one thing to be counted.
type Descriptor struct {
	Entries []rules.Entry
	Cost    int64 // more than 0 takes, 0 looks, less than 0 gives back

	// Limit is the request's own, in place of what the rules say. Under the
	// name [OverrideLimitName], if it has none. Optional.
	Limit           penstock.Limit
	RequestsPerUnit uint32
	Unit            rules.Unit
}

// OverrideLimitName is the name of limits that come without one in a [Descriptor]. So they
// can change from request to request and still count on, as long as the period
// stays the same.
const OverrideLimitName = "override"

// A Status says how one descriptor stands.
type Status struct {
	// Rule is the rule that decided: nil if none matched, or if another
	// replaced it; for a request's own limit, a rule made of that, which is
	// gone when the verdict is used again.
	Rule *rules.Rule

	// Decision is the store's, unless the rule is unlimited. It is a look at the
	// key where another descriptor is the reason for a refusal.
	Decision penstock.Decision

	// OverLimit says that the descriptor is over its limit; never in shadow.
	OverLimit bool
}

// A Result is the answer about all descriptors of a request, in their order. It
// can be used again, which saves allocations.
type Result struct {
	OverLimit bool
	Statuses  []Status

	overrides []rules.Rule // made of the limits that descriptors brought
}

// Decide decides the descriptors by the rules of the domain, all or nothing unless the
// domain is to be compatible with Envoy.
//
// A request that is refused takes and gives back nothing. Shadow rules are
// counted when it passes. Quota rules come first: they refuse it only if all of
// them do. After an error the verdict is empty, and nothing stays charged, as far
// as the store can be reached.
func (e *Engine) Decide(ctx context.Context, domain string, ds []Descriptor, v *Result) error {
	b, err := e.admit(domain, ds)
	if err != nil {
		return err
	}
	v.reset(len(ds))
	d := b.set.Domain(domain)
	if d == nil {
		return nil
	}
	ev := evaluations.Get().(*evaluation)
	defer ev.close()
	ev.engine, ev.result = e, v
	if err := ev.open(b, d, ds); err != nil {
		return err
	}
	over, err := ev.decide(ctx, d)
	ev.count(err)
	if err != nil {
		v.reset(0)
		return err
	}
	v.OverLimit = over && !e.shadow
	return nil
}

// admit returns the rules for a request, if it is one that can be decided.
func (e *Engine) admit(domain string, ds []Descriptor) (*ruleTable, error) {
	b := e.table.Load()
	switch {
	case domain == "":
		return nil, ErrNoDomain
	case len(ds) == 0:
		return nil, ErrNoDescriptors
	case len(ds) > e.maxDescriptors:
		return nil, fmt.Errorf("%w: %d, and at most %d are decided at once", ErrTooManyDescriptors, len(ds), e.maxDescriptors)
	case b == nil:
		return nil, ErrNoRules
	}
	return b, nil
}

// reset makes the verdict one that lets n descriptors pass.
func (v *Result) reset(n int) {
	v.OverLimit = false
	clear(v.Statuses)
	if cap(v.Statuses) < n {
		v.Statuses = make([]Status, n)
	}
	v.Statuses = v.Statuses[:n]
	clear(v.overrides)
	v.overrides = v.overrides[:0]
}

// overrideRule returns a rule made of the limit that a descriptor brings.
func (v *Result) overrideRule(d *Descriptor) *rules.Rule {
	v.overrides = append(v.overrides, rules.Rule{Limit: d.Limit, RequestsPerUnit: d.RequestsPerUnit, Unit: d.Unit})
	r := &v.overrides[len(v.overrides)-1]
	if r.Limit.Name == "" {
		r.Limit.Name = OverrideLimitName
	}
	return r
}
