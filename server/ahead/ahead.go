// Package ahead is for callers that spend units long before they say so: they take units ahead of
// the requests, and report afterwards how many requests they let pass. The engine finds the
// [Target] of such requests; taking units of it and counting reports are here.
package ahead

import (
	"context"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rulestats"
)

// A Target is what limits a descriptor, as the rules and overrides were when it was found.
type Target struct {
	// AllowAll means that nothing limits the descriptor: it has no rule, its rule or
	// key is unlimited, or in shadow mode. DenyAll means that nothing is granted: its
	// key is banned, or the options deny what no rule matches.
	AllowAll, DenyAll bool

	// Shadow means that units are counted, and that AllowAll is set nevertheless.
	Shadow bool

	// Banned means that a ban decides about the key, also if AllowAll is set.
	Banned bool

	// Limit is the limit of the key. It is zero if nothing is counted, and so are the fields below it.
	// Request is for units of the key.
	Limit   penstock.Limit
	Rule    *rules.Rule
	Stats   *rulestats.Rule
	Request penstock.Request

	Source    *topkeys.Source // of the rule's keys; nil if they are not counted
	Penalized bool            // denials count towards the penalty of the rule

	Unmatched     *atomic.Uint64 // the counter of requests that no rule matches; nil if one does
	UnknownDomain bool           // because the domain has none

	Reports *Reports
}

// Reports are where reported requests are counted, beside the statistics of their rule.
type Reports struct {
	TopKeys     *topkeys.Tracker // may be nil
	Overrides   *overrides.Set
	OnUnmatched func(domain string, entries []rules.Entry)
}

// Take takes units of the targets' keys, each at most what is left. It returns after
// an error as well what was taken: the decisions of others are zero. All targets must have
// a limit.
func Take(ctx context.Context, store penstock.Store, ts []Target, units []int64, ds []penstock.Decision) error {
	rs := make([]penstock.Request, len(ts))
	for i := range ts {
		rs[i] = ts[i].Request
		if rs[i].Cost = 0; !ts[i].Banned {
			rs[i].Cost, rs[i].AtMost = max(units[i], 0), true
		}
	}
	err := penstock.TakeEach(ctx, store, rs, ds)
	if err != nil {
		for i := range ts {
			ts[i].Stats.Errors.Add(1)
		}
	}
	return err
}

// CountReported counts requests that were decided with units taken ahead. They are no
// offences if the store did not decide how many units there were.
func (t *Target) CountReported(allowed, denied uint64, offences bool) {
	allowed, denied = min(allowed, rulestats.MaxUnits), min(denied, rulestats.MaxUnits)
	if t.Unmatched != nil {
		t.Unmatched.Add(allowed + denied)
	}
	if t.Stats == nil {
		return
	}
	t.Stats.AddReported(allowed, denied)
	if t.Source != nil {
		t.Reports.TopKeys.RecordReport(t.Source, t.Request.Key, allowed, denied)
	}
	if t.Banned {
		t.Stats.Banned.Add(denied)
	}
	if !t.Penalized || !offences {
		return
	}
	for range min(denied, uint64(t.Rule.Penalty.After)) {
		t.Reports.Overrides.CountDenial(t.Rule.Name, t.Request.Key, t.Rule.Penalty)
	}
}

// CountShadowed counts requests that a rule in shadow mode let pass, and that it would have
// denied.
func (t *Target) CountShadowed(denied uint64) {
	if t.Stats != nil {
		t.Stats.Shadowed.Add(denied)
	}
}

// ReportUnmatched reports a target that no rule matches.
func (t *Target) ReportUnmatched(domain string, entries []rules.Entry) {
	if t.UnknownDomain {
		entries = nil
	}
	if t.Unmatched != nil {
		t.Reports.OnUnmatched(domain, entries)
	}
}
