package monotime

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestClockNowAdvancesWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		before := c.Now()
		time.Sleep(3 * time.Second)
		if got := c.Now() - before; before != 1 || got != int64(3*time.Second) {
			t.Errorf("began at %d and advanced by %v, want 1 and 3s", before, time.Duration(got))
		}
	})
}

func TestClockNowIsNeverZero(t *testing.T) {
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(-5, 0), {}} {
		if c := New(func() time.Time { return at }); c.Now() < 1 {
			t.Errorf("at %v: %d, want at least 1", at, c.Now())
		}
	}
	at := time.Unix(1, 234)
	if c := New(func() time.Time { return at }); c.Now() != at.UnixNano() {
		t.Errorf("got %d, want %d", c.Now(), at.UnixNano())
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := Sleep(ctx, 300*time.Millisecond); err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("%v after %v, want 300ms", err, time.Since(began))
		}
		if err := Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want the end of the context after 1s", err, time.Since(began))
		}
	})
}
