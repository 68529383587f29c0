// Package pacing lets calls to somebody else's server wait for their turn.
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
)

// ErrTooManyWaiting means that a call was not made, because too many others were
// waiting for their turn already.
var ErrTooManyWaiting = errors.New("too many calls are waiting")

// A Queue is where calls wait. [NewQueue] makes one.
type Queue struct {
	limiter    *penstock.Limiter
	maxWaiting int64
	maxPause   time.Duration
	waiting    atomic.Int64

	mu     sync.Mutex
	closed map[string]time.Time // until when servers take no more, by key
}

// NewQueue returns a line in which at most maxWaiting calls wait at once, by default
// 1000, and servers are believed that want a pause of up to maxPause, by default 10
// minutes.
func NewQueue(lim *penstock.Limiter, maxWaiting int, maxPause time.Duration) *Queue {
	l := &Queue{limiter: lim, maxWaiting: int64(maxWaiting), maxPause: maxPause, closed: map[string]time.Time{}}
	if l.maxWaiting <= 0 {
		l.maxWaiting = 1000
	}
	if l.maxPause <= 0 {
		l.maxPause = 10 * time.Minute
	}
	return l
}

// Wait returns when the call may go: at once, or when the limiter and the server
// let it. It fails as [penstock.Limiter.WaitN] does, and if too many wait already.
func (l *Queue) Wait(ctx context.Context, key string, cost int64) error {
	if gone, err := l.goAtOnce(ctx, key, cost); gone || err != nil {
		return err
	}
	defer l.waiting.Add(-1)
	if l.waiting.Add(1) > l.maxWaiting {
		return ErrTooManyWaiting
	}
	for {
		if err := l.waitForServer(ctx, key); err != nil {
			return err
		}
		if err := l.limiter.WaitN(ctx, key, cost); err != nil {
			return err
		}
		if gone, err := l.unlessClosed(ctx, key, cost); gone || err != nil {
			return err
		}
	}
}

// goAtOnce lets a call go that need not wait.
func (l *Queue) goAtOnce(ctx context.Context, key string, cost int64) (gone bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !l.closedUntil(key).IsZero() {
		return false, nil
	}
	d, err := l.takeNow(ctx, key, cost)
	if err != nil || !d.Allowed {
		return false, err
	}
	return l.unlessClosed(ctx, key, cost)
}

// takeNow takes what can be had without a delay.
func (l *Queue) takeNow(ctx context.Context, key string, cost int64) (penstock.Decision, error) {
	if l.limiter.Limit().Algorithm != penstock.LeakyBucket || cost <= 0 {
		return l.limiter.AllowN(ctx, key, cost)
	}
	r := l.limiter.Request(key)
	r.Cost, r.MaxDelay = cost, 1 // the least there is: for a queue, 0 means any
	return l.limiter.Store().Take(ctx, r)
}

// unlessClosed lets a call go that has its turn, unless the server has said
// meanwhile that it takes no more. To go on later with what was taken now would let
// all who waited go at once.
func (l *Queue) unlessClosed(ctx context.Context, key string, cost int64) (gone bool, err error) {
	if l.closedUntil(key).IsZero() {
		return true, nil
	}
	return false, l.giveUp(ctx, key, cost)
}

// giveUp gives back a turn that was not used. The turns of a bucket are moments,
// and this one has passed: whoever got it back would go in somebody else's.
func (l *Queue) giveUp(ctx context.Context, key string, cost int64) (err error) {
	switch l.limiter.Limit().Algorithm {
	case penstock.TokenBucket, penstock.LeakyBucket:
		return nil
	}
	if cost > 0 {
		_, err = l.limiter.Refund(ctx, key, cost)
	}
	return err
}

// waitForServer waits for as long as the server wants us to.
func (l *Queue) waitForServer(ctx context.Context, key string) error {
	for {
		until := l.closedUntil(key)
		if until.IsZero() {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
			return fmt.Errorf("%w: the server wants %v, %v left", penstock.ErrDeadline, time.Until(until), time.Until(deadline))
		}
		t := time.NewTimer(time.Until(until))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// closedUntil returns until when the server takes no more, or the zero time if it
// does.
func (l *Queue) closedUntil(key string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.closed[key]
	if time.Now().Before(until) {
		return until
	}
	delete(l.closed, key)
	return time.Time{}
}

// maxClosed is how many servers may be closed before those are looked for that are
// open again.
const maxClosed = 1024

// Pause lets nobody go under the key for as long as its server has said. What it
// said earlier, and was told late, does not open it sooner.
func (l *Queue) Pause(key string, pause time.Duration) {
	if pause <= 0 {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := now.Add(min(pause, l.maxPause)); until.After(l.closed[key]) {
		l.closed[key] = until
	}
	if len(l.closed) > maxClosed {
		maps.DeleteFunc(l.closed, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
}
