package pacing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

func limiter(t *testing.T, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	q, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(s, q)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// slow is a store that answers after a second.
func slow() penstock.Store {
	memory := penstock.NewMemory(nil)
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		time.Sleep(time.Second)
		return memory.Take(ctx, r)
	})
}

// wait makes n calls wait concurrently, and returns their errors.
func wait(ctx context.Context, q *Queue, n int) chan error {
	errs := make(chan error, n)
	for range n {
		go func() { errs <- q.Wait(ctx, "k", 1) }()
	}
	return errs
}

// count returns how many errors of each kind there are.
func count(errs chan error, n int) (none, full int) {
	for range n {
		switch err := <-errs; {
		case err == nil:
			none++
		case errors.Is(err, ErrTooManyWaiting):
			full++
		}
	}
	return none, full
}

// A call that need not wait does not count as waiting, however slow the store is.
func TestQueueCountsOnlyWaitingCalls(t *testing.T) {
	for _, test := range []struct {
		limit string
		goes  int // how many go at once
	}{{"20/1h", 20}, {"20/1h fixed-window", 20}, {"20/1h leaky-bucket burst=20", 1}} {
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue(limiter(t, slow(), test.limit), 2, 0)
			ctx, leave := context.WithCancel(t.Context())
			errs := wait(ctx, q, 30)
			if none, full := count(errs, 28); none != test.goes || full != 28-test.goes {
				t.Errorf("%s: %d of 30 went and %d found too many waiting", test.limit, none, full)
			}
			leave()
			if none, full := count(errs, 2); none != 0 || full != 0 {
				t.Errorf("%s: of two that waited, %d went and %d found too many waiting", test.limit, none, full)
			}
		})
	}
}

// Calls that wait for the server count as waiting.
func TestQueueCountsCallsWaitingForServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(limiter(t, penstock.NewMemory(nil), "1000/1s"), 3, 0)
		q.Pause("k", time.Minute)
		start := time.Now()
		if none, full := count(wait(t.Context(), q, 10), 10); none != 3 || full != 7 || time.Since(start) != time.Minute {
			t.Errorf("%d went and %d found too many waiting, after %v", none, full, time.Since(start))
		}
	})
}

// On a bucket, waiting calls keep their order.
func TestQueueKeepsOrder(t *testing.T) {
	for _, limit := range []string{"1/1s burst=1", "1/1s leaky-bucket burst=100"} {
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue(limiter(t, penstock.NewMemory(nil), limit), 0, 0)
			went := make(chan int, 20)
			for i := range 20 {
				go func() {
					if err := q.Wait(t.Context(), "k", 1); err != nil {
						t.Error(err)
					}
					went <- i
				}()
				synctest.Wait()
			}
			for i := range 20 {
				if got := <-went; got != i {
					t.Errorf("%s: call %d went as number %d", limit, got, i)
				}
			}
		})
	}
}

// A call whose context has ended takes nothing, although units are left.
func TestQueueCancelledContextTakesNothing(t *testing.T) {
	lim := limiter(t, penstock.NewMemory(nil), "10/1h")
	cancelled, leave := context.WithCancel(t.Context())
	leave()
	if err := NewQueue(lim, 0, 0).Wait(cancelled, "k", 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if d, err := lim.Peek(t.Context(), "k"); err != nil || d.Remaining != 10 {
		t.Errorf("%v, %v", d, err)
	}
}

// If the server pauses while a call is taking its turn, the call is not made, and the
// units of a window are refunded.
func TestQueuePauseDuringWaitRefundsUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, slow(), "10/1h fixed-window")
		q := NewQueue(lim, 0, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(500*time.Millisecond, func() { q.Pause("k", time.Minute) })
		if err := q.Wait(ctx, "k", 4); !errors.Is(err, penstock.ErrDeadline) {
			t.Errorf("got %v, want %v", err, penstock.ErrDeadline)
		}
		if d, err := lim.Peek(t.Context(), "k"); err != nil || d.Remaining != 10 {
			t.Errorf("%v, %v", d, err)
		}
	})
}

// A call whose deadline is before the end of the pause takes no turn, because a bucket
// could not return it.
func TestQueuePauseBeforeWaitTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "10/1h")
		q := NewQueue(lim, 0, 0)
		q.Pause("k", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Wait(ctx, "k", 1); !errors.Is(err, penstock.ErrDeadline) {
			t.Errorf("got %v, want %v", err, penstock.ErrDeadline)
		}
		if d, err := lim.Peek(t.Context(), "k"); err != nil || d.Remaining != 10 {
			t.Errorf("%v, %v", d, err)
		}
	})
}

// Expired pauses are dropped when there are many, and no others.
func TestQueueDropsExpiredPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(limiter(t, penstock.NewMemory(nil), "10/1s"), 0, 0)
		for i := range 5000 {
			time.Sleep(10 * time.Millisecond)
			q.Pause(fmt.Sprint(i), time.Second)
			if last := max(0, i-50); q.pausedUntil(fmt.Sprint(last)).IsZero() {
				t.Fatalf("%d is closed, and was forgotten", last)
			}
		}
		if n := len(q.paused); n < 100 || n > maxPaused+100 {
			t.Errorf("%d servers are remembered", n)
		}
	})
}

func TestQueuePauseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(limiter(t, penstock.NewMemory(nil), "1000/1s"), 0, time.Minute)
		for _, test := range []struct{ pause, waits time.Duration }{
			{0, 0}, {-time.Second, 0}, {time.Second, time.Second}, {time.Hour, time.Minute}, {penstock.Never, time.Minute},
		} {
			start := time.Now()
			q.Pause("k", test.pause)
			if err := q.Wait(t.Context(), "k", 1); err != nil || time.Since(start) != test.waits {
				t.Errorf("a pause of %v took %v, %v, want %v", test.pause, time.Since(start), err, test.waits)
			}
		}
	})
}
