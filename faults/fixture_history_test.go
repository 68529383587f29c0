package faults

import (
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// An event is one call, as its caller saw it.
type event struct {
	begin, end time.Duration // since the history's start
	node       int
	key        int
	cost       int64
	decision   penstock.Decision
	err        error // if there was no decision; it may or may not have been charged
}

// answered reports whether the store itself has decided, and not a wrapper.
func (e *event) answered() bool { return e.err == nil && e.decision.Source == penstock.SourceStore }

// missed reports whether the caller got an error or the fallback's decision.
func (e *event) missed() bool { return e.err != nil || e.decision.Source == penstock.SourceFallback }

// denied reports whether the decision was a denial.
func (e *event) denied() bool { return e.err == nil && !e.decision.Allowed }

// granted returns the units that the caller was granted.
func (e *event) granted() int64 {
	if e.err != nil {
		return 0
	}
	return e.decision.Granted
}

// A history is every call of a run.
type history struct {
	start time.Time

	mu        sync.Mutex
	events    []event
	lostAt    time.Duration // when the store had lost all state; 0 if that is not known
	keptUntil time.Duration // until when it had lost none; 0 if keys also lose it later

	calls, answered, missed, unknown int
}

// recordLoss records that the store has lost all state by now.
func (h *history) recordLoss() { h.lostAt = time.Since(h.start) }

// since returns when it was, in nanoseconds since 1970, by the history's own time.
func (h *history) since(unixNano int64) time.Duration {
	return time.Duration(unixNano - h.start.UnixNano())
}

// record makes a call and records it.
func (h *history) record(node, key int, cost int64, take func() (penstock.Decision, error)) event {
	e := event{begin: time.Since(h.start), node: node, key: key, cost: cost}
	e.decision, e.err = take()
	e.end = time.Since(h.start)
	h.add(e)
	return e
}

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
	h.calls++
	if e.answered() {
		h.answered++
	}
	if e.missed() {
		h.missed++
	}
	if e.err != nil {
		h.unknown++
	}
}

// count returns one of the counters.
func (h *history) count(of *int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *of
}

// byKey returns the selected events of each key, ordered by their end.
func (h *history) byKey(is func(*event) bool) map[int][]event {
	keys := map[int][]event{}
	for _, e := range h.events {
		if is(&e) {
			keys[e.key] = append(keys[e.key], e)
		}
	}
	for _, events := range keys {
		slices.SortFunc(events, func(a, b event) int { return int(a.end - b.end) })
	}
	return keys
}

// granted returns the sum of the units granted of each key.
func (h *history) granted() map[int]int64 {
	sums := map[int]int64{}
	for _, e := range h.events {
		sums[e.key] += e.granted()
	}
	return sums
}

// fallbackNodes returns which nodes used their fallback for each key.
func (h *history) fallbackNodes() map[int]map[int]bool {
	nodes := map[int]map[int]bool{}
	for _, e := range h.events {
		if e.err == nil && e.decision.Source == penstock.SourceFallback {
			if nodes[e.key] == nil {
				nodes[e.key] = map[int]bool{}
			}
			nodes[e.key][e.node] = true
		}
	}
	return nodes
}

// downtime returns the longest time in which the store answered no call: from the
// start of the first call that missed it to the end of the next answered one. Only
// selected keys count.
func (h *history) downtime(of func(key int) bool) (longest time.Duration) {
	events := slices.Clone(h.events)
	slices.SortFunc(events, func(a, b event) int { return int(a.end - b.end) })
	since := time.Duration(-1)
	for _, e := range events {
		switch {
		case !of(e.key):
		case e.missed() && since < 0:
			since = e.begin
		case e.answered() && since >= 0:
			longest = max(longest, e.end-since)
			since = -1
		}
	}
	return longest
}

// slowest returns how long the slowest call took.
func (h *history) slowest() (longest time.Duration) {
	for _, e := range h.events {
		longest = max(longest, e.end-e.begin)
	}
	return longest
}
