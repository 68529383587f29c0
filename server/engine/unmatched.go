package engine

import (
	"sync/atomic"

	"github.com/penstock-io/penstock/server/rules"
)

// A request is unmatched if no rule matches any of its descriptors, and none has a limit of
// its own: nothing limits it. Only takes count; a peek or a refund asks for nothing.

// UnmatchedCounter is how many requests to a domain were unmatched.
type UnmatchedCounter struct {
	Domain string // "" for all domains without rules, since callers choose their names
	Count  uint64
}

// UnmatchedCounters returns the counter of every domain, and of all unknown domains.
func (e *Engine) UnmatchedCounters() []UnmatchedCounter {
	all := []UnmatchedCounter{{Count: e.unknownDomain.Load()}}
	t := e.table.Load()
	if t == nil {
		return all
	}
	for _, d := range t.set.Domains() {
		all = append(all, UnmatchedCounter{d.Name, t.unmatched[d.Name].Load()})
	}
	return all
}

// unmatchedCounters returns a counter for each domain. Domains of the old table keep theirs.
func unmatchedCounters(s *rules.Set, old *ruleTable) map[string]*atomic.Uint64 {
	counters := map[string]*atomic.Uint64{}
	for _, d := range s.Domains() {
		counters[d.Name] = &atomic.Uint64{}
		if old != nil && old.unmatched[d.Name] != nil {
			counters[d.Name] = old.unmatched[d.Name]
		}
	}
	return counters
}

// decideUnknownDomain decides a request to a domain without rules.
func (e *Engine) decideUnknownDomain(domain string, ds []Descriptor, r *Result) {
	if !takes(ds) {
		return
	}
	e.onUnmatched(domain, nil)
	e.decideUnmatched(&e.unknownDomain, r)
}

// checkUnmatched reports the descriptors without a rule, and decides the request if no
// descriptor has one.
func (ev *evaluation) checkUnmatched(t *ruleTable, domain *rules.Domain, ds []Descriptor) {
	if len(ev.unmatched) == 0 || !takes(ds) {
		return
	}
	for _, i := range ev.unmatched {
		ev.engine.onUnmatched(domain.Name, ds[i].Entries)
	}
	if len(ev.unmatched) == len(ds) {
		ev.engine.decideUnmatched(t.unmatched[domain.Name], ev.result)
	}
}

// decideUnmatched counts an unmatched request, and denies it if the options say so.
func (e *Engine) decideUnmatched(counter *atomic.Uint64, r *Result) {
	counter.Add(1)
	if !e.denyUnmatched || e.shadow {
		return
	}
	r.OverLimit = true
	for i := range r.Statuses {
		r.Statuses[i].OverLimit = true
	}
}

// takes reports whether a descriptor asks for units.
func takes(ds []Descriptor) bool {
	for i := range ds {
		if ds[i].Cost > 0 {
			return true
		}
	}
	return false
}
