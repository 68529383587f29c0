// Package breaker is the state machine of a circuit breaker. It reads no clock:
// callers pass the time in nanoseconds.
package breaker

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the rules of a [Breaker]. Breakers of one kind share them.
type Options struct {
	// Trip reports whether the counted calls open the breaker. Required.
	Trip func(Counts) bool

	// Window is how long calls are counted after a failure, from when they are
	// sent. Zero counts calls when they end, and lets old ones fade: see
	// maxCounted.
	Window time.Duration

	// Wait is the time between opening and the first probe, plus a jitter of up
	// to a fifth. It doubles with every failed probe, up to MaxWait. Both are
	// a year at most. Required.
	Wait, MaxWait time.Duration

	// ProbeTimeout is when a probe without a result counts as failed. Zero
	// means that every probe ends.
	ProbeTimeout time.Duration

	// Ramp is how long the breaker admits only a share of the calls after it
	// closed. Zero admits all at once.
	Ramp time.Duration
}

// Counts are what a breaker has counted since the first failure.
type Counts struct {
	Consecutive int // failures since the last success
	Calls       int
	Failed      int
}

// A Breaker stops calls to a service that fails. It opens when Options.Trip says
// so. While it is open, one probe at a time checks whether the service answers
// again. A Breaker with only its Options set is closed. It is safe for concurrent
// use.
//
// Each opening starts a new generation, and a call belongs to the generation in
// which it was sent. Results of calls from earlier generations are ignored,
// because they say nothing about the service's current state.
//
// While no call fails, nothing is counted and a call costs two atomic loads. The
// first failure begins the counting.
type Breaker struct {
	Options *Options

	state   atomic.Uint64 // the generation, and the flags below
	probeAt atomic.Int64  // while open: when to probe, or when the probe in flight times out

	mu          sync.Mutex
	counts      Counts
	windowStart int64
	wait        time.Duration // before the next probe
	isProbing   bool
	rampStart   int64
	rampCredit  float64 // admitted when it reaches one
}

// The low bits of the state are flags; the rest is the generation.
const (
	flagOpen      = 1 << iota // the service is not called
	flagCounting              // a call has failed recently, so calls are counted
	flagRamping               // the breaker closed recently, so not all calls are admitted
	oneGeneration             // the lowest bit of the generation
)

// maxCounted is how many calls are counted without a Window. Beyond it the counts
// are halved, so that they describe the most recent calls at any rate of calls.
const maxCounted = 128

// A Ticket is the permission to make one call. The caller reports the result with
// it.
type Ticket struct {
	Generation uint64
	Probe      int64 // when the probe times out, which identifies it; 0 for other calls
	counted    bool  // whether the call was counted when it was sent
}

// AdmitHealthy is Admit for a breaker that is closed and has nothing to remember: that
// needs neither the time nor a whole Ticket.
func (b *Breaker) AdmitHealthy() (generation uint64, ok bool) {
	state := b.state.Load()
	return state / oneGeneration, state%oneGeneration == 0
}

// Admit reports whether a call may be sent now.
func (b *Breaker) Admit(now int64) (t Ticket, ok bool) {
	state := b.state.Load()
	t.Generation = state / oneGeneration
	switch {
	case state&flagOpen != 0:
		return t, false
	case state&flagRamping != 0:
		return t, b.admitRamping(t, now)
	case state&flagCounting == 0 || b.Options.Window == 0:
		return t, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.counted = b.isCurrent(t) && now < b.windowStart+int64(b.Options.Window)
	if t.counted {
		b.counts.Calls++
	}
	return t, true
}

// minRamp is the share of calls that is admitted at the beginning of the ramp.
const minRamp = 0.1

// admitRamping admits a share of the calls that grows evenly during the ramp. It
// counts rather than draws lots, so that a few callers get the same share as many.
func (b *Breaker) admitRamping(t Ticket, now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return false
	}
	share := minRamp + (1-minRamp)*float64(now-b.rampStart)/float64(b.Options.Ramp)
	if share >= 1 {
		b.setFlags(flagCounting)
		b.wait = 0
		return true
	}
	b.rampCredit += share
	if b.rampCredit < 1 {
		return false
	}
	b.rampCredit--
	return true
}

// setFlags clears the flags of the state but for those in keep.
func (b *Breaker) setFlags(keep uint64) {
	state := b.state.Load()
	b.state.Store(state/oneGeneration*oneGeneration | state&keep)
}

// isCurrent reports whether the call was sent in the current generation, and the
// breaker is closed.
func (b *Breaker) isCurrent(t Ticket) bool {
	state := b.state.Load()
	return state&flagOpen == 0 && state/oneGeneration == t.Generation
}

// IsCounting reports whether successes must be reported to [Breaker.Succeed].
func (b *Breaker) IsCounting() bool { return b.state.Load()&flagCounting != 0 }

// Succeed records that the service answered a call.
func (b *Breaker) Succeed(t Ticket, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) || !b.IsCounting() {
		return
	}
	b.counts.Consecutive = 0
	if !t.counted {
		b.counts.Calls++
	}
	b.fade()
	if b.countingEnded(now) {
		b.setFlags(flagRamping)
	}
}

// fade halves the counts where no window ends them.
func (b *Breaker) fade() {
	if b.Options.Window == 0 && b.counts.Calls > maxCounted {
		b.counts.Calls /= 2
		b.counts.Failed /= 2
	}
}

func (b *Breaker) countingEnded(now int64) bool {
	if b.Options.Window == 0 {
		return b.counts.Failed == 0
	}
	return now >= b.windowStart+int64(b.Options.Window)
}

// Fail records that the service did not answer a call, and reports whether that
// opened the breaker.
func (b *Breaker) Fail(t Ticket, now int64) (opened bool) { return b.FailAll(t, now, 1) }

// FailAll records that the service did not answer n calls of the ticket's
// generation, and reports whether that opened the breaker.
func (b *Breaker) FailAll(t Ticket, now int64, n int) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fail(t, now, n)
}

// FailAnswered records that a call failed whose success was recorded before, and
// reports whether that opened the breaker. The call counts once: one of the
// successes becomes a failure. If none is counted, then counting began later.
func (b *Breaker) FailAnswered(t Ticket, now int64) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.counted = b.counts.Calls > b.counts.Failed
	return b.fail(t, now, 1)
}

func (b *Breaker) fail(t Ticket, now int64, n int) (opened bool) {
	if !b.isCurrent(t) {
		return false
	}
	if !b.IsCounting() || b.Options.Window > 0 && b.countingEnded(now) {
		b.state.Or(flagCounting)
		b.counts.Calls, b.counts.Failed = 0, 0
		b.windowStart, t.counted = now, false
	}
	if !t.counted {
		b.counts.Calls += n
	}
	b.counts.Consecutive += n
	b.counts.Failed += n
	if !b.Options.Trip(b.counts) {
		b.fade()
		return false
	}
	b.open(t, now)
	return true
}

// Open opens the breaker for callers that count by themselves, and reports whether it did: not for a call of an
// earlier generation.
func (b *Breaker) Open(t Ticket, now int64) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isCurrent(t) {
		return false
	}
	b.open(t, now)
	return true
}

// IsCurrent reports whether the result of a call still says something: it was sent in the current generation, and the
// breaker is closed.
func (b *Breaker) IsCurrent(t Ticket) bool { return b.isCurrent(t) }

func (b *Breaker) open(t Ticket, now int64) {
	b.increaseWait()
	b.isProbing = false
	b.probeAt.Store(now + jitter(now, b.wait))
	b.state.Store((t.Generation+1)*oneGeneration | flagOpen)
}

// increaseWait doubles the time to the next probe. After a ramp it begins again
// with the shortest.
func (b *Breaker) increaseWait() {
	b.wait = min(max(2*b.wait, b.Options.Wait), b.Options.MaxWait)
}

// IsOpen reports whether the breaker stops calls.
func (b *Breaker) IsOpen() bool { return b.state.Load()&flagOpen != 0 }

// IsRamping reports whether the breaker closed recently, and does not admit all calls yet.
func (b *Breaker) IsRamping() bool { return b.state.Load()&(flagOpen|flagRamping) == flagRamping }

// IsHealthy reports whether the breaker is closed and has nothing to remember.
func (b *Breaker) IsHealthy() bool { return b.state.Load()&(oneGeneration-1) == 0 }

// StartProbe reports whether the breaker is open and a probe is due. It returns
// true to only one caller, which must report the result to [Breaker.EndProbe].
func (b *Breaker) StartProbe(now int64) (t Ticket, ok bool) {
	if !b.IsOpen() || now < b.probeAt.Load() {
		return t, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.IsOpen() || now < b.probeAt.Load() {
		return t, false
	}
	if b.isProbing { // and its result is overdue
		b.increaseWait()
	}
	b.isProbing = true
	t = Ticket{Generation: b.state.Load() / oneGeneration, Probe: math.MaxInt64}
	if b.Options.ProbeTimeout > 0 {
		t.Probe = now + int64(max(b.Options.ProbeTimeout, b.wait))
	}
	b.probeAt.Store(t.Probe)
	return t, true
}

// EndProbe closes the breaker if the service answered the probe. Otherwise the
// next probe is due after a longer wait. A result that comes after the probe's
// timeout is ignored if another probe has been sent.
func (b *Breaker) EndProbe(t Ticket, answered bool, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.IsOpen() || !b.isProbing || b.probeAt.Load() != t.Probe {
		return
	}
	b.isProbing = false
	if !answered {
		b.increaseWait()
		b.probeAt.Store(now + int64(b.wait))
		return
	}
	b.close(now)
}

// AbandonProbe records that a probe ended without a result. The next is due after
// the same wait.
func (b *Breaker) AbandonProbe(t Ticket, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.IsOpen() && b.isProbing && b.probeAt.Load() == t.Probe {
		b.isProbing = false
		b.probeAt.Store(now + int64(b.wait))
	}
}

func (b *Breaker) close(now int64) {
	b.counts.Consecutive = 0
	b.setFlags(0)
	if b.Options.Ramp == 0 {
		b.wait = 0
		return
	}
	b.rampStart, b.rampCredit = now, 0
	b.state.Or(flagRamping)
}

// RetryIn returns when a denied call may be admitted: the time until the next
// probe, or the shortest wait while one is due or in flight, or a part of the ramp.
func (b *Breaker) RetryIn(now int64) time.Duration {
	if !b.IsOpen() {
		return b.Options.Ramp / 10
	}
	at := b.probeAt.Load()
	if at <= now || at-now > int64(b.Options.MaxWait)*2 {
		return b.Options.Wait
	}
	return time.Duration(at - now)
}

// jitter returns a duration up to a fifth longer than d, so that processes which
// lost a service at the same time do not all probe it at the same time. The
// randomness comes from the nanosecond at which each process calls it.
func jitter(now int64, d time.Duration) int64 {
	random := uint64(now) * 0x9e3779b97f4a7c15 >> 48 // 16 bits
	high, low := bits.Mul64(uint64(d)/5, random)
	return int64(uint64(d) + high<<48 + low>>16)
}
