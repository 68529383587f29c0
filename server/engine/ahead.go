package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/ahead"
	"github.com/penstock-io/penstock/server/hitlimit"
)

// FindTarget returns what limits a descriptor of a domain. Its errors are those of Decide.
func (e *Engine) FindTarget(ctx context.Context, domain string, entries []rules.Entry) (ahead.Target, error) {
	ds := []Descriptor{{Entries: entries, Cost: 1, Permits: NoPermits}}
	var r Result
	ev, err := e.open(domain, Terms{}, ds, &r)
	if err != nil {
		return ahead.Target{}, err
	}
	defer ev.release()
	if ev.domain == nil {
		return e.unmatchedTarget(&e.unknownDomain), nil
	}
	if err := ev.find(ctx); err != nil {
		return ahead.Target{}, err
	}
	switch {
	case len(ev.unmatched) > 0:
		return e.unmatchedTarget(ev.table.unmatched[domain]), nil
	case len(ev.limited) == 0:
		return ahead.Target{AllowAll: true}, nil
	case len(ev.limited) > 1:
		return ev.severalTarget()
	case ev.limited[0].template.Limit.HasQueue():
		return ahead.Target{}, fmt.Errorf("rule %s: %w", ev.limited[0].rule.Name, ErrQueue)
	}
	return ev.target(&ev.limited[0]), nil
}

// severalTarget returns the target of a descriptor with several limits: the ban of its key, or an error.
func (f *found) severalTarget() (ahead.Target, error) {
	for i := range f.limited {
		if t := f.target(&f.limited[i]); t.DenyAll {
			return t, nil
		}
	}
	return ahead.Target{}, fmt.Errorf("rule %s: %w", f.limited[0].rule.Name, ErrSeveralLimits)
}

func (e *Engine) unmatchedTarget(counter *atomic.Uint64) ahead.Target {
	deny := e.options.DenyUnmatched && !e.options.Shadow
	return ahead.Target{
		AllowAll: !deny, DenyAll: deny,
		Unmatched: counter, UnknownDomain: counter == &e.unknownDomain, Reports: &e.reports,
	}
}

// target returns what limits a descriptor that has a limit.
func (f *found) target(d *limitedDescriptor) ahead.Target {
	shadow := d.rule.Shadow || f.engine.options.Shadow
	t := ahead.Target{
		AllowAll: shadow, Shadow: shadow,
		DenyAll: d.isBanned() && !shadow, Banned: d.isBanned(),
		Limit: d.rule.Limit, Rule: d.rule, Stats: d.state.stats, Source: d.state.source, Request: *d.template,
		Penalized: d.rule.Penalty != nil && d.override == nil && !shadow,
		Reports:   &f.engine.reports,
	}
	if d.addsHits() { // it would grant more than the rule's own limit, which has the same state
		t.Request = newTemplate(f.engine.store, hitlimit.Stored(d.rule, false), d.rule.KeepFree)
	}
	t.Request.Key = strings.Clone(f.keyOf(d))
	return t
}

// TakeAhead is [ahead.Take] on the engine's store.
func (e *Engine) TakeAhead(ctx context.Context, ts []ahead.Target, units []int64, ds []penstock.Decision) error {
	return ahead.Take(ctx, e.calls, ts, units, ds)
}
