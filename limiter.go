package penstock

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/siphash"
)

// A Limiter asks one store about one limit. It is safe for concurrent use.
//
// It has three main verbs, which differ in what happens when there is not
// enough left. Most callers want Allow.
//
//   - [Limiter.Allow] denies, and says when to come back. Use it to protect a
//     server: the caller is told no and goes away.
//   - [Limiter.Wait] waits until there is enough. Use it to pace your own calls
//     to somebody else's server.
//   - [Limiter.Reserve] charges now and says how long to hold the request. Use
//     it when you would rather do the waiting yourself.
//
// A denial is a [Decision] with Allowed false, never an error.
type Limiter struct {
	store    Store
	memory   *Memory // the store, if it is one: then it is asked directly
	compiled *compiledLimit
	one      Request // for one unit of a key yet to be named
}

// New returns a limiter. State belongs to the store, the limit and the key: two
// limiters of one store and the same limit share it, so give limits names, or keys
// prefixes, where they are to be counted apart. If the limit cannot be counted by, the error wraps
// [ErrBadLimit] and names the field.
func New(s Store, l Limit) (*Limiter, error) {
	if s == nil {
		return nil, errNoStore
	}
	lim := &Limiter{store: s}
	tick, key := int64(1), (*siphash.Key)(nil)
	if m, ok := s.(*Memory); ok {
		if m == nil || m.shards == nil {
			return nil, fmt.Errorf("penstock: no store: a Memory is made by NewMemory")
		}
		lim.memory, tick, key = m, m.tick, m.key
	}
	var err error
	lim.compiled, err = compileLimit(l, tick, key)
	if err != nil {
		return nil, err
	}
	lim.one = Request{Limit: l, Cost: 1, compiled: lim.compiled}
	return lim, nil
}

// Limit returns the limit that the limiter asks about.
func (l *Limiter) Limit() Limit { return l.compiled.limit }

// Request returns a request for one unit of the key, to change and to pass to
// [TakeAll] or the store.
func (l *Limiter) Request(key string) Request { return l.request(key, 1) }

// Store returns the store that the limiter asks.
func (l *Limiter) Store() Store { return l.store }

// Allow takes one unit of the key, if there is one.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	if l.memory == nil || key == "" {
		r := l.one
		r.Key = key
		return l.store.Take(ctx, r)
	}
	l.memory.take(l.compiled, key, algorithm.Ask{Cost: 1}, &d)
	return d, nil
}

// AllowN takes n units of the key, all of them or none. Taking none is a look.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negative(n)
	}
	return l.store.Take(ctx, l.request(key, n))
}

// AllowAtMost takes n units of the key, or as many as are left if that is fewer.
// [Decision.Granted] says how many; it is denied only when none are left.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negative(n)
	}
	r := l.request(key, n)
	r.AtMost = true
	return l.store.Take(ctx, r)
}

// Peek says how the key stands, and takes nothing. It is always Allowed, because
// it asks for nothing: look at [Decision.Remaining].
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.store.Take(ctx, l.request(key, 0))
}

// Refund gives n units back, those taken last first, but never more than were
// taken: [Decision.Granted] is what was really given back, as a negative number.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	if n <= 0 {
		return Decision{}, costError("Cost", strconv.FormatInt(n, 10)+": want a number above zero to give back")
	}
	return l.store.Take(ctx, l.request(key, -n))
}

// Reset makes the key as good as new.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	_, err := l.store.Take(ctx, l.request(key, Reset))
	return err
}

// Wait waits until one unit of the key can be taken, and takes it. To space calls
// evenly from the first, use a burst of 1. See WaitN.
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN waits until n units of the key can be taken, and takes them.
//
// It fails at once, and charges nothing, with [ErrNever] if n is more than the
// limit can ever grant, and with [ErrDeadline], which is also a
// [context.DeadlineExceeded], if the wait would outlast the deadline of ctx. If ctx ends during the wait, the units are given back and the
// context's error is returned.
//
// On a token bucket those who wait are served in the order in which they came, as
// far as reservations reach (see [Limiter.ReserveN]); on a leaky bucket, as long
// as there is room in its queue. Whoever does not get in line, and everybody on
// windows, asks again when there may be room, in no particular order.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	d, err := l.await(ctx, key, n)
	if err != nil || d.Delay == 0 {
		return err
	}
	if err = sleep(ctx, d.Delay); err != nil {
		l.giveBack(ctx, key, d.Granted)
	}
	return err
}

// await takes n units, now or for a moment that ctx can wait for.
func (l *Limiter) await(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 0 {
		return Decision{}, negative(n)
	}
	r := l.request(key, n)
	for {
		patience, err := patienceOf(ctx)
		if err != nil {
			return Decision{}, err
		}
		r.MaxDelay = patience
		d, err := l.store.Take(ctx, r)
		if n == 0 {
			d.Delay = 0 // a look at a queue tells its length, and there is nothing to wait for
		}
		if err != nil || d.Allowed {
			return d, err
		}
		if err = l.worthWaiting(d, n, patience); err != nil {
			return d, err
		}
		if err = sleep(ctx, max(d.RetryAfter, shortestSleep)); err != nil {
			return d, err
		}
	}
}

// shortestSleep keeps a wait from spinning on a store that denies without saying
// for how long.
const shortestSleep = time.Microsecond

// worthWaiting returns an error if a wait that was just refused cannot end in
// time. A token bucket refuses only what lies beyond the reach of reservations:
// after RetryAfter the reservation can be made, and then there is the reach to
// wait. A leaky bucket lets nobody act before all who came earlier, however late
// one gets in line.
func (l *Limiter) worthWaiting(d Decision, n int64, patience time.Duration) error {
	if d.RetryAfter == Never {
		return fmt.Errorf("penstock: %w: %d of at most %d", ErrNever, n, d.Limit)
	}
	wait := d.RetryAfter
	switch l.compiled.limit.Algorithm {
	case TokenBucket:
		wait += min(patience, time.Duration(l.compiled.token.Reach()))
	case LeakyBucket:
		wait = d.ResetAfter
	}
	if wait > patience {
		return fmt.Errorf("penstock: %w: %v needed, %v left", ErrDeadline, wait, patience)
	}
	return nil
}

// patienceOf returns how long ctx will wait, or its error if it has ended.
func patienceOf(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64 / 2, nil // for ever, with room to add to it
	}
	return max(time.Until(deadline), 1), nil // as a MaxDelay, 0 has another meaning
}

// sleep returns after d, or with the error of ctx when that ends before.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// giveBack gives units back after ctx has ended. An error leaves them charged,
// which admits too little rather than too much.
func (l *Limiter) giveBack(ctx context.Context, key string, n int64) {
	_, _ = l.store.Take(context.WithoutCancel(ctx), l.request(key, -n))
}

func (l *Limiter) request(key string, cost int64) Request {
	r := l.one
	r.Key, r.Cost = key, cost
	return r
}

func negative(n int64) error {
	return costError("Cost", strconv.FormatInt(n, 10)+": must not be negative; Refund gives back")
}
