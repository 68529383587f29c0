package faults

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
)

// A validator holds a history against one of the invariants that docs/reliability.md
// lists, and says what breaks it.
type validator struct {
	invariant string
	check     func(p promise, h *history) []string
}

var validators = []validator{
	{"every call is answered, or fails for want of a store", failsHonestly},
	{"INV-1 a store admits its limit and no more", admitsItsLimit},
	{"INV-7 what remains is between nothing and all", remainsInRange},
	{"INV-9 nobody is locked out for longer than a refill", locksNobodyOut},
	{"INV-17 nothing is wasted but what nobody knows of", wastesNothing},
	{"INV-20 a deny cache allows nothing", deniesOnly},
	{"INV-21 a fallback admits its share and no more", admitsItsShare},
}

// failsHonestly also holds those faults to their word that no caller may notice.
func failsHonestly(p promise, h *history) (complaints []string) {
	for _, e := range h.events {
		switch {
		case e.err == nil:
		case p.calm:
			complaints = append(complaints, fmt.Sprintf("a caller got an error that could have been avoided: %v", e.err))
		case !p.fails(e.err):
			complaints = append(complaints, fmt.Sprintf("a call failed with %v", e.err))
		}
	}
	return complaints
}

// tick is that of Redis's clock.
const tick = time.Millisecond

// admitsItsLimit looks at what the store has granted, to spend at once or by lease.
func admitsItsLimit(p promise, h *history) (complaints []string) {
	byStore := func(e *event) bool { return e.granted() != 0 && e.decision.Source != penstock.SourceFallback }
	for key, events := range h.byKey(byStore) {
		l := p.limitOf(key)
		most := p.livesOf(events, h)*capacity(l) + p.leased(l)
		if got := beyond(events, rateOf(l), tick); got > most {
			complaints = append(complaints, fmt.Sprintf("key %d under %s: %d admitted beyond the rate, want at most %d", key, l, got, most))
		}
	}
	return complaints
}

// admitsItsShare looks at what each node has granted while the store was away.
func admitsItsShare(p promise, h *history) (complaints []string) {
	for node := range p.nodes {
		byNode := func(e *event) bool {
			return e.node == node && e.granted() > 0 && e.decision.Source == penstock.SourceFallback
		}
		for key, events := range h.byKey(byNode) {
			l, share := p.limitOf(key), int64(p.nodes)
			if got, most := beyond(events, (rateOf(l)+share-1)/share, tick), p.fallback(l); got > most {
				complaints = append(complaints, fmt.Sprintf("node %d, key %d under %s: %d admitted beyond the rate while the store was away, want at most %d",
					node, key, l, got, most))
			}
		}
	}
	return complaints
}

func remainsInRange(p promise, h *history) (complaints []string) {
	for _, e := range h.events {
		if e.err == nil && (e.decision.Remaining < 0 || e.decision.Remaining > capacity(p.limitOf(e.key))) {
			complaints = append(complaints, fmt.Sprintf("key %d: %s", e.key, e.decision))
		}
	}
	return complaints
}

// locksNobodyOut allows a rolling window its one more bucket.
func locksNobodyOut(p promise, h *history) (complaints []string) {
	for _, e := range h.events {
		refill := p.limitOf(e.key).Period
		refill += refill/10 + tick
		if d := e.decision; e.err == nil && !d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > refill) {
			complaints = append(complaints, fmt.Sprintf("key %d under %s: %s", e.key, p.limitOf(e.key), d))
		}
	}
	return complaints
}

// wastesNothing is about keys that nothing comes back to by itself, and of which
// the run has taken all that was left. What is missing may have been charged by
// calls whose answer nobody heard, for one request or a whole lease.
func wastesNothing(p promise, h *history) (complaints []string) {
	granted := h.granted()
	for key, events := range h.byKey((*event).missed) {
		for _, e := range events {
			granted[key] += max(e.cost, p.lot(p.limitOf(key)))
		}
	}
	for key, n := range granted {
		l := p.limitOf(key)
		if rateOf(l) == 0 && n+p.wasted < capacity(l) {
			complaints = append(complaints, fmt.Sprintf("key %d under %s: %d granted or unknown, want all of %d", key, l, n, capacity(l)))
		}
	}
	return complaints
}

func deniesOnly(_ promise, h *history) (complaints []string) {
	for _, e := range h.events {
		if e.err == nil && e.decision.Source == penstock.SourceDenyCache && (e.decision.Allowed || e.decision.Granted != 0) {
			complaints = append(complaints, fmt.Sprintf("key %d: %s", e.key, e.decision))
		}
	}
	return complaints
}
