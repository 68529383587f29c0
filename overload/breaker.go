package overload

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// BreakerOptions are the settings of a [Breaker]. A number of zero or less means
// its default.
type BreakerOptions struct {
	// Slow is how long a call may be in flight. Beyond it the call counts as
	// failed, at that moment and not when it returns, so a service that hangs
	// opens the breaker. Set it to the longest time that a good call takes.
	// Default: one second.
	Slow time.Duration

	// Wait is the time between opening and the first probe, plus a jitter of
	// up to a fifth. It doubles with every failed probe, up to MaxWait.
	// Default: two seconds, and six.
	Wait, MaxWait time.Duration

	// Ramp is how long the breaker takes to admit all calls again after it has
	// closed. It begins with a tenth of them. Default: two seconds.
	Ramp time.Duration

	// ErrorRatio, ErrorCount and SlowRatio are thresholds in place of the breaker's own
	// rule: it opens when, of the calls that ended within Window, of which there are at
	// least MinRequests, this fraction or number has failed, or this fraction took
	// longer than Slow. With a SlowRatio, slow calls do not count as failed. Every
	// call is counted under a lock then. Default: none of them; ten seconds and ten calls.
	ErrorRatio  float64
	ErrorCount  int
	SlowRatio   float64
	Window      time.Duration
	MinRequests int

	// IsFailure reports whether the error of a call means that the service
	// fails. [Breaker.Do] uses it; a call without an error never fails, and a
	// call whose caller canceled it counts as neither. Default: every error.
	IsFailure func(error) bool

	// OnChange is called when the breaker has opened, begins to recover, or has
	// closed, by the call that changed it and in the order of the changes. Its
	// key is that of a [BreakerGroup], and "" for a single Breaker. It may use
	// the breaker. Default: none.
	OnChange func(key string, from, to BreakerState)

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

const (
	defaultSlow    = time.Second
	defaultWait    = 2 * time.Second
	defaultMaxWait = 6 * time.Second
	defaultRamp    = 2 * time.Second
)

// A Breaker is a circuit breaker for the calls to one service. It is safe for
// concurrent use, and must not be copied.
//
// It opens when failures are significant: when, of the n calls that ended since
// the first failure, more than n/2 + 1.5·√n have failed, which is three standard
// deviations above one half. So nine failures in a row open it, or 17 of 20, or
// 65 of 100, and a service that fails three calls in ten never does. Calls beyond
// about the last hundred are forgotten. The options can have other thresholds.
//
// While it is open, calls are denied with an [OpenError], but for one probe at a
// time. When a probe succeeds, the breaker admits a growing share of the calls. If
// the service fails again meanwhile, the breaker opens for twice as long. Results
// of calls that were sent before the breaker opened are ignored.
type Breaker struct {
	slow      int64
	isFailure func(error) bool
	clock     monotime.Clock
	state     breaker.Breaker // opens and closes; see package internal/breaker
	pending   breaker.Pending // the calls in flight
	tally     *tally          // nil without thresholds
	late      Outcome         // of a call that succeeds too late
	watch     *breakerWatch   // nil without OnChange
}

// NewBreaker returns a closed breaker. Nil options mean all defaults.
func NewBreaker(o *BreakerOptions) *Breaker {
	o = cmp.Or(o, &BreakerOptions{})
	b := &Breaker{}
	b.init("", o, o.rules(), monotime.New(o.Now))
	return b
}

func (b *Breaker) init(key string, o *BreakerOptions, rules *breaker.Options, clock monotime.Clock) {
	slow := defaults.Duration(o.Slow, defaultSlow)
	b.slow, b.isFailure, b.clock = int64(slow), o.IsFailure, clock
	b.pending.Init(slow)
	b.state.Options = rules
	b.tally, b.late = newTally(o), Failure
	if b.tally != nil && o.SlowRatio > 0 {
		b.late = tooSlow
	}
	if o.OnChange != nil {
		b.watch = &breakerWatch{key: key, onChange: o.OnChange}
	}
}

func (o *BreakerOptions) rules() *breaker.Options {
	wait := defaults.Duration(o.Wait, defaultWait)
	return &breaker.Options{
		Trip:         isSignificant,
		Wait:         wait,
		MaxWait:      max(defaults.Duration(o.MaxWait, defaultMaxWait), wait),
		ProbeTimeout: defaults.Duration(o.Slow, defaultSlow),
		Ramp:         defaults.Duration(o.Ramp, defaultRamp),
	}
}

// isSignificant reports whether more than half of the calls fail, beyond what
// chance explains: failed ≥ n/2 + 3·√(n/4).
func isSignificant(c breaker.Counts) bool {
	excess := 2*c.Failed - c.Calls
	return excess > 0 && excess*excess >= 9*c.Calls
}

// An Outcome is how a call ended.
type Outcome uint8

// The outcomes of a call.
const (
	Success  Outcome = iota
	Failure          // the service failed
	Canceled         // the caller canceled it, which says nothing about the service
)

// A Call is an admitted call. Its caller must report how it ended, exactly once,
// with Done.
type Call struct { // of no more than four words, or else it is passed through memory
	breaker    *Breaker
	generation uint64
	sent       int64
	mark       uint64 // of breaker.Pending; of a probe, when it times out, and probeBit
}

// probeBit is set in no mark, and in no time.
const probeBit = 1 << 63

// Allow admits a call, or returns an [OpenError].
func (b *Breaker) Allow() (Call, error) {
	c, retryAfter := b.allow(b.clock.Now())
	if c.breaker == nil {
		return Call{}, &OpenError{RetryAfter: retryAfter}
	}
	return c, nil
}

// allow returns a call without a breaker, and when to retry, if it is denied.
func (b *Breaker) allow(now int64) (c Call, retryAfter time.Duration) {
	if generation, ok := b.state.AdmitHealthy(); ok && !b.pending.SweepDue(now) {
		return Call{breaker: b, generation: generation, sent: now, mark: b.pending.Add(generation, now)}, 0
	}
	return b.allowUnhealthy(now)
}

func (b *Breaker) allowUnhealthy(now int64) (c Call, retryAfter time.Duration) {
	defer b.noticeChange()
	t, ok := b.state.Admit(now)
	if overdue := b.pending.Sweep(t.Generation, now); overdue > 0 && b.failOverdue(t, now, overdue) {
		ok = false
	}
	if !ok {
		t, ok = b.state.StartProbe(now)
	}
	if !ok {
		return Call{}, b.state.RetryIn(now)
	}
	c = Call{breaker: b, generation: t.Generation, sent: now, mark: uint64(t.Probe) | probeBit}
	if t.Probe == 0 {
		c.mark = b.pending.Add(t.Generation, now)
	}
	return c, 0
}

// Done reports how the call ended. A call that was in flight for too long has
// failed, whatever its outcome.
func (c Call) Done(o Outcome) {
	b := c.breaker
	if b == nil {
		return
	}
	now := b.clock.Now()
	o = b.afterTime(o, c.sent, now)
	if c.isProbe() {
		c.endProbe(o, now)
		return
	}
	if b.pending.Remove(c.mark) && b.mustReport(o) { // or else it has been counted as overdue
		c.report(o, now)
	}
}

func (c Call) isProbe() bool { return c.mark >= probeBit }

func (c Call) endProbe(o Outcome, now int64) {
	defer c.breaker.noticeChange()
	t := breaker.Ticket{Generation: c.generation, Probe: int64(c.mark &^ probeBit)}
	if o == Canceled {
		c.breaker.state.AbandonProbe(t, now)
		return
	}
	c.breaker.state.EndProbe(t, o == Success, now)
}

func (c Call) report(o Outcome, now int64) {
	t := breaker.Ticket{Generation: c.generation}
	switch b := c.breaker; {
	case o == Canceled:
	case b.tally != nil:
		b.record(t, now, countsOf(o, 1))
		b.noticeChange()
	case o == Failure:
		b.state.Fail(t, now)
		b.noticeChange()
	default:
		b.state.Succeed(t, now)
	}
}

// IsOpen reports whether the breaker denies calls. A probe may be due.
func (b *Breaker) IsOpen() bool { return b.state.IsOpen() }

// Do calls f if the breaker admits it, and returns the error of f or an
// [OpenError]. The call fails if BreakerOptions.IsFailure says so of the error, or
// if f panics. A caller whose context was canceled counts as neither success nor
// failure; a deadline that passed counts as a failure.
func (b *Breaker) Do(ctx context.Context, f func(context.Context) error) error {
	c, err := b.Allow()
	if err != nil {
		return err
	}
	return do(ctx, f, b.isFailure, c.Done)
}

// do calls f, and reports to done how the call ended.
func do(ctx context.Context, f func(context.Context) error, isFailure func(error) bool, done func(Outcome)) (err error) {
	outcome := Failure // of a panic
	defer func() { done(outcome) }()
	err = f(ctx)
	outcome = outcomeOf(ctx, err, isFailure)
	return err
}

func outcomeOf(ctx context.Context, err error, isFailure func(error) bool) Outcome {
	switch {
	case err == nil:
		return Success
	case errors.Is(ctx.Err(), context.Canceled):
		return Canceled
	case isFailure == nil || isFailure(err):
		return Failure
	}
	return Success
}
