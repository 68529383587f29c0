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
	now := t.clock()
	found := map[[2]string]*Seen{}
	t.asked.seen(now, key, func(e Entry, last []Decision) {
		s := seenUnder(found, &e)
		s.Asked, s.Last = &e, last
	})
	t.denied.seen(now, key, func(e Entry, last []Decision) {
		s := seenUnder(found, &e)
		s.Denied = &e
		if s.Asked == nil {
			s.Last = last
		}
	})
	all := make([]Seen, 0, len(found))
	for _, s := range found {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Seen) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return all
}

func seenUnder(found map[[2]string]*Seen, e *Entry) *Seen {
	under := [2]string{e.Rule, e.Limit}
	if found[under] == nil {
		found[under] = &Seen{Rule: e.Rule, Limit: e.Limit}
	}
	return found[under]
}

// seen reports a key's entry under each source, and the decisions that were kept.
func (l *list) seen(now time.Time, key string, report func(Entry, []Decision)) {
	var slots [2][]seenSlot
	var floors [2]uint64
	l.mu.Lock()
	l.advance(now)
	for i, s := range []*sketch{l.now, l.previous} {
		slots[i], floors[i] = s.appendSeen(key), s.floor()
	}
	began := [2]time.Time{l.began, l.previousBegan}
	l.mu.Unlock()
	last := map[[2]string][]Decision{}
	var parts [2]Summary
	for i := range slots {
		parts[i].Floor = floors[i]
		for _, s := range slots[i] {
			e := s.entry(key)
			parts[i].Entries = append(parts[i].Entries, e)
			under := [2]string{e.Rule, e.Limit}
			last[under] = append(last[under], s.decisions(began[i])...)
		}
	}
	for _, e := range Merge(parts[:]...).Entries {
		report(e, last[[2]string{e.Rule, e.Limit}])
	}
}

// A seenSlot is a copy of a slot and its count.
type seenSlot struct {
	slot
	count uint64
}

func (s *sketch) appendSeen(key string) (found []seenSlot) {
	rest := restOf(key)
	for i := range s.used {
		if s.slots[i].holds(key, rest) {
			found = append(found, seenSlot{s.slots[i], s.counts[i]})
		}
	}
	return found
}

func (s *seenSlot) entry(key string) Entry {
	return Entry{
		Rule: s.source.Rule, Limit: s.source.Limit(), Key: key[:min(len(key), keyBytes)], Length: int(s.length), Rest: s.rest,
		Count: s.count, Error: s.error, Shadowed: s.shadowed,
	}
}

// decisions returns those that were kept, the newest first.
func (s *seenSlot) decisions(began time.Time) (all []Decision) {
	for i := s.decided; i > 0 && s.decided-i < keptDecisions; i-- {
		d := s.last[(i-1)%keptDecisions]
		all = append(all, Decision{
			Time: began.Add(time.Duration(d.at) * time.Millisecond), Outcome: d.outcome, Cost: int64(d.cost), Remaining: int64(d.remaining),
		})
	}
	return all
}
