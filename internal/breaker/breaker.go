// Package breaker implements a circuit breaker for a store.
package breaker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Breaker stops calls to a store that fails. It opens after too many
// consecutive failures, or if too many of the calls within a second fail. While
// it is open, one probe at a time checks whether the store answers again. The
// zero Breaker is closed. It is safe for concurrent use.
//
// Each opening starts a new generation, and a call belongs to the generation in
// which it was sent. Results of calls from earlier generations are ignored,
// because they say nothing about the store's current state.
//
// While no call fails, nothing is counted and a call costs two atomic loads. The
// first failure begins a counting window. Calls that were in flight at that
// moment are counted when they end, later ones when they are sent.
type Breaker struct {
	state   atomic.Uint64 // the generation, and the flags below
	probeAt atomic.Int64  // when to probe next while open, or probing

	mu                  sync.Mutex
	consecutiveFailures int
	windowStart         int64 // when the counting window began
	sent                int   // calls in the window
	failed              int   // failed calls in the window
}

// The low bits of the state are flags; the rest is the generation.
const (
	flagOpen      = 1 << iota // the store is not called
	flagCounting              // a call has failed recently, so calls are counted
	oneGeneration             // the lowest bit of the generation
)

// A breaker also opens when, of at least minCalls calls within window, one in
// failureRatio has failed.
const (
	failureRatio = 2
	minCalls     = 20
	window       = int64(time.Second)
)

// probing is the value of probeAt while a probe is in flight.
const probing = int64(math.MaxInt64)

// A Ticket is the permission to make one call. The caller reports the result with
// it.
type Ticket struct {
	generation uint64
	counted    bool // whether the call was counted when it was sent
}

// Admit reports whether a call may be sent now.
func (b *Breaker) Admit(now int64) (t Ticket, ok bool) {
	state := b.state.Load()
	t.generation = state / oneGeneration
	switch {
	case state&flagOpen != 0:
		return t, false
	case state&flagCounting == 0:
		return t, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.counted = b.isCurrent(t) && now < b.windowStart+window
	if t.counted {
		b.sent++
	}
	return t, true
}

// isCurrent reports whether the call was sent in the current generation, and the
// breaker is closed.
func (b *Breaker) isCurrent(t Ticket) bool {
	state := b.state.Load()
	return state&flagOpen == 0 && state/oneGeneration == t.generation
}

// IsCounting reports whether successes must be reported to [Breaker.Succeed].
func (b *Breaker) IsCounting() bool { return b.state.Load()&flagCounting != 0 }

// Succeed records that the store answered a call.
func (b *Breaker) Succeed(t Ticket, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return
	}
	b.consecutiveFailures = 0
	if !t.counted {
		b.sent++
	}
	if now >= b.windowStart+window {
		b.state.Store(t.generation * oneGeneration) // stop counting
	}
}

// Fail records that the store did not answer a call, and reports whether that
// opened the breaker. maxConsecutive consecutive failures open it. The first
// probe is due after retry, with jitter.
func (b *Breaker) Fail(t Ticket, now int64, maxConsecutive int, retry time.Duration) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return false
	}
	if !b.IsCounting() || now >= b.windowStart+window {
		b.state.Store(t.generation*oneGeneration | flagCounting)
		b.windowStart, b.sent, b.failed, t.counted = now, 0, 0, false
	}
	if !t.counted {
		b.sent++
	}
	b.consecutiveFailures++
	b.failed++
	if b.consecutiveFailures < maxConsecutive && (b.sent < minCalls || b.failed*failureRatio < b.sent) {
		return false
	}
	b.probeAt.Store(now + jitter(now, retry))
	b.state.Store((t.generation+1)*oneGeneration | flagOpen)
	return true
}

// IsOpen reports whether the breaker stops calls.
func (b *Breaker) IsOpen() bool { return b.state.Load()&flagOpen != 0 }

// StartProbe reports whether the breaker is open and a probe is due. It returns
// true to only one caller, which must report the result to [Breaker.EndProbe].
func (b *Breaker) StartProbe(now int64) bool {
	at := b.probeAt.Load()
	return b.IsOpen() && now >= at && b.probeAt.CompareAndSwap(at, probing)
}

// EndProbe closes the breaker if the store answered the probe. Otherwise the next
// probe is due after retry, with jitter.
func (b *Breaker) EndProbe(answered bool, now int64, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !answered {
		b.probeAt.Store(now + jitter(now, retry))
		return
	}
	b.consecutiveFailures = 0
	b.state.Store(b.state.Load() / oneGeneration * oneGeneration)
}

// RetryIn returns the time until the next probe, or one millisecond if a probe is
// due or in flight.
func (b *Breaker) RetryIn(now int64) time.Duration {
	at := b.probeAt.Load()
	if at == probing || at <= now {
		return time.Millisecond
	}
	return time.Duration(at - now)
}

// jitter returns a duration up to a fifth shorter or longer than d, so that
// processes which lost a store at the same time do not all probe it at the same
// time. The randomness comes from the nanosecond at which each process calls it.
func jitter(now int64, d time.Duration) int64 {
	random := uint64(now) * 0x9e3779b97f4a7c15 >> 48 // 16 bits
	fifth := uint64(d) / 5
	return int64(uint64(d) - fifth + 2*fifth*random>>16)
}
