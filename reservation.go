package penstock

import (
	"context"
	"sync/atomic"
	"time"
)

// A Reservation is a promise that its holder may act after a delay. The units
// are charged already.
type Reservation struct {
	limiter   *Limiter
	key       string
	decision  Decision
	act       time.Time
	cancelled atomic.Bool
}

// Reserve reserves one unit of the key. See ReserveN.
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN charges n units of the key now and returns a reservation that says
// how long to hold the request. It fails like [Limiter.WaitN], with [ErrNever] or
// [ErrDeadline], and charges nothing then.
//
// A bucket reserves at most one minute ahead, or one whole refill where that is
// longer; when the line is longer than that, ReserveN waits for its turn to come
// so near. A window cannot promise anything about the time after its end: on
// windows ReserveN waits like WaitN, and the reservation has no delay.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	d, err := l.await(ctx, key, n)
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: l, key: key, decision: d, act: time.Now().Add(d.Delay)}, nil
}

// Decision returns the decision that made the reservation.
func (r *Reservation) Decision() Decision { return r.decision }

// Delay returns how long the holder has to wait from now on; zero means that it
// may act.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.act)) }

// Cancel gives the units back, because the holder will not act, even if ctx has
// ended. Only the first call does, unless it returns an error; and none does once
// the moment to act has come, so that a deferred Cancel is harmless. To give back
// after that, as on windows, whose reservations have no delay, use [Limiter.Refund].
//
// What is given back is the end of the line. Those who reserved later keep their
// moments, so the next to reserve may act together with the last of them.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.decision.Granted == 0 || time.Now().After(r.act) || r.cancelled.Swap(true) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, err := r.limiter.store.Take(ctx, r.limiter.request(r.key, -r.decision.Granted))
	if err != nil {
		r.cancelled.Store(false)
	}
	return err
}
