package overrides

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A key that gets another limit keeps what it has used: the first request under the limit carries the
// units over, from the limits of the rule and of earlier overrides.

// The phases of an override whose units are carried over.
const (
	inForce = 1 + iota
	ended
)

func phaseOf(hasEnded bool) int32 {
	if hasEnded {
		return ended
	}
	return inForce
}

// A charge is of units that were taken from an earlier limit, and are not known to be charged under the
// present one.
type charge struct {
	units int64
	id    string // under which they are charged once, however often that is tried
	until time.Time
}

// EarlierLimits returns the limits of overrides of the key before this one, under which units may
// still be charged. If this one has ended, its own limit is one of them.
func (e *Entry) EarlierLimits(hasEnded bool) []penstock.Limit {
	if hasEnded && e.Kind == Limited {
		return append(slices.Clone(e.from), e.Limit)
	}
	return e.from
}

// MustCarry reports whether units of the key have to be carried over, to the limit of this override or,
// if it has ended, to that of the rule.
func (e *Entry) MustCarry(hasEnded bool) bool {
	return e.carried.Load() < phaseOf(hasEnded) && (e.Kind == Limited || hasEnded && e.counts())
}

// Carry moves what the key has used under other limits, the largest first, to the limit that applies now.
// If the store does not decide, the next call does the rest. Concurrent callers wait, so that no request
// finds the units in neither place.
func (e *Entry) Carry(ctx context.Context, store penstock.Store, key string, hasEnded bool, from []penstock.Limit, to penstock.Limit) (done bool) {
	e.carryMu.Lock()
	defer e.carryMu.Unlock()
	if !e.MustCarry(hasEnded) {
		return true
	}
	m := mover{store, strings.Clone(key), to, &e.uncharged}
	if done = m.charge(ctx); !done {
		return false
	}
	for _, l := range from {
		done = m.move(ctx, l) && done
	}
	if done {
		e.carried.Store(phaseOf(hasEnded))
	}
	return done
}

// A mover moves what a key has used to a limit.
type mover struct {
	store     penstock.Store
	key       string
	to        penstock.Limit
	uncharged *[]charge
}

// move takes all units that the key has used under another limit, and charges them. A reset
// returns what it refunds, so that units are moved once, whatever the number of daemons that
// try. It is not done if the store did not decide.
func (m *mover) move(ctx context.Context, from penstock.Limit) (done bool) {
	if from.Identity() == m.to.Identity() {
		return true
	}
	if from.HasPermits() || m.to.HasPermits() {
		return true // permits are held, not used
	}
	d, err := m.store.Take(ctx, penstock.Request{Key: m.key, Limit: from, Cost: penstock.Reset})
	if err == nil && d.Granted < 0 {
		*m.uncharged = append(*m.uncharged, charge{-d.Granted, rand.Text(), time.Now().Add(min(from.Period, maxUnchargedAge))})
	}
	return m.charge(ctx) && err == nil && d.Source != penstock.SourceFallback
}

// maxUnchargedAge is for how long units that could not be charged are remembered: as long as a store
// remembers an ID.
const maxUnchargedAge = 24 * time.Hour

// charge charges what is uncharged, as far as it fits. Those of a call that failed stay
// uncharged, except those that time would have returned.
func (m *mover) charge(ctx context.Context) (done bool) {
	for len(*m.uncharged) > 0 {
		c := (*m.uncharged)[0]
		if left := time.Until(c.until); left > 0 {
			r := penstock.Request{Key: m.key, Limit: m.to, Cost: c.units, AtMost: true, ID: c.id, Hold: left}
			if _, err := m.store.Take(ctx, r); err != nil {
				return false
			}
		}
		*m.uncharged = (*m.uncharged)[1:]
	}
	return true
}
