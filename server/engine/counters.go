package engine

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// RuleCounters is what a policy has decided so far.
type RuleCounters struct {
	Rule  string // the rule's name; "" for limits that requests name
	Limit int64  // the most that can be taken at once; 0 where there is no one limit

	*Counters
}

// A Counters is the part of [Counts] that keeps counting, also when the rules are
// replaced. Only takes are counted: not looks, and not what is given back.
type Counters struct {
	Allowed, Denied, Shadowed atomic.Uint64 // requests; Shadowed would have been denied
	AllowedUnits, DeniedUnits atomic.Uint64
	Errors                    atomic.Uint64
}

// RuleCounters returns the counts of every rule that limits something, and of requests
// without rules. They keep counting.
func (e *Engine) RuleCounters() []*RuleCounters {
	all := []*RuleCounters{e.adHoc.counters}
	b := e.table.Load()
	if b == nil {
		return all
	}
	for i := range b.states {
		if c := b.states[i].counters; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// A ruleTable is a set of rules with what is worked out once for each.
type ruleTable struct {
	set    *rules.Set
	states []ruleState               // by the rules' indices
	limits map[string]penstock.Limit // of the rules, by their names
}

// A ruleState is a rule made ready for deciding.
type ruleState struct {
	counters *RuleCounters    // nil for a rule that limits nothing
	template penstock.Request // under the rule's limit, for a key yet to be named
}

func newRuleTable(store penstock.Store, s *rules.Set, old *ruleTable) *ruleTable {
	if s == nil {
		return nil
	}
	tallies := old.counters()
	b := &ruleTable{set: s, states: make([]ruleState, len(s.Rules())), limits: map[string]penstock.Limit{}}
	for _, r := range s.Rules() {
		if r.Unlimited {
			continue
		}
		tally := tallies[r.Name]
		if tally == nil {
			tally = &Counters{}
		}
		counts := &RuleCounters{Rule: r.Name, Limit: maxAtOnce(r.Limit), Counters: tally}
		b.limits[r.Limit.Name] = r.Limit.Normal()
		b.states[r.Index] = ruleState{counters: counts, template: newTemplate(store, r.Limit)}
	}
	return b
}

// counters returns the tallies of a book, which may be nil, by the names of rules.
func (b *ruleTable) counters() map[string]*Counters {
	tallies := map[string]*Counters{}
	if b == nil {
		return tallies
	}
	for i := range b.states {
		if c := b.states[i].counters; c != nil {
			tallies[c.Rule] = c.Counters
		}
	}
	return tallies
}

// newTemplate returns a request under a limit, prepared for the store. A limit
// that cannot be counted by is the store's to refuse.
func newTemplate(store penstock.Store, l penstock.Limit) penstock.Request {
	lim, err := penstock.New(store, l)
	if err != nil {
		return penstock.Request{Limit: l}
	}
	return lim.Request("")
}

// maxAtOnce returns the most that can be taken at once under a limit.
func maxAtOnce(l penstock.Limit) int64 {
	l = l.Normal()
	if l.Algorithm == penstock.TokenBucket || l.Algorithm == penstock.LeakyBucket {
		return l.Burst
	}
	return l.Count
}

// countAllowed counts a take that was granted.
func (t *Counters) countAllowed(units int64) {
	t.Allowed.Add(1)
	t.AllowedUnits.Add(uint64(max(units, 0)))
}

// maxUnitsPerRequest is the most that one request adds to a count, so that nobody can make
// the count of all start again by asking for more than there is.
const maxUnitsPerRequest = 1 << 40

// countDenied counts a take that was denied, or would have been.
func (t *Counters) countDenied(units int64, shadow bool) {
	if shadow {
		t.Shadowed.Add(1)
		return
	}
	t.Denied.Add(1)
	t.DeniedUnits.Add(uint64(min(units, maxUnitsPerRequest)))
}
