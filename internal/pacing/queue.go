// Package pacing delays outgoing calls until a limiter and the remote server
// allow them.
package pacing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// ErrTooManyWaiting means that a call was not made because the queue is full.
var ErrTooManyWaiting = errors.New("too many calls are waiting")

// A Queue delays calls. [NewQueue] makes one.
type Queue struct {
	limiter    *penstock.Limiter
	maxWaiting int64
	maxPause   time.Duration
	waiting    atomic.Int64

	mu     sync.Mutex
	paused map[string]time.Time // until when each key is paused
}

// NewQueue returns a queue of at most maxWaiting calls (default 1000) that
// honours server pauses of up to maxPause (default 10 minutes).
func NewQueue(lim *penstock.Limiter, maxWaiting int, maxPause time.Duration) *Queue {
	q := &Queue{limiter: lim, maxWaiting: int64(maxWaiting), maxPause: maxPause, paused: map[string]time.Time{}}
	q.maxWaiting = defaults.Or(q.maxWaiting, 1000)
	q.maxPause = defaults.Duration(q.maxPause, 10*time.Minute)
	return q
}

// Wait returns when the call may be made. It fails like [penstock.Limiter.WaitN],
// and with [ErrTooManyWaiting] if the queue is full.
func (q *Queue) Wait(ctx context.Context, key string, cost int64) error {
	if ready, err := q.tryNow(ctx, key, cost); ready || err != nil {
		return err
	}
	defer q.waiting.Add(-1)
	if q.waiting.Add(1) > q.maxWaiting {
		return ErrTooManyWaiting
	}
	for {
		if err := q.waitForServer(ctx, key); err != nil {
			return err
		}
		if err := q.limiter.WaitN(ctx, key, cost); err != nil {
			return err
		}
		if ready, err := q.confirmTurn(ctx, key, cost); ready || err != nil {
			return err
		}
	}
}

// tryNow takes without waiting. If it is not ready, the call has to wait.
func (q *Queue) tryNow(ctx context.Context, key string, cost int64) (ready bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !q.pausedUntil(key).IsZero() {
		return false, nil
	}
	d, err := q.takeNow(ctx, key, cost)
	if err != nil || !d.Allowed {
		return false, err
	}
	return q.confirmTurn(ctx, key, cost)
}

// takeNow takes units that are available without a delay.
func (q *Queue) takeNow(ctx context.Context, key string, cost int64) (penstock.Decision, error) {
	if !q.limiter.Limit().HasQueue() || cost <= 0 {
		return q.limiter.AllowN(ctx, key, cost)
	}
	r := q.limiter.Request(key)
	r.Cost, r.MaxDelay = cost, 1 // the shortest delay: for a leaky bucket, 0 means any
	return q.limiter.Store().Take(ctx, r)
}

// confirmTurn reports whether the call may be made. It may not if the server
// asked for a pause while it waited. Then its units are returned; keeping them
// would let all waiting calls start at once after the pause.
func (q *Queue) confirmTurn(ctx context.Context, key string, cost int64) (ready bool, err error) {
	if q.pausedUntil(key).IsZero() {
		return true, nil
	}
	return false, q.returnTurn(ctx, key, cost)
}

// returnTurn refunds a turn that was not used. On a bucket it refunds nothing: a
// turn there is a moment that has passed, and refunding it would let another call
// act at the same time as a later one.
func (q *Queue) returnTurn(ctx context.Context, key string, cost int64) (err error) {
	if cost > 0 && !q.limiter.Limit().IsBucket() {
		_, err = q.limiter.Refund(ctx, key, cost)
	}
	return err
}

// waitForServer waits until the server's pause ends.
func (q *Queue) waitForServer(ctx context.Context, key string) error {
	for {
		until := q.pausedUntil(key)
		if until.IsZero() {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
			return fmt.Errorf("%w: the server wants %v, %v left", penstock.ErrDeadline, time.Until(until), time.Until(deadline))
		}
		if err := monotime.Sleep(ctx, time.Until(until)); err != nil {
			return err
		}
	}
}

// pausedUntil returns when the server's pause ends, or the zero time if there is
// none.
func (q *Queue) pausedUntil(key string) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	until := q.paused[key]
	if time.Now().Before(until) {
		return until
	}
	delete(q.paused, key)
	return time.Time{}
}

// maxPaused is how many pauses are kept before expired ones are removed.
const maxPaused = 1024

// Pause delays calls under the key for the time that its server asked for. A
// shorter pause never ends a longer one.
func (q *Queue) Pause(key string, pause time.Duration) {
	if pause <= 0 {
		return
	}
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if until := now.Add(min(pause, q.maxPause)); until.After(q.paused[key]) {
		q.paused[key] = until
	}
	if len(q.paused) > maxPaused {
		maps.DeleteFunc(q.paused, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
}
