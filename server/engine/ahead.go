package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/rulestats"
)

// Some callers spend units long before they say so: they get units ahead of the requests,
// and report afterwards how many requests they let pass. For them the engine does the
// three parts of a decision one by one: FindTarget, TakeAhead and Target.CountReported.

// A Target is what limits a descriptor, as the rules and overrides were when it was found.
type Target struct {
	// AllowAll means that nothing limits the descriptor: it has no rule, its rule or
	// key is unlimited, or in shadow mode. DenyAll means that nothing is granted: its
	// key is banned, or the options deny what no rule matches.
	AllowAll, DenyAll bool

	// Shadow means that units are counted, and that AllowAll is set nevertheless.
	Shadow bool

	// Limit is the limit of the key. It is zero if nothing is counted.
	Limit penstock.Limit

	engine    *Engine
	rule      *rules.Rule      // nil without a limit
	state     *ruleState       // of the rule
	request   penstock.Request // for no units of the key
	banned    bool
	penalized bool           // denials count towards the penalty of the rule
	unmatched *atomic.Uint64 // the counter of requests that no rule matches; nil if one does
}

// FindTarget returns what limits a descriptor of a domain. Its errors are those of Decide.
func (e *Engine) FindTarget(ctx context.Context, domain string, entries []rules.Entry) (Target, error) {
	ds := []Descriptor{{Entries: entries, Cost: 1, Permits: NoPermits}}
	var r Result
	ev, err := e.open(domain, Terms{}, ds, &r)
	if err != nil {
		return Target{}, err
	}
	defer ev.release()
	if ev.domain == nil {
		return e.unmatchedTarget(&e.unknownDomain), nil
	}
	if err := ev.find(ctx); err != nil {
		return Target{}, err
	}
	switch {
	case len(ev.unmatched) > 0:
		return e.unmatchedTarget(ev.table.unmatched[domain]), nil
	case len(ev.limited) == 0:
		return Target{engine: e, AllowAll: true}, nil
	case len(ev.limited) > 1:
		return ev.severalTarget()
	case ev.limited[0].template.Limit.HasQueue():
		return Target{}, fmt.Errorf("rule %s: %w", ev.limited[0].rule.Name, ErrQueue)
	}
	return ev.target(&ev.limited[0]), nil
}

// severalTarget returns the target of a descriptor with several limits: the ban of its key, or an error.
func (f *found) severalTarget() (Target, error) {
	for i := range f.limited {
		if t := f.target(&f.limited[i]); t.DenyAll {
			return t, nil
		}
	}
	return Target{}, fmt.Errorf("rule %s: %w", f.limited[0].rule.Name, ErrSeveralLimits)
}

func (e *Engine) unmatchedTarget(counter *atomic.Uint64) Target {
	deny := e.options.DenyUnmatched && !e.options.Shadow
	return Target{engine: e, AllowAll: !deny, DenyAll: deny, unmatched: counter}
}

// target returns what limits a descriptor that has a limit.
func (f *found) target(d *limitedDescriptor) Target {
	shadow := d.rule.Shadow || f.engine.options.Shadow
	t := Target{
		engine:   f.engine,
		AllowAll: shadow, Shadow: shadow,
		DenyAll: d.isBanned() && !shadow, banned: d.isBanned(),
		Limit: d.rule.Limit, rule: d.rule, state: d.state, request: *d.template,
		penalized: d.rule.Penalty != nil && d.override == nil && !shadow,
	}
	if d.addsHits() { // it would grant more than the rule's own limit, which has the same state
		t.request = newTemplate(f.engine.store, storedLimit(d.rule, false), d.rule.KeepFree)
	}
	t.request.Key = strings.Clone(f.keyOf(d))
	return t
}

// TakeAhead takes units of the targets' keys, each at most what is left. It returns after
// an error as well what was taken: the decisions of others are zero. All targets must have
// a limit.
func (e *Engine) TakeAhead(ctx context.Context, ts []Target, units []int64, ds []penstock.Decision) error {
	rs := make([]penstock.Request, len(ts))
	for i := range ts {
		rs[i] = ts[i].request
		rs[i].Cost, rs[i].AtMost = max(units[i], 0), true
		if ts[i].banned {
			rs[i].Cost, rs[i].AtMost = 0, false
		}
	}
	err := penstock.TakeEach(ctx, e.calls, rs, ds)
	if err != nil {
		for i := range ts {
			ts[i].state.stats.Errors.Add(1)
		}
	}
	return err
}

// CountReported counts requests that were decided with units taken ahead. They are no
// offences if the store did not decide how many units there were.
func (t *Target) CountReported(allowed, denied uint64, offences bool) {
	allowed, denied = min(allowed, rulestats.MaxUnits), min(denied, rulestats.MaxUnits)
	if t.unmatched != nil {
		t.unmatched.Add(allowed + denied)
	}
	if t.state == nil {
		return
	}
	c := t.state.stats
	c.AddReported(allowed, denied)
	if t.state.source != nil {
		t.engine.options.TopKeys.RecordReport(t.state.source, t.request.Key, allowed, denied)
	}
	if t.banned {
		c.Banned.Add(denied)
	}
	if !t.penalized || !offences {
		return
	}
	for range min(denied, uint64(t.rule.Penalty.After)) {
		t.engine.options.Overrides.CountDenial(t.rule.Name, t.request.Key, t.rule.Penalty)
	}
}

// CountShadowed counts requests that a rule in shadow mode let pass, and that it would have
// denied.
func (t *Target) CountShadowed(denied uint64) {
	if t.state != nil {
		t.state.stats.Shadowed.Add(denied)
	}
}

// ReportUnmatched tells the options' OnUnmatched of a target that no rule matches.
func (t *Target) ReportUnmatched(domain string, entries []rules.Entry) {
	if t.unmatched == &t.engine.unknownDomain {
		entries = nil
	}
	if t.unmatched != nil {
		t.engine.options.OnUnmatched(domain, entries)
	}
}
