package engine

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/rules"
)

// RuleCounters are the decision counters of a rule.
type RuleCounters struct {
	Rule  string // the rule's name; "" for ad-hoc limits
	Limit int64  // most units that can be taken at once; 0 for ad-hoc limits

	HasPermits bool // the limit is concurrent

	*Counters
}

// Counters count takes, and neither peeks nor refunds. They survive a reload of the rules.
type Counters struct {
	Denied, Shadowed atomic.Uint64 // requests; Shadowed would have been denied
	DeniedUnits      atomic.Uint64
	Errors           atomic.Uint64

	// Allowed requests: most take one unit, and are counted by one atomic operation.
	singles            atomic.Uint64 // requests that took one unit
	others, otherUnits atomic.Uint64 // requests that took more or none, and what they took

	Hits        Hits      // without those in HitsByValue
	HitsByValue ValueHits // of rules that rules.Rule.HasMetricValues

	Banned atomic.Uint64 // requests denied by a ban; they count as Denied or Shadowed, too

	Permits PermitCounters // of a concurrent limit
}

// Allowed returns how many requests were allowed.
func (t *Counters) Allowed() uint64 { return t.singles.Load() + t.others.Load() }

// AllowedUnits returns how many units the allowed requests took.
func (t *Counters) AllowedUnits() uint64 { return t.singles.Load() + t.otherUnits.Load() }

// PermitCounters count what becomes of permits. What is granted counts as AllowedUnits, renewals
// included. How many are held only the store knows.
type PermitCounters struct {
	Released atomic.Uint64 // permits
	NotHeld  atomic.Uint64 // releases that found no permit: it had expired, or was never granted
	HeldIDs  atomic.Uint64 // requests denied for no other reason than that their ID held a permit
}

// RuleCounters returns the live counters of every rule with a limit, and of request
// limits.
func (e *Engine) RuleCounters() []*RuleCounters {
	all := []*RuleCounters{e.requestLimitState.counters}
	t := e.table.Load()
	if t == nil {
		return all
	}
	for i, r := range t.set.Rules() {
		if !r.Unlimited {
			all = append(all, t.states[i].counters)
		}
	}
	return all
}

// A ruleTable is a set of rules with precomputed state for each.
type ruleTable struct {
	set    *rules.Set
	states []ruleState // by Rule.Index

	unmatched map[string]*atomic.Uint64 // unmatched requests by domain
}

// A ruleState is what the engine keeps for a rule.
type ruleState struct {
	counters  *RuleCounters
	overrides *overrides.Index // of the rule's keys; nil for request limits
	changed   *changedRules

	source  *topkeys.Source // of the rule's keys; nil for request limits, which have one each
	count   int64           // the count of the rule's limit
	counter *countedState   // nil if the rule's hits cannot be counted

	template penstock.Request // under the rule's stored limit, without a key
}

func (e *Engine) newRuleTable(s *rules.Set, old *ruleTable) *ruleTable {
	if s == nil {
		return nil
	}
	kept := old.counters()
	t := &ruleTable{set: s, states: make([]ruleState, len(s.Rules())), unmatched: unmatchedCounters(s, old)}
	for _, r := range s.Rules() {
		counters := kept[r.Name]
		if counters == nil {
			counters = &Counters{}
		}
		t.states[r.Index] = e.newRuleState(s, r)
		state := &t.states[r.Index]
		state.counters = &RuleCounters{
			Rule: r.Name, Limit: r.Limit.Capacity(), HasPermits: r.Limit.HasPermits(), Counters: counters,
		}
		state.overrides, state.changed = e.overrides.Index(r.CountedBy), &changedRules{}
	}
	return t
}

// newRuleState returns the state of a rule without its counters.
func (e *Engine) newRuleState(s *rules.Set, r *rules.Rule) ruleState {
	state := ruleState{
		count:    r.Limit.Count,
		source:   e.topKeys.NewSource(r.Name),
		template: newTemplate(e.store, storedLimit(r, e.isCompat(s, r)), r.KeepFree),
	}
	if canCount(&r.Limit) {
		state.counter = &countedState{newTemplate(e.store, countingLimit(r.Limit), 0)}
	}
	return state
}

// isCompat reports whether the requests of a rule are decided as Envoy's service does.
func (e *Engine) isCompat(s *rules.Set, r *rules.Rule) bool {
	domain, _ := r.Path()
	d := s.Domain(domain)
	return e.compatEnvoy || d != nil && d.CompatEnvoy
}

// counters returns the counters by the names of their rules. The table may be nil.
func (t *ruleTable) counters() map[string]*Counters {
	all := map[string]*Counters{}
	if t == nil {
		return all
	}
	for i := range t.states {
		if c := t.states[i].counters; c != nil {
			all[c.Rule] = c.Counters
		}
	}
	return all
}

// newTemplate returns a request with a compiled limit. The store rejects an invalid limit.
func newTemplate(store penstock.Store, l penstock.Limit, keepFree int64) penstock.Request {
	lim, err := penstock.New(store, l)
	if err != nil {
		return penstock.Request{Limit: l, KeepFree: keepFree}
	}
	return lim.KeepFree(keepFree).Request("")
}

func (t *Counters) countAllowed(units int64) {
	if units == 1 {
		t.singles.Add(1)
		return
	}
	t.others.Add(1)
	t.otherUnits.Add(uint64(min(max(units, 0), maxUnitsPerRequest)))
}

// maxUnitsPerRequest is the most that one request adds to a counter, so that a huge cost
// cannot make it overflow.
const maxUnitsPerRequest = 1 << 40

// countDenied counts a take that was denied, or in shadow mode would have been.
func (t *Counters) countDenied(units int64, shadow bool) {
	if shadow {
		t.Shadowed.Add(1)
		return
	}
	t.Denied.Add(1)
	t.DeniedUnits.Add(uint64(min(units, maxUnitsPerRequest)))
}

// LocalCounters counts the decisions of an API that calls the store itself for speed. It
// belongs to one goroutine, and collects counts until Flush, so that many decisions update
// the shared counters only once.
type LocalCounters struct {
	engine                    *Engine
	allowed, denied, shadowed uint64
	allowedUnits, deniedUnits uint64
	errors                    uint64
}

// LocalCounters returns counters for ad-hoc limits.
func (e *Engine) LocalCounters() LocalCounters { return LocalCounters{engine: e} }

// Count counts the decision about a key, under a request limit and with that cost. In
// shadow mode it changes a denial into an allowed decision.
func (c *LocalCounters) Count(l *penstock.Limit, key string, cost int64, d *penstock.Decision) {
	if cost <= 0 {
		return
	}
	c.engine.topKeys.RecordLimit(l, key, outcomeOf(!d.Allowed, c.engine.shadow), cost, d.Remaining)
	switch {
	case d.Allowed:
		c.allowed++
		c.allowedUnits += uint64(min(max(d.Granted, 0), maxUnitsPerRequest))
	case c.engine.shadow:
		c.shadowed++
		d.Allowed, d.RetryAfter = true, 0
	default:
		c.denied++
		c.deniedUnits += uint64(min(cost, maxUnitsPerRequest))
	}
}

func outcomeOf(denied, shadow bool) topkeys.Outcome {
	switch {
	case !denied:
		return topkeys.Allowed
	case shadow:
		return topkeys.Shadowed
	}
	return topkeys.Denied
}

// Fail counts a request that could not be decided.
func (c *LocalCounters) Fail() { c.errors++ }

// Flush adds the counts to the engine's counters, and resets them.
func (c *LocalCounters) Flush() {
	t := c.engine.requestLimitState.counters.Counters
	if c.allowed > 0 {
		t.others.Add(c.allowed)
		t.otherUnits.Add(c.allowedUnits)
	}
	if c.denied > 0 {
		t.Denied.Add(c.denied)
		t.DeniedUnits.Add(c.deniedUnits)
	}
	if c.shadowed > 0 {
		t.Shadowed.Add(c.shadowed)
	}
	if c.errors > 0 {
		t.Errors.Add(c.errors)
	}
	*c = LocalCounters{engine: c.engine}
}
