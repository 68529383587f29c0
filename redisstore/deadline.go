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
	context.Context            // the caller's
	start           time.Time  // of what the caller asked for, which may need several deadlines
	began           time.Time  // when the timer was first set, or set anew with a slot
	sentAt          time.Time  // a time before the calls in flight were sent; changed under mu
	answers         *answerLog // changed under mu, as the next is
	limited         bool       // whether the caller's context, or Options.EndEarly, limits it
	done            chan struct{}
	hasEnded        atomic.Bool
	timer           *time.Timer
	detach          func() bool // from the caller's context

	mu      sync.Mutex // of what follows
	timeout time.Duration
	due     time.Time        // what the timer is set to; zero if the deadline is not in use
	latest  time.Time        // what it may be set to
	nodes   uint64           // to which the calls in flight were sent, as bits
	queue   *inflightLimiter // in which the calls wait for a slot
	wasLate bool             // whether the timer was set again because it was late
	isBusy  bool             // whether Redis answered others when it ended
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
	now := time.Now()
	latest, limited := start.Add(maxTimeouts*timeout), false
	if at, ok := ctx.Deadline(); ok && at.Before(latest) {
		latest, limited = at, true
	}
	if early := s.earlyEnd(ctx, now); early > 0 && now.Add(early).Before(latest) {
		latest, limited = now.Add(early), true
	}
	d.begin(ctx, start, s.answers, limited)
	d.set(now, timeout, latest)
	if !now.Before(latest) {
		d.endLate(now)
	}
	if ctx.Done() != nil {
		d.detach = context.AfterFunc(ctx, d.leave)
	}
	return d
}

// endLate ends calls whose time was up before they could be sent.
func (d *deadline) endLate(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = d.start
	d.isBusy = d.answers.latest().After(now.Add(-d.timeout))
	d.end()
}

const (
	maxTimeouts = 20 // that a call may take together with its wait for a slot
	latePart    = 10 // the part of a timeout by which a process may be late
)

// begin begins another use. The timer of the last may have fired just before it was stopped, and then expire still looks
// at the deadline.
func (d *deadline) begin(ctx context.Context, start time.Time, answers *answerLog, limited bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Context, d.start, d.answers, d.limited = ctx, start, answers, limited
}

// set sets the timer of calls that have a slot, or ask for one.
func (d *deadline) set(now time.Time, timeout time.Duration, latest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timeout, d.latest, d.nodes, d.queue, d.wasLate = timeout, latest, 1, nil, false
	d.began, d.sentAt = now, now
	d.setTimer(now, now.Add(timeout))
}

// setTimer sets the timer to a time, or to the latest.
func (d *deadline) setTimer(now, due time.Time) {
	d.due = due
	if d.latest.Before(due) {
		d.due = d.latest
	}
	d.timer.Reset(d.due.Sub(now))
}

// waitIn says that the calls wait for a slot of a queue.
func (d *deadline) waitIn(queue *inflightLimiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = queue
}

// endWait says that the calls have their slots. Their time begins anew if they have waited, and not before: otherwise it would
// begin with each slot that another call leaves because Redis hangs.
func (d *deadline) endWait() {
	d.mu.Lock()
	waited := d.queue != nil
	d.mu.Unlock()
	if waited {
		d.set(time.Now(), d.timeout, d.latest)
	}
}

// sendTo says to which nodes the calls are about to be sent.
func (d *deadline) sendTo(nodes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes = nodes
}

// sendAgain says that calls are about to be sent again.
func (d *deadline) sendAgain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sentAt = time.Now()
}

// expire ends the calls when the timer fires, unless Redis has answered others meanwhile that were before them, or
// the time went by in this process: goroutines wait for a processor, the one that reads replies too. So a crowd of
// callers does not look like an outage.
func (d *deadline) expire() {
	runtime.Gosched()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	due := d.lastProgress(now).Add(d.timeout)
	switch late := now.Sub(d.due); {
	case late < 0 || d.due.IsZero(): // the timer was set again, or stopped
	case !now.Before(d.latest):
		d.isBusy = d.wasBusy(d.due) // and not now: this process may be late
		d.end()
	case due.After(now):
		d.wasLate = false
		d.setTimer(now, due)
	case late > d.timeout/latePart && !d.wasLate: // once, because timers that fire together are late
		d.wasLate = true
		d.setTimer(now, now.Add(d.timeout))
	default:
		d.end()
	}
}

// lastProgress returns when the calls last came nearer to their answer, or zero: Redis answered calls that were
// sent before them, or while they wait for a slot, any. They also do as long as none in flight has ended without an
// answer: those may have been sent just now.
func (d *deadline) lastProgress(now time.Time) time.Time {
	switch {
	case d.queue == nil:
		return d.answers.near(d.sentAt, d.nodes)
	case d.queue.abandoned.Load() == 0:
		return now
	}
	return d.answers.latestOf(d.queue.node)
}

// progressed reports whether Redis answers others, when the time of the calls is up, or their connection has ended
// earlier. It does if it has since they were sent, within a timeout. If their caller gave them less, it does if it has
// since they were sent, or in the time in which it carries out a batch. Otherwise it also does as long as none that
// has a slot has ended without an answer.
func (d *deadline) progressed(end time.Time) bool {
	if d.queue != nil && !d.limited && d.queue.abandoned.Load() == 0 {
		return true
	}
	since := d.sentAt
	if timeoutAgo := end.Add(-d.timeout); !d.limited && since.Before(timeoutAgo) {
		since = timeoutAgo
	}
	if batchAgo := end.Add(-min(batchTime, d.timeout)); d.limited && since.After(batchAgo) {
		since = batchAgo
	}
	if d.queue != nil {
		return d.answers.latestOf(d.queue.node).After(since)
	}
	return d.answers.near(d.sentAt, d.nodes).After(since)
}

// wasBusy reports whether Redis answered others until the time of the calls was up. They may have been sent a moment before,
// so that it has had no timeout to answer them.
func (d *deadline) wasBusy(end time.Time) bool {
	return d.progressed(end) || !d.limited && d.lastProgress(end).After(end.Add(-d.timeout))
}

// batchTime is how long Redis needs for the batches in flight, at most, unless it is very slow; see [callWindow].
const batchTime = 15 * time.Millisecond

// leave ends the calls because the caller's context has ended.
func (d *deadline) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hasEnded.Load() {
		d.limited = true
		d.isBusy = d.progressed(time.Now())
	}
	d.end()
}

// busy reports whether the time of the calls was up while Redis answered others. A connection may end before the
// deadline does.
func (d *deadline) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isBusy || !d.hasEnded.Load() && d.progressed(time.Now())
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
	d.mu.Lock()
	reusable := stopped && !d.hasEnded.Load() // which expire may have changed after its timer was set again
	if reusable {
		d.due = time.Time{}
	}
	d.mu.Unlock()
	if reusable {
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
