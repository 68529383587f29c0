package engine

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/hitlimit"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rulestats"
)

// A ruleTable is a set of rules with precomputed state for each.
type ruleTable struct {
	set       *rules.Set
	states    []ruleState               // by Rule.Index
	unmatched map[string]*atomic.Uint64 // unmatched requests by domain

	engine *Engine
	candidateTable
}

// A ruleState is what the engine keeps for a rule.
type ruleState struct {
	stats     *RuleStats
	plain     bool             // takes are decided by the limit alone: see IsPlain
	overrides *overrides.Index // of the rule's keys; nil for request limits
	changed   *sync.Map        // *overrides.Action to *changedRule

	source   *topkeys.Source   // of the rule's keys; nil for request limits, which have one each
	maxHits  int64             // the count of the rule's limit
	hits     *penstock.Request // under the rule's hits limit, without a key; nil without one
	template penstock.Request  // under the rule's stored limit, without a key

	candidate *trial // nil without one
}

// noRules is the set of an engine before rules are loaded.
var noRules = &rules.Set{}

func newRuleTable(e *Engine, s *rules.Set, old *ruleTable) *ruleTable {
	if s == nil {
		return &ruleTable{set: noRules, engine: e}
	}
	kept := old.stats()
	t := &ruleTable{set: s, states: make([]ruleState, len(s.Rules())), unmatched: unmatchedCounters(s, old), engine: e}
	for _, r := range s.Rules() {
		stats, state := cmp.Or(kept[r.Name], &rulestats.Stats{}), t.newState(r)
		state.stats = &RuleStats{Rule: r.Name, Limit: r.Limit.Capacity(), HasPermits: r.Limit.HasPermits(), Stats: stats}
		state.overrides, state.changed = e.options.Overrides.Index(r.CountedBy), &sync.Map{}
		t.states[r.Index] = *state
	}
	t.addTrials(old)
	return t
}

// stateOf returns the state of a rule, or nil if the rules were reloaded meanwhile.
func (t *ruleTable) stateOf(r *rules.Rule) *ruleState {
	if r.Index >= len(t.states) || t.set.Rules()[r.Index] != r {
		return nil
	}
	return &t.states[r.Index]
}

// newState returns the state of a rule without its statistics.
func (t *ruleTable) newState(r *rules.Rule) *ruleState {
	e := t.engine
	s := &ruleState{
		plain:    !e.options.QuotaMode && IsPlain(r),
		maxHits:  r.Limit.Count,
		source:   e.options.TopKeys.NewSource(r.Name),
		template: newTemplate(e.store, hitlimit.Stored(r, t.isCompat(r)), r.KeepFree),
	}
	if hitlimit.Has(&r.Limit) {
		hits := newTemplate(e.store, hitlimit.Of(r.Limit), 0)
		s.hits = &hits
	}
	return s
}

// IsPlain reports whether a take under the rule can deny the request, is not delayed, and has nothing
// to do with other rules, nor with IDs.
func IsPlain(r *rules.Rule) bool {
	return !r.Unlimited && !r.Shadow && !r.Quota && !r.ChargeAlways && !r.Settle && len(r.Replaces) == 0 &&
		!r.Limit.HasPermits() && !r.Limit.HasQueue()
}

// newTemplate returns a request with a compiled limit. The store rejects an invalid limit.
func newTemplate(store penstock.Store, l penstock.Limit, keepFree int64) penstock.Request {
	lim, err := penstock.New(store, l)
	if err != nil {
		return penstock.Request{Limit: l, KeepFree: keepFree}
	}
	return lim.KeepFree(keepFree).Request("")
}

// isCompat reports whether the requests of a rule are decided as Envoy's service does.
func (t *ruleTable) isCompat(r *rules.Rule) bool {
	domain, _ := r.Path()
	d := t.set.Domain(domain)
	return t.engine.options.CompatEnvoy || d != nil && d.CompatEnvoy
}

// stats returns the statistics by the names of their rules.
func (t *ruleTable) stats() map[string]*rulestats.Stats {
	all := map[string]*rulestats.Stats{}
	for i := range t.states {
		s := t.states[i].stats
		all[s.Rule] = s.Stats
	}
	return all
}

// unmatchedCounters returns a counter for each domain. Domains of the old table keep theirs.
func unmatchedCounters(s *rules.Set, old *ruleTable) map[string]*atomic.Uint64 {
	counters := map[string]*atomic.Uint64{}
	for _, d := range s.Domains() {
		counters[d.Name] = cmp.Or(old.unmatched[d.Name], &atomic.Uint64{})
	}
	return counters
}
