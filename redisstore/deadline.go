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
	at              time.Time
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
func deadlineAfter(ctx context.Context, timeout time.Duration) *deadline {
	d := deadlinePool.Get().(*deadline)
	d.Context = ctx
	d.sentAt = time.Now()
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

func (d *deadline) Err() error {
	if !d.ended.Load() {
		return nil
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	return context.DeadlineExceeded
}
