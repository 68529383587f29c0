package penstock

import (
	"sync"
	"sync/atomic"
	"time"
)

// A breaker decides whether a store is worth asking. It opens when too many calls
// in a row have failed, or too large a part of them, and then lets one call at a
// time find out whether the store is back. The zero breaker is closed.
//
// A call is counted when it is sent, and belongs to the books that were open then:
// what becomes of it after the breaker has opened, and perhaps closed again, says
// nothing about the store of today. As long as nothing fails there are no books,
// and a call costs two looks at one word; those that were under way when the books
// were opened are counted when they end.
type breaker struct {
	state   atomic.Uint64 // which books are open, and the flags below
	probeAt atomic.Int64  // when an open one is next tried

	mu     sync.Mutex
	row    int   // failures since the last success
	began  int64 // when the books were opened
	sent   int   // calls since then
	failed int   // of those
}

// The lowest bits of a breaker's state; the rest counts its openings.
const (
	breakerOpen    = 1 << iota // the store is not asked
	breakerTrouble             // something has failed not long ago
	breakerBooks               // one more opening
)

// What makes a breaker open, beside failures in a row.
const (
	failurePart   = 2 // one in two …
	failureLeast  = 20
	failureWithin = int64(time.Second)
)

// A ticket is a breaker's leave to send a call.
type ticket struct {
	books   uint64
	counted bool // whether there were books to count it in
}

// admit reports whether a call may be sent now.
func (b *breaker) admit(now int64) (t ticket, ok bool) {
	state := b.state.Load()
	t.books = state / breakerBooks
	switch {
	case state&breakerOpen != 0:
		return t, false
	case state&breakerTrouble == 0:
		return t, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.counted = b.isCurrent(t) && now < b.began+failureWithin
	if t.counted {
		b.sent++
	}
	return t, true
}

// isCurrent reports whether a call belongs to the books that are open.
func (b *breaker) isCurrent(t ticket) bool {
	state := b.state.Load()
	return state&breakerOpen == 0 && state/breakerBooks == t.books
}

// inTrouble reports whether it matters that a call was answered.
func (b *breaker) inTrouble() bool { return b.state.Load()&breakerTrouble != 0 }

// succeed takes note that a call was answered.
func (b *breaker) succeed(t ticket, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return
	}
	b.row = 0
	if !t.counted {
		b.sent++
	}
	if now >= b.began+failureWithin {
		b.state.Store(t.books * breakerBooks)
	}
}

// fail takes note that a call was not answered. It reports whether that made the
// breaker open, to be tried after a while; so many failures in a row do.
func (b *breaker) fail(t ticket, now int64, mostInARow int, retry time.Duration) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return false
	}
	if !b.inTrouble() || now >= b.began+failureWithin {
		b.state.Store(t.books*breakerBooks | breakerTrouble)
		b.began, b.sent, b.failed, t.counted = now, 0, 0, false
	}
	if !t.counted {
		b.sent++
	}
	b.row++
	b.failed++
	if b.row < mostInARow && (b.sent < failureLeast || b.failed*failurePart < b.sent) {
		return false
	}
	b.probeAt.Store(now + spread(now, retry))
	b.state.Store((t.books+1)*breakerBooks | breakerOpen)
	return true
}

// isOpen reports whether the store is not asked.
func (b *breaker) isOpen() bool { return b.state.Load()&breakerOpen != 0 }

// probing is the time at which to try a store that is being tried.
const probing = int64(1<<63 - 1)

// probe reports whether it is time to try an open breaker's store, to one caller
// alone, who must say what came of it.
func (b *breaker) probe(now int64) bool {
	at := b.probeAt.Load()
	return b.isOpen() && now >= at && b.probeAt.CompareAndSwap(at, probing)
}

// probed closes the breaker if the store has answered, and otherwise has it tried
// again after a while.
func (b *breaker) probed(answered bool, now int64, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !answered {
		b.probeAt.Store(now + spread(now, retry))
		return
	}
	b.row = 0
	b.state.Store(b.state.Load() / breakerBooks * breakerBooks)
}

// retryIn returns how long it is until the store is tried next.
func (b *breaker) retryIn(now int64) time.Duration {
	at := b.probeAt.Load()
	if at == probing || at <= now {
		return time.Millisecond
	}
	return time.Duration(at - now)
}

// spread returns a duration that is up to a fifth shorter or longer, so that
// processes which lost a store together do not come back to it together. What
// differs between them is the nanosecond at which they ask.
func spread(now int64, d time.Duration) int64 {
	part := uint64(now) * 0x9e3779b97f4a7c15 >> 48 // of 2^16
	fifth := uint64(d) / 5
	return int64(uint64(d) - fifth + 2*fifth*part>>16)
}
