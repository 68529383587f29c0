package penstock

import (
	"context"
	"sync/atomic"
	"time"
)

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
	ctx = context.WithoutCancel(ctx)
	_, err := r.limiter.store.Take(ctx, r.limiter.wholeRefund(r.key, r.decision.Granted))
	if err != nil {
		r.cancelled.Store(false)
	}
	return err
}
