package redisstore

import (
	"context"
	"errors"
	"testing"
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
	s := &Store{}
	for _, test := range []struct {
		at          time.Time
		unavailable bool
	}{
		{time.Now().Add(-time.Millisecond), false},
		{time.Now().Add(time.Hour), true},
	} {
		d := s.deadlineAfter(lateContext{t.Context(), test.at}, time.Minute)
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
