package overload

import (
	"sync"
	"sync/atomic"
)

// A BreakerState is whether a [Breaker] admits calls.
type BreakerState uint32

// The states of a breaker.
const (
	Closed     BreakerState = iota // all calls are admitted
	Open                           // none but a probe at a time
	Recovering                     // a growing share: see BreakerOptions.Ramp
)

// String returns the name of the state.
func (s BreakerState) String() string {
	switch s {
	case Open:
		return "open"
	case Recovering:
		return "recovering"
	}
	return "closed"
}

// State returns whether the breaker admits calls. It changes only with calls: a breaker that nothing
// calls stays open, or recovering.
func (b *Breaker) State() BreakerState {
	switch {
	case b.state.IsOpen():
		return Open
	case b.state.IsRamping():
		return Recovering
	}
	return Closed
}

// A breakerWatch reports the changes of a breaker.
type breakerWatch struct {
	key      string
	onChange func(key string, from, to BreakerState)
	mu       sync.Mutex    // is held while onChange runs
	reported atomic.Uint32 // the last state that onChange got
}

// noticeChange calls OnChange if the state is not the one that was reported last. A caller that finds
// another at it, or is in OnChange itself, leaves it to that one, which looks again after it has
// unlocked.
func (b *Breaker) noticeChange() {
	w := b.watch
	for w != nil && b.State() != BreakerState(w.reported.Load()) && w.mu.TryLock() {
		b.report()
	}
}

// report reports the present state, with the mutex of the watch held.
func (b *Breaker) report() {
	w := b.watch
	defer w.mu.Unlock()
	from, to := BreakerState(w.reported.Load()), b.State()
	if from == to {
		return
	}
	w.reported.Store(uint32(to))
	w.onChange(w.key, from, to)
}
