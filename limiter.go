package penstock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/renewal"
	"github.com/penstock-io/penstock/internal/siphash"
)

// A Limiter applies one limit to the keys of a store. It is safe for concurrent
// use.
//
// Its three main methods, Allow, Wait and Reserve, take one unit of a key. They
// differ in what they do when none is left. Most callers should use Allow.
//
//   - [Limiter.Allow] denies, and returns when to retry. Use it to protect a
//     server.
//   - [Limiter.Wait] sleeps until a unit is available. Use it to pace calls to
//     another server.
//   - [Limiter.Reserve] takes a unit in advance, and returns how long to wait
//     before acting. Use it to do something else in the meantime.
//
// AllowN, WaitN and ReserveN take n units. [Limiter.KeepFree] takes only while more
// are left for others. [Limiter.Charge] charges units that were used already, and
// [Limiter.Settle] corrects a charge under an ID once the true cost is known.
// [Limiter.Peek], [Limiter.Refund] and [Limiter.Reset] read, return
// and delete what was taken.
//
// Under a [Concurrent] limit, [Limiter.Acquire] and [Limiter.AcquireWait] take a permit,
// which its holder releases; the methods above, except for Peek and Reset, are errors.
//
// A denial is a [Decision] with Allowed false, never an error.
type Limiter struct {
	store    Store
	memory   *Memory // the store, if it is one: it is called directly then
	compiled *compiledLimit
	template Request                   // for one unit, without a key
	renewer  *renewal.Renewer[Request] // of permits
}

// New returns a limiter. State belongs to a store, a limit and a key, so two
// limiters with the same store and the same limit share it. To count separately,
// give the limits different names or the keys different prefixes. If the limit is
// invalid, the error wraps [ErrBadLimit] and names the field.
func New(s Store, l Limit) (*Limiter, error) {
	if s == nil {
		return nil, errNoStore
	}
	if err := checkIdentity(s); err != nil {
		return nil, err
	}
	lim := &Limiter{store: s}
	tick, key := int64(1), (*siphash.Key)(nil)
	if m, ok := s.(*Memory); ok {
		if m == nil || m.shards == nil {
			return nil, errors.New("penstock: no store: use NewMemory to make a Memory")
		}
		lim.memory, tick, key = m, m.tick, m.key
	}
	var err error
	lim.compiled, err = compileLimit(l, tick, key)
	if err != nil {
		return nil, err
	}
	if w, ok := StoreAs[*WarmUp](s); ok {
		if err := w.checkLimit(l); err != nil {
			return nil, err
		}
	}
	if l.hasPermits() {
		lim.memory = nil // its requests need an ID, which Take checks
		lim.renewer = renewal.New(l.Period, ErrPermitLost, lim.renewPermits)
	}
	lim.template = Request{Limit: l, Cost: 1, compiled: lim.compiled}
	return lim, nil
}

// Limit returns the limit.
func (l *Limiter) Limit() Limit { return l.compiled.limit }

// Request returns a request for one unit of the key, for [TakeAll] or the store.
func (l *Limiter) Request(key string) Request { return l.request(key, 1) }

// KeepFree returns a limiter of the same keys whose takes are granted only if n units
// remain afterwards. It is for requests that may wait while others may not: with
// KeepFree(20) for all but the critical requests, the last 20 units are left to these.
// Wait and Reserve on it retry when units may be available, in no particular order. See
// [Request.KeepFree].
func (l *Limiter) KeepFree(n int64) *Limiter {
	keeping := &Limiter{store: l.store, compiled: l.compiled, template: l.template, renewer: l.renewer} // without memory, which decides plain requests
	keeping.template.KeepFree = n
	return keeping
}

// Store returns the store.
func (l *Limiter) Store() Store { return l.store }

// Allow takes one unit of the key, if one is available.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	if l.memory == nil || key == "" {
		r := l.template
		r.Key = key
		return l.store.Take(ctx, r)
	}
	l.memory.take(l.compiled, key, &algorithm.Request{Cost: 1}, &d)
	return d, nil
}

// AllowN takes n units of the key, all of them or none. An n of 0 is a peek.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negativeCost(n)
	}
	return l.store.Take(ctx, l.request(key, n))
}

// AllowAtMost takes n units of the key, or as many as are left if that is fewer.
// [Decision.Granted] is how many it took. It denies only if none are left.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negativeCost(n)
	}
	r := l.request(key, n)
	r.AtMost = true
	return l.store.Take(ctx, r)
}

// Charge charges n units to the key whether or not they are left, because they were
// used already: the tokens of a response, the bytes of an upload. It is always
// Allowed. What was not left is a debt, which denies other requests until time or a
// refund has paid it; Remaining is 0 meanwhile. The debt of a window ends with it.
//
// A debt is at most one capacity, or what [Limit.Debt] says. [Decision.Granted] is
// how many units were charged. A RollingWindow, SlidingLog or Concurrent limit cannot
// owe: charging it is an error of kind [ErrBadCost].
func (l *Limiter) Charge(ctx context.Context, key string, n int64) (Decision, error) {
	r := l.request(key, n)
	r.Overdraw = true
	return l.store.Take(ctx, r)
}

// Settle makes what was charged to the key under an ID equal to what was used, once that
// is known: it refunds what was too much, and charges what was too little as a debt (see
// [Limiter.Charge]). What time has paid back already is not refunded.
// [Decision.Granted] is what is charged under the ID then: the amount, or less if the debt
// would exceed [Limit.MaxDebt]. A RollingWindow or SlidingLog cannot owe, and is charged
// what it has left.
//
// Settle can be repeated, and called again with another amount. What is never settled
// stays charged. If the ID is not remembered, nothing is charged and the error is
// [ErrUnknownID]: an ID is remembered for one Period, or longer with [Request.Hold]. To
// settle under several limits at once, set [Request.Settle] in a [TakeAll].
func (l *Limiter) Settle(ctx context.Context, key, id string, amount int64) (Decision, error) {
	r := l.request(key, amount)
	r.ID, r.Settle = id, true
	return l.store.Take(ctx, r)
}

// Peek returns the state of the key and takes nothing. It is always Allowed;
// [Decision.Remaining] says what is left.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.store.Take(ctx, l.request(key, 0))
}

// Refund returns n units to the key, starting with those taken last, and never
// more than were taken. [Decision.Granted] is minus the number refunded.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	if n <= 0 {
		return Decision{}, costError("Cost", strconv.FormatInt(n, 10)+": a refund must be above zero")
	}
	return l.store.Take(ctx, l.request(key, -n))
}

// Reset deletes the state of the key: its bucket is full, its window empty.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	_, err := l.store.Take(ctx, l.request(key, Reset))
	return err
}

// Wait waits until one unit of the key is available, and takes it. To space calls
// evenly from the first, use a burst of 1. See [Limiter.WaitN].
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN waits until n units of the key are available, and takes them.
//
// It fails at once and charges nothing if n exceeds the [Limit.Capacity], with
// [ErrNever], or if the wait would exceed the deadline of ctx, with
// [ErrDeadline], which is also a [context.DeadlineExceeded]. If ctx ends during
// the wait, the units are refunded and the context's error is returned.
//
// On buckets, calls are served in the order of arrival: on a token bucket as far
// ahead as it reserves (see [Limiter.ReserveN]), on a leaky bucket while its
// queue has room. Calls beyond that, and all calls on windows, retry when units
// may be available, in no particular order.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	d, err := l.takeWithin(ctx, key, n)
	if err != nil || d.Delay == 0 {
		return err
	}
	if err = monotime.Sleep(ctx, d.Delay); err != nil {
		l.refund(ctx, key, d.Granted)
	}
	return err
}

// takeWithin takes or reserves n units, retrying until the deadline of ctx.
func (l *Limiter) takeWithin(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negativeCost(n)
	}
	r := l.request(key, n)
	for {
		left, err := timeLeft(ctx)
		if err != nil {
			return Decision{}, err
		}
		r.MaxDelay = left
		d, err := l.store.Take(ctx, r)
		if n == 0 {
			d.Delay = 0 // a peek at a leaky bucket has a delay, but takes nothing
		}
		if err != nil || d.Allowed {
			return d, err
		}
		if err = l.checkWait(d, n, left); err != nil {
			return d, err
		}
		if err = monotime.Sleep(ctx, max(d.RetryAfter, minSleep)); err != nil {
			return d, err
		}
	}
}

// minSleep keeps WaitN from spinning if a store denies without a RetryAfter.
const minSleep = time.Microsecond

// checkWait returns an error if a denied request cannot be served in the time
// left. A token bucket denies only what is beyond the reach of reservations:
// RetryAfter is the time until the reservation can be made, which then still has
// the reach to wait. A leaky bucket serves in order, so its whole queue has to
// drain first.
func (l *Limiter) checkWait(d Decision, n int64, left time.Duration) error {
	if d.RetryAfter == Never {
		return fmt.Errorf("penstock: %w: %d of at most %d", ErrNever, n, d.Limit-l.template.KeepFree)
	}
	wait := d.RetryAfter
	switch limit := &l.compiled.limit; {
	case limit.hasQueue():
		wait = d.ResetAfter
	case limit.isBucket() && l.template.KeepFree == 0:
		wait += min(left, time.Duration(l.compiled.token.Reach()))
	}
	if wait > left {
		return fmt.Errorf("penstock: %w: %v needed, %v left", ErrDeadline, wait, left)
	}
	return nil
}

// timeLeft returns the time until the deadline of ctx, or its error if it has ended.
func timeLeft(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64 / 2, nil // no deadline; half, so that sums do not overflow
	}
	return max(time.Until(deadline), 1), nil // a MaxDelay of 0 would mean the default
}

// refund refunds units after ctx has ended. On an error they stay charged, which
// admits too little rather than too much.
func (l *Limiter) refund(ctx context.Context, key string, n int64) {
	_, _ = l.store.Take(withRefundKind(context.WithoutCancel(ctx), wholeTake), l.request(key, -n))
}

func (l *Limiter) request(key string, cost int64) Request {
	r := l.template
	r.Key, r.Cost = key, cost
	return r
}

func negativeCost(n int64) error {
	return costError("Cost", strconv.FormatInt(n, 10)+": must not be negative; use Refund")
}

// A Reservation is the right to act after a delay. Its units are already charged.
type Reservation struct {
	limiter   *Limiter
	key       string
	decision  Decision
	actAt     time.Time
	cancelled atomic.Bool
}

// Reserve reserves one unit of the key. See [Limiter.ReserveN].
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN charges n units of the key now, and returns a reservation whose Delay
// is how long to wait before acting. It fails like [Limiter.WaitN], with
// [ErrNever] or [ErrDeadline], and then charges nothing.
//
// A bucket reserves at most one minute ahead, or the time of a whole refill if
// that is longer. If that much is already reserved, ReserveN waits until it can
// reserve. A window cannot reserve units of the next one: on windows ReserveN
// waits like WaitN, and the reservation has no delay.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	d, err := l.takeWithin(ctx, key, n)
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: l, key: key, decision: d, actAt: time.Now().Add(d.Delay)}, nil
}

// Decision returns the decision that made the reservation.
func (r *Reservation) Decision() Decision { return r.decision }

// Delay returns how long to wait from now. At zero, the holder may act.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.actAt)) }

// Cancel refunds the units, even if ctx has ended. It has no effect once Delay is
// zero or after a successful Cancel, so a deferred Cancel is harmless. To refund
// later, or on windows, whose reservations have no delay, use [Limiter.Refund].
//
// The refund frees the end of the queue. Later reservations keep their times, so
// the next one may be due at the same time as the last of them.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.decision.Granted == 0 || r.Delay() == 0 || r.cancelled.Swap(true) {
		return nil
	}
	ctx = withRefundKind(context.WithoutCancel(ctx), wholeTake)
	_, err := r.limiter.store.Take(ctx, r.limiter.request(r.key, -r.decision.Granted))
	if err != nil {
		r.cancelled.Store(false)
	}
	return err
}
