package faults

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A validator checks a history against one of the invariants that docs/reliability.md
// lists, and returns what breaks it.
type validator struct {
	invariant string
	check     func(p guarantee, h *history) []string
}

var validators = []validator{
	{"errors are ErrUnavailable, if any are allowed", errorsExpected},
	{"INV-1 a store admits its limit and no more", storeWithinLimit},
	{"INV-7 remaining is between 0 and the limit", remainingInRange},
	{"INV-9 no key is locked out for longer than a refill", retryWithinRefill},
	{"INV-17 only unanswered calls lose units", unitsNotLost},
	{"INV-20 a deny cache only denies", denyCacheDenies},
	{"INV-21 a fallback admits its share and no more", fallbackWithinShare},
}

// errorsExpected also checks that callers see no errors at all if the guarantee says so. A few may find the store
// busy: it answers others again, but this process, or the store, is slow just then.
func errorsExpected(p guarantee, h *history) (problems []string) {
	busy := len(h.events) / 100
	for _, e := range h.events {
		switch {
		case e.err == nil:
		case busy > 0 && strings.Contains(e.err.Error(), penstock.ErrBusy.Error()):
			busy--
		case p.noErrors:
			problems = append(problems, fmt.Sprintf("a caller got an error, want none: %v", e.err))
		case !p.expects(e.err):
			problems = append(problems, fmt.Sprintf("a call failed with %v", e.err))
		}
	}
	return problems
}

// tick is the resolution of Redis's clock.
const tick = time.Millisecond

// storeWithinLimit checks what the store has granted, directly or by lease.
func storeWithinLimit(p guarantee, h *history) (problems []string) {
	byStore := func(e *event) bool { return e.granted() != 0 && e.decision.Source != penstock.SourceFallback }
	for key, events := range h.byKey(byStore) {
		l := p.limitOf(key)
		most := p.burstsOf(events, h)*capacity(l) + p.older + p.leaseExcess(l)
		if got := maxExcess(events, rateOf(l), tick); got > most {
			problems = append(problems, fmt.Sprintf("key %d under %s: %d admitted beyond the rate, want at most %d", key, l, got, most))
		}
	}
	return problems
}

// fallbackWithinShare checks what each node has granted while the store was down.
func fallbackWithinShare(p guarantee, h *history) (problems []string) {
	for node := range p.nodes {
		byNode := func(e *event) bool {
			return e.node == node && e.granted() > 0 && e.decision.Source == penstock.SourceFallback
		}
		for key, events := range h.byKey(byNode) {
			l, share := p.limitOf(key), int64(p.nodes)
			if got, most := maxExcess(events, (rateOf(l)+share-1)/share, tick), p.fallbackShare(l); got > most {
				problems = append(problems, fmt.Sprintf("node %d, key %d under %s: %d admitted beyond the rate while the store was down, want at most %d",
					node, key, l, got, most))
			}
		}
	}
	return problems
}

func remainingInRange(p guarantee, h *history) (problems []string) {
	for _, e := range h.events {
		if e.err == nil && (e.decision.Remaining < 0 || e.decision.Remaining > capacity(p.limitOf(e.key))) {
			problems = append(problems, fmt.Sprintf("key %d: %s", e.key, e.decision))
		}
	}
	return problems
}

// retryWithinRefill allows one bucket more for a rolling window, and at least as long as a store that is down is
// not asked again.
func retryWithinRefill(p guarantee, h *history) (problems []string) {
	for _, e := range h.events {
		refill := p.limitOf(e.key).Period
		refill = max(refill+refill/10+tick, 2*time.Second)
		if d := e.decision; e.err == nil && !d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > refill) {
			problems = append(problems, fmt.Sprintf("key %d under %s: %s", e.key, p.limitOf(e.key), d))
		}
	}
	return problems
}

// unitsNotLost checks the keys that do not refill, of which the run has taken all that
// was left. Missing units may have been charged by unanswered calls, for one request
// or a whole lease.
func unitsNotLost(p guarantee, h *history) (problems []string) {
	granted := h.granted()
	for key, events := range h.byKey((*event).missed) {
		for _, e := range events {
			granted[key] += max(e.cost, p.leaseSize(p.limitOf(key)))
		}
	}
	for key, n := range granted {
		l := p.limitOf(key)
		if rateOf(l) == 0 && n+p.maxLost < capacity(l) {
			problems = append(problems, fmt.Sprintf("key %d under %s: %d granted or unknown, want all of %d", key, l, n, capacity(l)))
		}
	}
	return problems
}

func denyCacheDenies(_ guarantee, h *history) (problems []string) {
	for _, e := range h.events {
		if e.err == nil && e.decision.Source == penstock.SourceDenyCache && (e.decision.Allowed || e.decision.Granted != 0) {
			problems = append(problems, fmt.Sprintf("key %d: %s", e.key, e.decision))
		}
	}
	return problems
}
