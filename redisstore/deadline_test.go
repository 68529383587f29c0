package redisstore

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A call leaves a fifth of its caller's time, and at least four milliseconds, unless that is
// half of it or more.
func TestEarlyEndLeavesAFifth(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct{ left, want time.Duration }{
		{10 * time.Second, 8 * time.Second},
		{20 * time.Millisecond, 16 * time.Millisecond},
		{10 * time.Millisecond, 6 * time.Millisecond},
		{8 * time.Millisecond, 4 * time.Millisecond},
		{7 * time.Millisecond, 0},
		{-time.Millisecond, 0},
	} {
		ctx := lateContext{t.Context(), now.Add(test.left)}
		if got := (&Store{margin: marginOf}).earlyEnd(ctx, now); got != test.want {
			t.Errorf("with %v left: ends after %v, want %v", test.left, got, test.want)
		}
		if got := (&Store{}).earlyEnd(ctx, now); got != 0 {
			t.Errorf("without EndEarly: ends after %v", got)
		}
	}
	if got := (&Store{margin: marginOf}).earlyEnd(t.Context(), now); got != 0 {
		t.Errorf("without a deadline: ends after %v", got)
	}
}

// A lateContext has a deadline and no timer, as a context whose timer has yet to run.
type lateContext struct {
	context.Context
	at time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.at, true }

// A connection that times out at the caller's deadline ended because of the caller, even if the
// timer of the caller's context has not run yet.
func TestCallErrorBlamesCallerWhoseDeadlineHasPassed(t *testing.T) {
	t.Parallel()
	s := &Store{answers: newAnswerLog(time.Minute)}
	for _, test := range []struct {
		at          time.Time
		unavailable bool
	}{
		{time.Now().Add(-time.Millisecond), false},
		{time.Now().Add(time.Hour), true},
	} {
		d := s.deadlineAfter(lateContext{t.Context(), test.at}, time.Now(), time.Minute)
		c := &Call{Script: &Script{Name: "take"}, Err: context.DeadlineExceeded}
		for name, err := range map[string]error{"take": s.callError(d, c), "eval": s.evalError(d, c)} {
			if errors.Is(err, penstock.ErrUnavailable) != test.unavailable || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %v left: got %v, want ErrUnavailable: %v", name, time.Until(test.at).Round(time.Minute), err, test.unavailable)
			}
		}
		d.stop()
	}
}

// A server that may take long for a call may also take long for its first answer.
func TestConnectTimeoutFollowsTimeout(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{0: 5 * time.Second, 6 * time.Second: 6 * time.Second} {
		o, err := (&Options{Timeout: timeout}).withDefaults()
		if err != nil || o.connectTimeout != want {
			t.Errorf("with the timeout %v, connecting may take %v, %v, want %v", timeout, o.connectTimeout, err, want)
		}
	}
}

func TestRollBackTTLOutlivesCallAndRollBack(t *testing.T) {
	for _, timeout := range []time.Duration{50 * time.Millisecond, time.Second, 24 * time.Hour} {
		s := &Store{timeout: timeout, answers: newAnswerLog(timeout)}
		start := time.Now()
		d := s.deadlineAfter(t.Context(), start, timeout)
		call := d.latest.Sub(start)
		d.stop()
		if ttl := s.rollBackTTL(); ttl <= 2*call {
			t.Errorf("timeout %v: a grant is remembered for %v, but a call and its roll-back may take %v each", timeout, ttl, call)
		}
	}
}

// The time of a call goes on while Redis answers calls that were before it, or its process is late.
func TestDeadlineLasts(t *testing.T) {
	const timeout = 50 * time.Millisecond
	waiting := func(abandoned int64) func(*deadline, *answerLog) {
		return func(d *deadline, _ *answerLog) {
			queue := newInflightLimiter(1, timeout, time.Hour)
			queue.abandoned.Store(abandoned)
			d.waitIn(queue)
		}
	}
	for _, test := range []struct {
		name   string
		before func(*deadline, *answerLog) // half a timeout before the timer fires
		late   time.Duration
		age    int // in timeouts
		lasts  bool
		busy   bool
	}{
		{name: "Redis does not answer"},
		{name: "the process is late", late: timeout, lasts: true},
		{name: "it waits for a slot", before: waiting(0), lasts: true},
		{name: "it waits, and Redis does not answer", before: waiting(1)},
		{name: "it waits, and another caller has left while Redis answers", before: func(d *deadline, log *answerLog) {
			waiting(1)(d, log)
			log.note(0, time.Now())
		}, lasts: true},
		{name: "it has waited for too long", before: func(d *deadline, log *answerLog) {
			waiting(0)(d, log)
			log.note(0, time.Now())
		}, late: timeout, age: maxTimeouts, busy: true},
		{name: "Redis answers calls before it", before: func(d *deadline, log *answerLog) { log.note(0, d.sentAt) }, lasts: true},
		{name: "Redis answers only calls after it", before: func(_ *deadline, log *answerLog) { log.note(0, time.Now()) }},
		{name: "another node answers", before: func(d *deadline, log *answerLog) { log.note(1, d.sentAt) }},
		{name: "one of its nodes answers", before: func(d *deadline, log *answerLog) {
			d.sendTo(1<<3 | 1<<5)
			log.note(5, d.sentAt)
		}, lasts: true},
		{name: "it took too long", before: func(d *deadline, log *answerLog) { log.note(0, d.sentAt) }, age: maxTimeouts, busy: true},
		{name: "it was sent a moment before, and Redis has answered others", before: func(d *deadline, log *answerLog) {
			log.note(0, d.sentAt)
			d.sendAgain()
		}, age: maxTimeouts, busy: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Hour) // of the store
			log := newAnswerLog(timeout)
			time.Sleep(time.Second)
			d := (&Store{answers: log}).deadlineAfter(context.Background(), time.Now(), timeout)
			d.timer.Stop()
			d.latest = d.latest.Add(-time.Duration(test.age) * d.timeout)
			time.Sleep(timeout / 2)
			if test.before != nil {
				test.before(d, log)
			}
			time.Sleep(timeout/2 + test.late)
			if d.expire(); d.Err() == nil != test.lasts || d.Err() != nil && d.busy() != test.busy {
				t.Errorf("%s: lasts %t, busy %t, want %t, %t", test.name, d.Err() == nil, d.busy(), test.lasts, test.busy)
			}
			if at, _ := d.Deadline(); d.Err() == nil && !at.After(time.Now()) {
				t.Errorf("%s: lasts, and a client is told that it ended at %v", test.name, at)
			}
			d.timer.Stop() // not d.stop: one that has ended must not be used again
		})
	}
}

// A timer may fire just before its call ends, and look at the deadline when another call has it. The race
// detector sees that both are ordered.
func TestDeadlineTimerFiresWhileItIsReused(t *testing.T) {
	s := &Store{answers: newAnswerLog(time.Hour)}
	var late sync.WaitGroup
	for range 1000 {
		d := s.deadlineAfter(t.Context(), time.Now(), time.Hour)
		late.Go(d.expire)
		d.stop()
	}
	late.Wait()
}

// A timer that fires while its deadline is stopped may end it, and then no other call gets it.
func TestDeadlineThatEndsWhileItIsStoppedIsNotReused(t *testing.T) {
	d := (&Store{answers: newAnswerLog(time.Hour)}).deadlineAfter(t.Context(), time.Now(), time.Hour)
	d.mu.Lock() // as the timer does
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		d.stop()
	}()
	for stacks := make([]byte, 1<<20); !waitsIn(stacks[:runtime.Stack(stacks, true)], "(*deadline).stop("); {
		runtime.Gosched()
	}
	d.end()
	d.mu.Unlock()
	if <-stopped; d.Context != t.Context() {
		t.Error("a deadline that has ended was returned to the pool")
	}
}

// waitsIn reports whether a goroutine waits for a mutex in a function.
func waitsIn(stacks []byte, function string) bool {
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("[sync.Mutex.Lock")) && bytes.Contains(stack, []byte(function)) {
			return true
		}
	}
	return false
}

// A call whose last part begins after its time is up, because Redis or this process was slow, ends at once. That is an
// outage only if Redis does not answer others.
func TestDeadlineOfLatePart(t *testing.T) {
	const timeout = 50 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		for ago, want := range map[time.Duration]error{timeout / 2: penstock.ErrBusy, timeout: penstock.ErrUnavailable} {
			s := &Store{answers: newAnswerLog(timeout)}
			start := time.Now()
			time.Sleep(maxTimeouts * timeout)
			s.answers.note(3, start) // of a Cluster
			time.Sleep(ago)
			d := s.deadlineAfter(context.Background(), start, timeout)
			err := s.callError(d, &Call{Script: &Script{Name: "take"}, Err: d.ended()})
			if !errors.Is(err, want) {
				t.Errorf("Redis answered others %v ago: got %v, want %v", ago, err, want)
			}
			d.stop()
		}
	})
}

// A caller that leaves while it opens a connection, for which others wait, says nothing about their calls.
func TestCallIsRepeatedIfAnotherCallerLeavesItsConnection(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, test := range []struct {
		ctx  context.Context
		want bool
	}{{t.Context(), true}, {left, false}} {
		c := Call{Err: (&rueidisClient{}).translateError(test.ctx, context.Canceled)}
		if got := c.retryable(); got != test.want {
			t.Errorf("own context %v: %v is repeated: %t, want %t", test.ctx.Err(), c.Err, got, test.want)
		}
	}
}
