package redisstore

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A deadline is a context that ends after a timeout, or with the caller's context.
// One that has not ended is reused, because [context.WithTimeout] would cost more
// than the rest of a call.
type deadline struct {
	context.Context           // the caller's
	start           time.Time // of what the caller asked for, which may need several deadlines
	began           time.Time // when the timer was first set, or set anew with a slot
	sentAt          time.Time // a time before the calls in flight were sent
	done            chan struct{}
	hasEnded        atomic.Bool
	timer           *time.Timer
	detach          func() bool // from the caller's context

	mu      sync.Mutex // of what follows
	timeout time.Duration
	due     time.Time        // what the timer is set to; zero if the deadline is not in use
	latest  time.Time        // what it may be set to
	queue   *inflightLimiter // in which the calls wait for a slot
	answers int64            // that Redis had given when the timer of calls that wait was set
	wasLate bool             // whether the timer was set again because it was late
}

var deadlinePool = sync.Pool{New: func() any {
	d := &deadline{done: make(chan struct{})}
	d.timer = time.AfterFunc(time.Hour, d.expire)
	d.timer.Stop()
	return d
}}

// deadlineAfter returns a context that must be stopped. A call may need several: all of them end within
// maxTimeouts of its start.
func (s *Store) deadlineAfter(ctx context.Context, start time.Time, timeout time.Duration) *deadline {
	d := deadlinePool.Get().(*deadline)
	d.Context, d.start = ctx, start
	now := time.Now()
	latest := start.Add(maxTimeouts * timeout)
	if at, ok := ctx.Deadline(); ok && at.Before(latest) {
		latest = at
	}
	if early := s.earlyEnd(ctx, now); early > 0 && now.Add(early).Before(latest) {
		latest = now.Add(early)
	}
	d.set(now, timeout, latest)
	if !now.Before(latest) {
		d.began = start
		d.end()
	}
	if ctx.Done() != nil {
		d.detach = context.AfterFunc(ctx, d.end)
	}
	return d
}

const (
	maxTimeouts = 20 // that a call may take together with its wait for a slot
	latePart    = 10 // the part of a timeout by which a process may be late
)

// set sets the timer of calls that have a slot, or ask for one.
func (d *deadline) set(now time.Time, timeout time.Duration, latest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timeout, d.latest, d.queue, d.wasLate = timeout, latest, nil, false
	d.began, d.sentAt = now, now
	d.setTimer(now)
}

// setTimer sets the timer to one timeout from now.
func (d *deadline) setTimer(now time.Time) {
	d.due = now.Add(d.timeout)
	if d.latest.Before(d.due) {
		d.due = d.latest
	}
	d.timer.Reset(d.due.Sub(now))
}

// waitIn says that the calls wait for a slot of a queue.
func (d *deadline) waitIn(queue *inflightLimiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue, d.answers = queue, queue.answers.Load()
}

// expire ends the calls when the timer fires, unless the time went by in this process and not in Redis:
// the calls still wait for a slot, and Redis answers those that have one; or goroutines wait for a processor,
// the one that reads replies too. So a crowd of callers does not look like an outage.
func (d *deadline) expire() {
	runtime.Gosched()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch late := now.Sub(d.due); {
	case late < 0 || d.due.IsZero(): // the timer was set again, or stopped
	case !now.Before(d.latest):
		d.end()
	case d.queue != nil && d.queue.answersSince(&d.answers):
		d.setTimer(now)
	case late > d.timeout/latePart && !d.wasLate: // once, because timers that fire together are late
		d.wasLate = true
		d.setTimer(now)
	default:
		d.end()
	}
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
	if !d.hasEnded.Swap(true) {
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
	if stopped && !d.hasEnded.Load() {
		d.mu.Lock()
		d.due = time.Time{}
		d.mu.Unlock()
		d.Context = context.Background() // keeps nothing alive
		deadlinePool.Put(d)
	}
}

// Deadline returns when the timer fires, as far as that is known.
func (d *deadline) Deadline() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.due, true
}

func (d *deadline) Done() <-chan struct{} { return d.done }

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

// ended returns why no call may be sent any more, or nil. The caller's context may have ended a moment ago.
func (d *deadline) ended() error {
	if err := d.Context.Err(); err != nil {
		return err
	}
	return d.Err()
}

func (d *deadline) Err() error {
	if !d.hasEnded.Load() {
		return nil
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	return context.DeadlineExceeded
}
