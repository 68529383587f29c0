package topkeys

import (
	"cmp"
	"slices"
	"time"
)

// A Seen is what a tracker knows of a key under one rule or limit. A count is nil if the
// key is not in that list.
type Seen struct {
	Rule, Limit   string
	Asked, Denied *Entry
	Last          []Decision // the newest first
}

// A Decision is a decision about a key. A cost or remaining units above 2³² are cut.
type Decision struct {
	Time            time.Time
	Outcome         Outcome
	Cost, Remaining int64
}

// Seen returns what is known of a key, under each rule and limit that it is counted under.
func (t *Tracker) Seen(key string) []Seen {
	if t == nil {
		return nil
	}
	const usualSources = 8
	rest := restOf(key)
	last := [2]map[[2]string][]Decision{{}, {}}
	holding := func(last map[[2]string][]Decision) selection {
		return func(s *slot, began time.Time) bool {
			if !s.holds(key, rest) {
				return false
			}
			under := [2]string{s.source.Rule, s.source.Limit}
			last[under] = append(last[under], s.decisions(began)...)
			return true
		}
	}
	asked, denied := t.summaries(usualSources, holding(last[0]), holding(last[1]))
	var all []Seen
	for i := range asked.Entries {
		e := &asked.Entries[i]
		all = append(all, Seen{Rule: e.Rule, Limit: e.Limit, Asked: e, Last: last[0][[2]string{e.Rule, e.Limit}]})
	}
	for k := range denied.Entries {
		e := &denied.Entries[k]
		i := slices.IndexFunc(all, func(s Seen) bool { return s.Rule == e.Rule && s.Limit == e.Limit })
		if i < 0 {
			i, all = len(all), append(all, Seen{Rule: e.Rule, Limit: e.Limit, Last: last[1][[2]string{e.Rule, e.Limit}]})
		}
		all[i].Denied = e
	}
	slices.SortFunc(all, func(a, b Seen) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return all
}

// decisions returns those that were kept, the newest first.
func (s *slot) decisions(began time.Time) (all []Decision) {
	for i := s.decided; i > 0 && s.decided-i < keptDecisions; i-- {
		d := s.last[(i-1)%keptDecisions]
		all = append(all, Decision{
			Time: began.Add(time.Duration(d.at) * time.Millisecond), Outcome: d.outcome, Cost: int64(d.cost), Remaining: int64(d.remaining),
		})
	}
	return all
}
