package engine

import (
	"context"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/rules"
)

// This file decides the usual request: all its descriptors take from plain rules, which no
// override changes. One pass finds the rules, one makes the requests for the store, and one
// writes the result and counts. What is found of another request, or of one that is denied,
// is handed over to the general path (evaluation.go).

// isPlain reports whether a take under the rule is decided by its limit alone: the rule can
// deny the request, and has nothing to do with other rules, nor with IDs.
func (e *Engine) isPlain(r *rules.Rule) bool {
	return !r.Unlimited && !r.Shadow && !r.Quota && !e.quotaMode && !r.ChargeAlways && !r.Settle &&
		len(r.Replaces) == 0 && r.Limit.Algorithm != penstock.Concurrent
}

// plainTakes are the first descriptors of a request, as long as they are plain. An evaluation
// keeps them for the next one: where the same rule applies, the store's request needs only
// another key and cost.
type plainTakes struct {
	table    *ruleTable // of all rules that are kept, so that an older one can be freed
	takes    []plainTake
	prepared []penstock.Request // one for each of the takes
}

// A plainTake is a descriptor that takes from a plain rule.
type plainTake struct {
	index    int // among the descriptors
	rule     *rules.Rule
	state    *ruleState
	key, end int // position of its key in evaluation.keys
}

// add adds a descriptor, whose key begins where that of the take before ends.
func (p *plainTakes) add(index int, rule *rules.Rule, state *ruleState, key, end int) {
	n := len(p.takes)
	if n == cap(p.takes) {
		p.takes = slices.Grow(p.takes, 1)
		clear(p.takes[n:cap(p.takes)]) // nothing is prepared for them
	}
	p.takes, p.prepared = p.takes[:n+1], slices.Grow(p.prepared, 1)[:n+1]
	t := &p.takes[n]
	if t.state != state {
		t.rule, t.state, p.prepared[n] = rule, state, state.template
	}
	t.index, t.key, t.end = index, key, end
}

// findPlain finds the rules of the descriptors, up to the first that is not plain, and
// returns how many are. No rule applies to some of them.
func (ev *evaluation) findPlain(t *ruleTable, domain *rules.Domain, ds []Descriptor) (n int) {
	if ev.table != t {
		ev.plainTakes = plainTakes{table: t}
	}
	for i := range ds {
		d, start := &ds[i], len(ev.keys)
		if d.Own != nil || d.Cost <= 0 || d.ReleaseOnly {
			return i
		}
		rule, keys := domain.Match(d.Entries, ev.keys)
		if rule == nil {
			ev.unmatched = append(ev.unmatched, i)
			continue
		}
		state := &t.states[rule.Index]
		if key := keys[start:]; !state.plain || len(key) > maxKey || state.overrides.MayFind(viewOf(key)) {
			return i
		}
		ev.keys = keys
		ev.add(i, rule, state, start, len(keys))
	}
	return len(ds)
}

// decidePlain decides a request whose descriptors are all plain.
func (ev *evaluation) decidePlain(ctx context.Context, domain *rules.Domain, ds []Descriptor) (over bool, err error) {
	ev.setText()
	for i := range ev.takes {
		t, r := &ev.takes[i], &ev.prepared[i]
		r.Key, r.Cost = ev.text[t.key:t.end], ds[t.index].Cost
		ev.decisions = append(ev.decisions, penstock.Decision{})
	}
	err = ev.engine.takeAll(ctx, ev.prepared, ev.decisions)
	if err == nil && allAllowed(ev.decisions) && !ev.engine.countHits {
		ev.recordPlain()
		return false, nil
	}
	ev.handOver(ds)
	return ev.recordDenied(domain, ds, err)
}

// recordPlain stores the decisions that allow a request, and counts them.
func (ev *evaluation) recordPlain() {
	for i := range ev.takes {
		t, st := &ev.takes[i], &ev.result.Statuses[ev.takes[i].index]
		st.Rule, st.Decision = t.rule, ev.decisions[i]
		t.state.counters.countAllowed(st.Decision.Granted)
		if keys := ev.engine.topKeys; keys != nil {
			if sample, ok := keys.Sample(topkeys.Allowed); ok {
				keys.RecordSample(sample, t.state.source, ev.prepared[i].Key, ev.prepared[i].Cost, st.Decision.Remaining)
			}
		}
	}
	ev.decisions = ev.decisions[:0]
}

// handOver makes limited descriptors of those that were found, for the general path.
func (ev *evaluation) handOver(ds []Descriptor) {
	for i := range ev.takes {
		t, l := &ev.takes[i], ev.extend()
		l.index, l.rule, l.cost, l.key, l.end = t.index, t.rule, ds[t.index].Cost, t.key, t.end
		l.denyInDebt = ds[t.index].DenyInDebt
		l.setState(t.state)
		ev.result.Statuses[t.index].Rule = t.rule
	}
}

// recordDenied stores and counts the decisions about a request that is denied or failed, or
// whose hits are counted.
func (ev *evaluation) recordDenied(domain *rules.Domain, ds []Descriptor, err error) (over bool, _ error) {
	if err != nil {
		ev.clearQueue() // nothing was taken
	} else {
		over = !allAllowed(ev.decisions)
		ev.requests = append(ev.requests, ev.prepared...)
		for i := range ev.takes {
			ev.queued = append(ev.queued, i)
		}
		ev.plain = true
		ev.record()
	}
	ev.count(domain, ds, err)
	return over, err
}
