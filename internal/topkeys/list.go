package topkeys

import (
	"math"
	"strings"
	"time"
)

// A list counts one kind of decisions, in this generation and the one before it.
type list struct{ now, previous *sketch }

func newList(counters int) list { return list{newSketch(counters), newSketch(counters)} }

// age begins a new generation, and forgets this one too unless it is kept.
func (l *list) age(keep bool) {
	l.now, l.previous = l.previous, l.now
	l.now.clear()
	if !keep {
		l.previous.clear()
	}
}

// A sampledDecision is a decision to count.
type sampledDecision struct {
	hash            uint64
	source          *Source
	key             string
	outcome         Outcome
	cost, remaining int64
	reported        bool // is a number of decisions that were made elsewhere
}

func (l *list) record(at time.Duration, d *sampledDecision, weight uint64) {
	s := l.now.add(d.hash, d.source, d.key, weight)
	if d.outcome == Shadowed {
		s.shadowed += weight
	}
	if d.reported {
		return
	}
	s.keep(keptDecision{at: cut(at.Milliseconds()), cost: cut(d.cost), remaining: cut(d.remaining), outcome: d.outcome})
}

func cut(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// A selection reports whether a summary contains a slot, of a generation that began then. It is
// called under the lock.
type selection func(s *slot, began time.Time) bool

// parts are the summaries of both generations of a list. Memory for so many keys of each is allocated before
// the lock is held.
type parts struct {
	keys    strings.Builder
	entries []Entry
	of      [2]Summary
}

func newParts(room int) *parts {
	p := &parts{entries: make([]Entry, 0, 2*room)}
	p.keys.Grow(2 * room * averageKey)
	return p
}

// read reads the keys of a list that a selection selects.
func (p *parts) read(l *list, began [2]time.Time, selects selection) {
	for i, s := range []*sketch{l.now, l.previous} {
		before := len(p.entries)
		p.entries = s.appendEntries(p.entries, &p.keys, began[i], selects)
		p.of[i] = Summary{Total: s.total, Floor: s.floor(), Entries: p.entries[before:]}
	}
}

// averageKey is the length of a usual key, to allocate memory before the lock is held.
const averageKey = 32

// appendEntries appends the entries of slots that a selection selects. Their keys are parts of one text.
func (s *sketch) appendEntries(entries []Entry, keys *strings.Builder, began time.Time, selects selection) []Entry {
	for i := range s.used {
		slot := &s.slots[i]
		if !selects(slot, began) {
			continue
		}
		start := keys.Len()
		keys.Write(slot.kept())
		entries = append(entries, Entry{
			Rule: slot.source.Rule, Limit: slot.source.Limit, Key: keys.String()[start:], Length: int(slot.length), Rest: slot.rest,
			Count: s.counts[i], Error: slot.error, Shadowed: slot.shadowed,
		})
	}
	return entries
}
