package overrides

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A key that gets another limit keeps what it has used: the first request under the limit carries the
// units over, from the limits of the rule and of earlier overrides.
//
// Other daemons may not know of a change yet, and charge the key under one of the earlier limits. While the change is
// new, those that know of it charge the key under all of these limits as well, so that each of them has everything.
// Units are copied at first, and moved when no daemon charges the earlier limits alone any more.

// The phases of an override whose units are carried over.
const (
	copied = 1 + iota // while it is new
	inForce
	copiedBack
	ended
)

// NewFor is how long a change is new: longer than until all daemons know of it.
const NewFor = 2 * time.Second

// IsNew reports whether other daemons may not know yet of the override or, if it has ended, of that.
func (e *Entry) IsNew(hasEnded bool) bool {
	until := e.newUntil
	if hasEnded && until != 0 {
		until = max(until, e.until+int64(NewFor))
	}
	return time.Now().UnixNano() < until
}

func phaseOf(hasEnded bool) int32 {
	if hasEnded {
		return ended
	}
	return inForce
}

// MustCarry reports whether units of the key have to be carried over, to the limit of this override or,
// if it has ended, to that of the rule.
func (e *Entry) MustCarry(hasEnded bool) bool {
	return e.carried.Load() < phaseOf(hasEnded) && (e.Kind == Limited || hasEnded && e.counts())
}

// Carry lets what the key has used under other limits count under the limit that applies now. The others
// keep it while the override is new. If the store does not decide, the next call does it. Concurrent
// callers wait, so that no request finds less.
func (e *Entry) Carry(ctx context.Context, store penstock.Store, key string, hasEnded, isNew bool, from []penstock.Limit, to penstock.Limit) (done bool) {
	phase := phaseOf(hasEnded)
	if isNew {
		phase--
	}
	if e.carried.Load() >= phase {
		return true
	}
	e.carryMu.Lock()
	defer e.carryMu.Unlock()
	if e.carried.Load() >= phase {
		return true
	}
	m := mover{store, strings.Clone(key), to, fmt.Sprintf("override %d.%d", e.record.Version, phase)}
	if done = m.copy(ctx, from, e.newUntil != 0) && (isNew || Refund(ctx, store, m.key, from, penstock.Reset)); done {
		e.carried.Store(phase)
	}
	return done
}

// A mover moves what a key has used to a limit.
type mover struct {
	store penstock.Store
	key   string
	to    penstock.Limit
	id    string // under which units are charged once, whatever the number of daemons that try
}

// copy charges what the key has used under other limits. If daemons charge several limits, each of these has
// a part of the same units; otherwise they are apart. It is not done if the store did not decide.
func (m *mover) copy(ctx context.Context, from []penstock.Limit, shared bool) (done bool) {
	missing := int64(0)
	for _, l := range from {
		used, ok := m.used(ctx, l)
		switch {
		case !ok:
			return false
		case shared:
			missing = max(missing, used)
		default:
			missing += used
		}
	}
	if missing > 0 && shared {
		used, ok := m.used(ctx, m.to)
		if missing -= used; !ok {
			return false
		}
	}
	if missing <= 0 {
		return true
	}
	hold := min(m.to.Period, 24*time.Hour)
	_, ok := m.take(ctx, penstock.Request{Limit: m.to, Cost: missing, AtMost: true, ID: m.id, Hold: hold})
	return ok
}

func (m *mover) used(ctx context.Context, l penstock.Limit) (units int64, done bool) {
	d, ok := m.take(ctx, penstock.Request{Limit: l})
	return d.Limit - d.Remaining, ok
}

// Refund refunds or resets units of a key under earlier limits.
func Refund(ctx context.Context, store penstock.Store, key string, earlier []penstock.Limit, cost int64) (done bool) {
	m := mover{store: store, key: key}
	for _, l := range earlier {
		if _, ok := m.take(ctx, penstock.Request{Limit: l, Cost: cost}); !ok {
			return false
		}
	}
	return true
}

func (m *mover) take(ctx context.Context, r penstock.Request) (d penstock.Decision, done bool) {
	r.Key = m.key
	d, err := m.store.Take(ctx, r)
	return d, err == nil && d.Source != penstock.SourceFallback
}
