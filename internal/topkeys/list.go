package topkeys

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxPerSecond is how many decisions a second are counted. Above it they are
	// sampled.
	maxPerSecond = 20_000

	// generation is how long a sketch counts by default. The one before it is kept, so a list is
	// about the last one to two generations.
	generation = time.Minute

	maxStep = 1 << 20
)

// A list counts one kind of decisions. Its lock is held only for decisions that are
// sampled.
type list struct {
	generation time.Duration // how long a sketch counts

	mask atomic.Uint32 // step - 1: one in step decisions is sampled, with the weight step

	mu            sync.Mutex
	now, previous *sketch
	began         time.Time // of the generation
	previousBegan time.Time // zero if there was none
	steps         [2]uint64 // the largest in this generation and in the previous one

	second    time.Time // when counting of the rate began
	decisions uint64    // since then, estimated
	sampled   int       // since then, or since the step was doubled
}

func newList(o *Options, now time.Time) *list {
	return &list{
		generation: o.Generation, now: newSketch(o.Counters), previous: newSketch(o.Counters),
		began: now, second: now, steps: [2]uint64{1, 1},
	}
}

// sample returns the weight of the next decision, and 0 if it is left out. Chance decides:
// if every eighth decision were counted, a client could learn to be one of the others.
func (l *list) sample() uint64 {
	mask := l.mask.Load()
	if mask != 0 && rand.Uint32()&mask != 0 {
		return 0
	}
	return uint64(mask) + 1
}

// A sampledDecision is a decision to count.
type sampledDecision struct {
	hash            uint64
	source          *Source
	key             string
	weight          uint64
	outcome         Outcome
	cost, remaining int64
	reported        bool // is a number of decisions that were made elsewhere
}

func (l *list) record(now time.Time, d *sampledDecision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
	if !d.reported { // a report is one call, however many decisions it is about
		l.pace(now, d.weight)
	}
	s := l.now.add(d.hash, d.source, d.key, d.weight)
	if d.outcome == Shadowed {
		s.shadowed += d.weight
	}
	if d.reported {
		return
	}
	s.keep(keptDecision{
		at: cut(now.Sub(l.began).Milliseconds()), cost: cut(d.cost), remaining: cut(d.remaining), outcome: d.outcome,
	})
}

func cut(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// pace sets the step. It is doubled as soon as a second has too many samples, and set to
// what the last second would have needed when it is over.
func (l *list) pace(now time.Time, weight uint64) {
	step := uint64(l.mask.Load()) + 1
	if past := now.Sub(l.second); past >= time.Second {
		step = stepFor(float64(l.decisions) / past.Seconds())
		l.second, l.sampled, l.decisions = now, 0, 0
	}
	l.decisions += weight
	if l.sampled++; l.sampled > maxPerSecond && step < maxStep {
		l.sampled = 0
		step *= 2
	}
	l.mask.Store(uint32(step - 1))
	l.steps[0] = max(l.steps[0], step)
}

// stepFor returns the smallest step by which a rate is within the bound.
func stepFor(rate float64) (step uint64) {
	for step = 1; step < maxStep && rate > maxPerSecond*float64(step); step *= 2 {
	}
	return step
}

// advance begins a new generation when it is time.
func (l *list) advance(now time.Time) {
	past := now.Sub(l.began)
	if past < l.generation {
		return
	}
	l.now, l.previous = l.previous, l.now
	l.previousBegan, l.steps[1] = l.began, l.steps[0]
	if past >= 2*l.generation { // what was the present is too old as well
		l.previous.clear()
		l.previousBegan, l.steps[1] = time.Time{}, 1
	}
	l.now.clear()
	l.began, l.steps[0] = now, uint64(l.mask.Load())+1
}

// A selection reports whether a summary contains a slot, of a generation that began then. It is
// called under the lock.
type selection func(s *slot, began time.Time) bool

// summary returns the keys that a selection selects. Memory for so many of each generation is
// allocated before the lock is held.
func (l *list) summary(now time.Time, room int, selects selection) Summary {
	var keys strings.Builder
	keys.Grow(2 * room * averageKey)
	entries := make([]Entry, 0, 2*room)
	l.mu.Lock()
	l.advance(now)
	both := Summary{Since: l.began, Sampling: int(max(l.steps[0], l.steps[1]))}
	if !l.previousBegan.IsZero() {
		both.Since = l.previousBegan
	}
	entries = l.now.appendEntries(entries, &keys, l.began, selects)
	newer := len(entries)
	entries = l.previous.appendEntries(entries, &keys, l.previousBegan, selects)
	parts := [2]Summary{
		{Total: l.now.total, Floor: l.now.floor(), Entries: entries[:newer]},
		{Total: l.previous.total, Floor: l.previous.floor(), Entries: entries[newer:]},
	}
	l.mu.Unlock()
	merged := Merge(parts[:]...)
	merged.Since, merged.Sampling = both.Since, both.Sampling
	return merged
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
