package inflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestCallsDoneWakesWaitersOfTheSameHash(t *testing.T) {
	var c Calls
	c.Done(1) // without waiters
	first, second, other := c.Wait(1), c.Wait(1), c.Wait(2)
	c.Done(1)
	if !isClosed(first) || !isClosed(second) {
		t.Error("waiters of the finished call still wait")
	}
	if isClosed(other) || isClosed(c.Wait(1)) {
		t.Error("waiters of another call, or of the next, were woken")
	}
}

func TestCallsKeepNoEntryAfterDone(t *testing.T) {
	var c Calls
	c.Wait(1)
	c.Done(1)
	if len(c.waiting) != 0 {
		t.Errorf("%d entries after the only call was done, want none", len(c.waiting))
	}
}

func TestAwaitReturnsAtTheFirstEvent(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, c := range map[string]struct {
		done    chan struct{}
		timeout time.Duration // of the context
		want    time.Duration
		err     error
	}{
		"call done":     {done: closed, timeout: time.Hour},
		"waited enough": {timeout: time.Hour, want: MaxWait},
		"context ended": {timeout: time.Millisecond, want: time.Millisecond, err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				start := time.Now()
				err := Await(ctx, c.done, MaxWait)
				if took := time.Since(start); took != c.want || !errors.Is(err, c.err) {
					t.Errorf("%v after %v, want %v after %v", err, took, c.err, c.want)
				}
			})
		})
	}
}
