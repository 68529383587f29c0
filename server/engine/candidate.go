package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/candidates"
)

// A candidate is a limit that is tried beside one in force: a descriptor is added under it that never denies, and is
// asked in the phase of the one that it may replace, in the same call of the store or at the same time. So there are
// two worlds: the limits in force, and these with the candidates in place of those that they replace. A candidate is
// charged as if its world decided: nothing is, if that denies the request.

// A trial is a candidate of a rule.
type trial struct {
	rule     *rules.Rule
	state    *ruleState
	compared *candidates.Comparison // nil if it is not compared
	same     bool                   // as the rule of that name in force
}

// addCandidates adds the descriptors once more under the candidates of their rules. They are plain if all of these are.
func (f *found) addCandidates() (plain bool) {
	n := len(f.limited)
	if most := len(f.ds) * (1 + rules.MaxAlso); cap(f.tried) < most { // the statuses must not move
		f.tried = make([]Status, 0, most)
	}
	plain = true
	for i := range n {
		if d := &f.limited[i]; !d.further && d.isTried() && d.state.candidate != nil {
			d.replaced = true
			plain = f.addCandidate(d.index, d.key, d.end, d.state.candidate) && plain
		}
	}
	if f.table.tried != nil {
		plain = f.addTriedRules(n) && plain
	}
	return plain
}

// isTried reports whether candidates are counted beside the descriptor: it takes from the limit of its rule, or refunds.
func (d *limitedDescriptor) isTried() bool {
	return d.cost != 0 && !d.own && d.override == nil && d.id == "" && d.state != nil
}

// addTriedRules adds the descriptors under the set of rules that is tried as a whole, where it differs from the first n
// of those found.
func (f *found) addTriedRules(n int) (plain bool) {
	domain := f.table.tried.Domain(f.domain.Name)
	plain = true
	for i := range f.ds {
		if domain == nil || f.ds[i].Cost == 0 || f.ds[i].Own != nil {
			continue
		}
		start := len(f.keys)
		var rule *rules.Rule
		if rule, f.keys = domain.Match(f.ds[i].Entries, f.keys); rule == nil || !f.limited[:n].replaceBy(f.table.trials[rule.Index], i) {
			f.keys = f.keys[:start]
			continue
		}
		f.keys = rules.ShortenKey(f.keys, start)
		for end := len(f.keys); rule != nil; rule = rule.Also {
			plain = f.addCandidate(i, start, end, f.table.trials[rule.Index]) && plain
		}
	}
	return plain
}

// replaceBy reports whether a rule that is tried replaces the limits of a descriptor.
func (all limitedDescriptors) replaceBy(t *trial, index int) bool {
	if t == nil || slices.ContainsFunc(all, func(d limitedDescriptor) bool {
		return d.index == index && (!d.isTried() || d.replaced || t.same && d.rule.Name == t.rule.Name)
	}) {
		return false
	}
	for i := range all {
		all[i].replaced = all[i].replaced || all[i].index == index
	}
	return true
}

// addCandidate adds a descriptor under a candidate, by a key.
func (f *found) addCandidate(index, key, end int, t *trial) (plain bool) {
	cost := f.ds[index].Cost
	switch {
	case t == nil, f.terms.Settle && !t.rule.Settle:
		return true
	case f.terms.ID != "" && (t.rule.ChargeAlways || cost < 0): // setID would refuse the request
		return true
	}
	f.tried = append(f.tried, Status{Rule: t.rule})
	f.limited = append(f.limited, limitedDescriptor{
		trial: t, index: index, status: &f.tried[len(f.tried)-1], rule: t.rule,
		cost: cost, key: key, end: end, phase: phaseEnforced,
	})
	f.limited[len(f.limited)-1].setState(t.state)
	return t.state.plain
}

// phaseBeside returns the phase of the descriptor that a candidate may replace.
func (all limitedDescriptors) phaseBeside(d *limitedDescriptor) phase {
	for i := range all {
		if o := &all[i]; o.index == d.index && o.trial == nil {
			return o.phase
		}
	}
	return phaseEnforced
}

// callBeside has the store decide a queue all or nothing, except for candidates, which are last. One limit needs no
// more than a call beside them. Of several, candidates are a call of their own, at the same time, so that the request
// waits for one round trip: all or nothing for the first of a batch alone would be a further operation of every store
// and every wrapper. What that call leaves open is not compared.
func (ev *evaluation) callBeside(ctx context.Context) error {
	store, n := ev.engine.calls, 0
	for n < len(ev.queued) && ev.queued[n].trial == nil {
		n++
	}
	if n < 2 {
		return penstock.TakeEach(ctx, store, ev.requests, ev.decisions)
	}
	wait := ev.engine.beside.Start(func() { _ = penstock.TakeEach(ctx, store, ev.requests[n:], ev.decisions[n:]) })
	defer wait()
	return penstock.TakeAll(ctx, store, ev.requests[:n], ev.decisions[:n])
}

// putCandidatesLast moves them behind the limits in force, which a store decides then whatever fails about candidates.
func (q *queue) putCandidatesLast() {
	n := 0
	for i, d := range q.queued {
		if d.trial != nil {
			continue
		}
		for j := i; j > n; j-- {
			q.queued[j], q.queued[j-1] = q.queued[j-1], q.queued[j]
			q.requests[j], q.requests[j-1] = q.requests[j-1], q.requests[j]
		}
		n++
	}
}

// isAboutCandidate reports whether an error is about candidates alone: the limits in force, which come before them, are
// decided.
func (q *queue) isAboutCandidate(err error) bool {
	for n, d := range q.queued {
		if d.trial == nil && q.decisions[n] == (penstock.Decision{}) {
			return false
		}
	}
	var about *penstock.RequestError
	return q.queued[0].trial != nil || errors.As(err, &about) && about.Index < len(q.queued) && q.queued[about.Index].trial != nil
}

// outcomes returns what both worlds say of a candidate's descriptor, and whether another limit of the candidate's
// world denies the request.
func (all limitedDescriptors) outcomes(d *limitedDescriptor) (inForce, candidate, others bool) {
	candidate = d.denied
	for i := range all {
		o := &all[i]
		same := o.index == d.index
		switch {
		case o == d || !o.denied:
		case o.replaced:
			inForce = inForce || same && (!o.rule.Shadow || d.rule.Shadow)
		case o.trial != nil && same:
			candidate = true
		case !o.rule.Shadow:
			others = true
		}
	}
	return inForce, candidate, others
}

// compare compares what the candidates say of the request with what the limits in force say. What was decided without
// the store says nothing about either.
func (f *found) compare() {
	for i := range f.limited {
		if f.limited[i].status.Decision.Source == penstock.SourceFallback {
			return
		}
	}
	for i := range f.limited {
		d := &f.limited[i]
		if d.trial == nil || d.trial.compared == nil || d.cost <= 0 || !d.decided {
			continue
		}
		if inForce, candidate, others := f.limited.outcomes(d); !others {
			d.trial.compared.Count(f.keyOf(d), inForce, candidate)
		}
	}
}

// A candidateTable is the part of a ruleTable that is about candidates.
type candidateTable struct {
	compared []*candidates.Comparison
	tried    *rules.Set // as a whole; nil if none is
	trials   []*trial   // by Rule.Index of tried; nil if they cannot be counted
}

func (t *ruleTable) addTrials(old *ruleTable) {
	for _, r := range t.set.Rules() {
		if c, about := t.engine.Trials.Of(r); c != nil {
			t.states[r.Index].candidate = t.newTrial(c, about, old)
		}
	}
	if t.tried = t.engine.Trials.Rules(); t.tried == nil {
		return
	}
	t.trials = make([]*trial, len(t.tried.Rules()))
	for i, p := range candidates.Pairs(t.set, t.tried) {
		if p.Rule != nil {
			if p.InForce != nil && t.states[p.InForce.Index].candidate != nil {
				p.Trial = nil // the candidate of the rule in force is counted in its place
			}
			t.trials[i] = t.newTrial(p.Rule, p.Trial, old)
			t.trials[i].same = p.Same
		}
	}
}

func (t *ruleTable) newTrial(c *rules.Rule, about *candidates.Trial, old *ruleTable) *trial {
	added := &trial{rule: c, state: t.newState(c)}
	if about != nil {
		added.compared = t.engine.comparedKeys.Compare(about, old.compared)
		t.compared = append(t.compared, added.compared)
	}
	return added
}

// Candidates returns the candidates with what they were compared with.
func (e *Engine) Candidates() []*candidates.Comparison { return e.table.Load().compared }
