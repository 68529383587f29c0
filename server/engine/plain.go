package engine

import (
	"context"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/rules"
)

// This file decides the usual request: all its descriptors take from plain rules, which no
// override changes. One pass finds the rules, one makes the takes for the store, which writes
// its decisions into the result, and one counts. What is found of another request, or of one
// that is denied, is handed over to the general path (evaluation.go).

// isPlain reports whether a take under the rule is decided by its limit alone: the rule can
// deny the request, and has nothing to do with other rules, nor with IDs.
func (e *Engine) isPlain(r *rules.Rule) bool {
	return !r.Unlimited && !r.Shadow && !r.Quota && !e.quotaMode && !r.ChargeAlways && !r.Settle &&
		len(r.Replaces) == 0 && !r.Limit.HasPermits()
}

// plainTakes are the first descriptors of a request, as long as they are plain. An evaluation
// keeps them for the next one: where the same rule applies, what the store gets needs only
// another key and cost.
type plainTakes struct {
	table    *ruleTable // of all rules that are kept, so that an older one can be freed
	takes    []plainTake
	prepared []penstock.PreparedTake // one for each of the takes
}

// A plainTake is a descriptor that takes from a plain rule. The keys of all of them are one
// after the other in evaluation.keys.
type plainTake struct {
	index int // among the descriptors
	rule  *rules.Rule
	state *ruleState
}

// addPlain adds a descriptor that takes from a plain rule.
func (ev *evaluation) addPlain(index int, rule *rules.Rule, state *ruleState, key string, cost int64) {
	n := len(ev.takes)
	if n == cap(ev.takes) {
		ev.grow()
	}
	ev.takes = ev.takes[:n+1]
	ev.prepared = ev.prepared[:n+1]
	t, take := &ev.takes[n], &ev.prepared[n]
	if t.state != state {
		t.rule, t.state, *take = rule, state, state.prepared
	}
	t.index = index
	take.Key, take.Cost, take.Decision = key, cost, &ev.result.Statuses[index].Decision
}

// grow makes room for more takes, for which nothing is prepared.
func (p *plainTakes) grow() {
	n := len(p.takes)
	p.takes = slices.Grow(p.takes, 1)
	clear(p.takes[n:cap(p.takes)])
	p.prepared = slices.Grow(p.prepared, cap(p.takes)-n)
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
		state, key := &t.states[rule.Index], viewOf(keys[start:])
		if !state.plain || len(key) > maxKey || !state.overrides.Empty() && state.overrides.Has(key) {
			return i
		}
		ev.keys = keys
		ev.addPlain(i, rule, state, key, d.Cost)
	}
	return len(ds)
}

// decidePlain decides a request whose descriptors are all plain.
func (ev *evaluation) decidePlain(ctx context.Context, domain *rules.Domain, ds []Descriptor) (over bool, err error) {
	ev.setText()
	err = ev.takePlain(ctx)
	if err == nil && ev.allPlainAllowed() && !ev.engine.countHits {
		ev.recordPlain()
		return false, nil
	}
	ev.handOver(ds)
	return ev.recordDenied(domain, ds, err)
}

// takePlain has the store decide all or nothing, and write the decisions to the result.
func (ev *evaluation) takePlain(ctx context.Context) error {
	store := ev.engine.preparedStore
	switch {
	case len(ev.takes) == 0:
		return nil
	case store != nil:
		return store.TakePrepared(ctx, ev.prepared)
	}
	keys := ev.text
	for i := range ev.takes {
		n := len(ev.prepared[i].Key)
		ev.requests, ev.decisions = append(ev.requests, ev.takes[i].state.template), append(ev.decisions, penstock.Decision{})
		ev.requests[i].Key, ev.requests[i].Cost = keys[:n], ev.prepared[i].Cost
		keys = keys[n:]
	}
	err := ev.engine.takeAll(ctx, ev.requests, ev.decisions)
	for i := range ev.decisions {
		*ev.prepared[i].Decision = ev.decisions[i]
	}
	ev.clearQueue()
	return err
}

func (ev *evaluation) allPlainAllowed() bool {
	for i := range ev.prepared {
		if !ev.prepared[i].Decision.Allowed {
			return false
		}
	}
	return true
}

// recordPlain completes the result of a request that is allowed, and counts it.
func (ev *evaluation) recordPlain() {
	for i := range ev.takes {
		t, take := &ev.takes[i], &ev.prepared[i]
		ev.result.Statuses[t.index].Rule = t.rule
		t.state.counters.countAllowed(take.Decision.Granted)
		if keys := ev.engine.topKeys; keys != nil {
			if sample, ok := keys.Sample(topkeys.Allowed); ok {
				keys.RecordSample(sample, t.state.source, take.Key, take.Cost, take.Decision.Remaining)
			}
		}
	}
}

// handOver makes limited descriptors of those that were found, for the general path.
func (ev *evaluation) handOver(ds []Descriptor) {
	end := 0
	for i := range ev.takes {
		t, l := &ev.takes[i], ev.extend()
		l.index, l.rule, l.cost = t.index, t.rule, ds[t.index].Cost
		l.key, l.end = end, end+len(ev.prepared[i].Key)
		end = l.end
		l.denyInDebt = ds[t.index].DenyInDebt
		l.setState(t.state)
		ev.result.Statuses[t.index].Rule = t.rule
	}
}

// recordDenied completes the result of a request that is denied or failed, or whose hits are
// counted, and counts it.
func (ev *evaluation) recordDenied(domain *rules.Domain, ds []Descriptor, err error) (over bool, _ error) {
	if err == nil {
		over = !ev.allPlainAllowed()
		for i := range ev.limited {
			ev.queue(i, ev.limited[i].cost)
			ev.decisions[i] = *ev.prepared[i].Decision
		}
		ev.plain = true
		ev.record()
	}
	ev.count(domain, ds, err)
	return over, err
}
