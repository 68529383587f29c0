package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A deadline is a context that ends after a while, or with the caller's. It is
// used again when it has not ended, because [context.WithTimeout] would cost
// more than the rest of a call.
type deadline struct {
	context.Context // the caller's
	at              time.Time
	sentAt          time.Time // when the calls that are under way were made, or before
	done            chan struct{}
	ended           atomic.Bool
	timer           *time.Timer
	release         func() bool // the caller's context
}

var deadlines = sync.Pool{New: func() any {
	d := &deadline{done: make(chan struct{})}
	d.timer = time.AfterFunc(time.Hour, d.end)
	d.timer.Stop()
	return d
}}

// deadlineAfter returns a context that must be given back to stop.
func deadlineAfter(ctx context.Context, timeout time.Duration) *deadline {
	d := deadlines.Get().(*deadline)
	d.Context = ctx
	d.sentAt = time.Now()
	d.at = d.sentAt.Add(timeout)
	if at, ok := ctx.Deadline(); ok && at.Before(d.at) {
		d.at = at
	}
	d.timer.Reset(timeout)
	if ctx.Done() != nil {
		d.release = context.AfterFunc(ctx, d.end)
	}
	return d
}

func (d *deadline) end() {
	if !d.ended.Swap(true) {
		close(d.done)
	}
}

// stop gives the context back. One that has ended, or is about to, is left to
// whoever still holds it.
func (d *deadline) stop() {
	stopped := d.timer.Stop()
	if d.release != nil {
		stopped = d.release() && stopped
		d.release = nil
	}
	if stopped {
		d.Context = context.Background() // which keeps nothing alive
		deadlines.Put(d)
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
