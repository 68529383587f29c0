package audit

import (
	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// This file is about the APIs that carry traffic. There, a refund or reset is a request
// with a cost below 0.

// OfRequest returns the entry of a request that returns units under the limit that it
// brings.
func (e Entry) OfRequest(limit, key string, cost int64) Entry {
	e.Action, e.Target = actionOf(cost), Target{Limit: limit, Key: key}
	return e
}

// OfDescriptors returns an entry for each descriptor that returns units by the rules of a
// domain.
func (e Entry) OfDescriptors(domain string, ds []engine.Descriptor) (entries []Entry) {
	for i := range ds {
		if ds[i].Cost < 0 {
			e.Action, e.Target = actionOf(ds[i].Cost), Target{Domain: domain, Key: string(rules.AppendKey(nil, ds[i].Entries))}
			entries = append(entries, e)
		}
	}
	return entries
}

func actionOf(cost int64) string {
	if cost == penstock.Reset {
		return KeyReset
	}
	return KeyRefund
}

// Return adds to the record which units were returned, by the decision of the store. The rule is
// nil if none applied.
func (p *Pending) Return(rule *rules.Rule, d *penstock.Decision) {
	if rule != nil {
		p.Target.Rule = rule.Name
	}
	switch {
	case rule != nil && rule.Unlimited:
		p.Detail = "the rule is unlimited"
	case rule == nil && p.Target.Limit == "":
		p.Detail = "no rule applies"
	default:
		p.Before, p.After, p.Units = Before(d), After(d), -min(d.Granted, 0)
	}
	if rule != nil && !rule.Unlimited {
		p.Target.Limit = rule.Limit.WithName("").String()
	}
}

// ReturnAll records how the actions of OfDescriptors ended, in the same order.
func ReturnAll(ps []*Pending, ds []engine.Descriptor, result *engine.Result, err error) {
	if err != nil {
		failAll(ps, err)
		return
	}
	for i := range ds {
		if ds[i].Cost < 0 {
			ps[0].Return(result.Statuses[i].Rule, &result.Statuses[i].Decision)
			ps[0].Done()
			ps = ps[1:]
		}
	}
}

func failAll(ps []*Pending, err error) {
	for _, p := range ps {
		p.Fail(err)
	}
}

// RefuseAll is [Log.Refuse] for several actions of one request.
func (l *Log) RefuseAll(entries []Entry, detail string) {
	for _, e := range entries {
		l.Refuse(e, detail)
	}
}
