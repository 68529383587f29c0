package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A deadline is a context that ends after a timeout, or with the caller's context.
// One that has not ended is reused, because [context.WithTimeout] would cost more
// than the rest of a call.
type deadline struct {
	context.Context // the caller's
	began, at       time.Time
	sentAt          time.Time // a time before the calls in flight were sent
	done            chan struct{}
	ended           atomic.Bool
	timer           *time.Timer
	detach          func() bool // from the caller's context
}

var deadlinePool = sync.Pool{New: func() any {
	d := &deadline{done: make(chan struct{})}
	d.timer = time.AfterFunc(time.Hour, d.end)
	d.timer.Stop()
	return d
}}

// deadlineAfter returns a context that must be stopped.
func (s *Store) deadlineAfter(ctx context.Context, timeout time.Duration) *deadline {
	d := deadlinePool.Get().(*deadline)
	d.Context = ctx
	d.began = time.Now()
	d.sentAt = d.began
	if early := s.earlyEnd(ctx, d.began); early > 0 {
		timeout = min(timeout, early)
	}
	d.at = d.sentAt.Add(timeout)
	if at, ok := ctx.Deadline(); ok && at.Before(d.at) {
		d.at = at
	}
	d.timer.Reset(timeout)
	if ctx.Done() != nil {
		d.detach = context.AfterFunc(ctx, d.end)
	}
	return d
}

// What Options.EndEarly leaves of a caller's time: a part of it, and at least minMargin. With
// less than twice that, the call has all of it, because it would have too little otherwise.
const (
	marginPart = 5
	minMargin  = 4 * time.Millisecond
)

// earlyEnd returns how long a call may take so that its caller has time to do without it. It is
// 0 if the caller has no deadline, or too little time.
func (s *Store) earlyEnd(ctx context.Context, now time.Time) time.Duration {
	if s.margin == nil {
		return 0
	}
	at, ok := ctx.Deadline()
	left := at.Sub(now)
	if !ok || left < 2*minMargin {
		return 0
	}
	return left - s.margin(left)
}

// marginOf returns what Options.EndEarly leaves of the time that is left.
func marginOf(left time.Duration) time.Duration { return max(left/marginPart, minMargin) }

func (d *deadline) end() {
	if !d.ended.Swap(true) {
		close(d.done)
	}
}

// stop returns the context to the pool. One that has ended, or is about to, is not
// reused, because the client may still hold it.
func (d *deadline) stop() {
	stopped := d.timer.Stop()
	if d.detach != nil {
		stopped = d.detach() && stopped
		d.detach = nil
	}
	if stopped {
		d.Context = context.Background() // keeps nothing alive
		deadlinePool.Put(d)
	}
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }
func (d *deadline) Done() <-chan struct{}       { return d.done }

// callerErr returns why the caller's context has ended, or nil if it has not.
func (d *deadline) callerErr() error { return endOf(d.Context) }

// endOf returns why a context has ended, or nil if it has not. A deadline that has passed
// has ended it: the timer of the context may be a moment later than that of the connection.
func endOf(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return nil
}

func (d *deadline) Err() error {
	if !d.ended.Load() {
		return nil
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	return context.DeadlineExceeded
}
