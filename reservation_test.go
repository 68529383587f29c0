package penstock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

func TestReservationDelayCountsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1s")
		for i := range 3 {
			r, err := lim.Reserve(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			if want := time.Duration(i) * time.Second; r.Delay() != want {
				t.Errorf("reservation %d is delayed by %v, want %v", i, r.Delay(), want)
			}
		}
		r, _ := lim.Reserve(ctx, "k")
		time.Sleep(time.Second)
		if got := r.Delay(); got != 2*time.Second {
			t.Errorf("a second later, %v are left, want 2s", got)
		}
		time.Sleep(time.Minute)
		if got := r.Delay(); got != 0 {
			t.Errorf("when due, %v are left", got)
		}
	})
}

func TestReservationCancelRestoresState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "5/5s")
		takeFive(t, lim, "k") // so that all reservations have a delay
		var group sync.WaitGroup
		cancelled := make(chan struct{})
		for range 40 {
			r, err := lim.Reserve(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				<-cancelled
				if err := errors.Join(r.Cancel(ctx), r.Cancel(ctx)); err != nil {
					t.Error(err)
				}
			})
		}
		close(cancelled)
		group.Wait()
		time.Sleep(4 * time.Second)
		expectRemaining(t, lim, "k", 4)
	})
}

func TestReservationCancelCanBeRetriedAfterError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{next: penstock.NewMemory(nil), fail: map[string]bool{}}
		lim := limiter(t, store, "5/5s")
		if d, err := lim.AllowN(ctx, "k", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		r, err := lim.ReserveN(ctx, "k", 5)
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		store.fail["k"] = true
		if err := r.Cancel(ended); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("cancelling on a store that fails: %v, want ErrUnavailable", err)
		}
		store.fail["k"] = false
		if err := r.Cancel(ended); err != nil {
			t.Errorf("cancelling again: %v", err)
		}
		time.Sleep(time.Second)
		expectRemaining(t, lim, "k", 1)
	})
}

func TestReservationCancelWhenDueRefundsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, text := range []string{"10/1h", "10/1h leaky-bucket", "10/1h fixed-window"} {
			lim := limiter(t, penstock.NewMemory(nil), text)
			r, err := lim.Reserve(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(r.Delay() + 1)
			if err := r.Cancel(ctx); err != nil {
				t.Error(err)
			}
			expectRemaining(t, lim, "k", 9)
		}
	})
}

// A holder that acts as soon as Delay is zero, and cancels at the same reading of the clock, has
// used its units.
func TestReservationCancelAtMomentToActRefundsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "2/2s")
		for range 4 {
			r, err := lim.Reserve(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(r.Delay())
			if err := r.Cancel(ctx); err != nil {
				t.Error(err)
			}
		}
		expectRemaining(t, lim, "k", 0)
	})
}

func TestLimiterReserveFailsLikeWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1m")
		if _, err := lim.ReserveN(ctx, "k", 2); !errors.Is(err, penstock.ErrNever) {
			t.Errorf("ReserveN(2) of 1: %v, want ErrNever", err)
		}
		if _, err := lim.Reserve(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if r, err := lim.Reserve(soon, "k"); !errors.Is(err, penstock.ErrDeadline) {
			t.Errorf("Reserve within a second: %v, %v, want ErrDeadline", r, err)
		}
	})
}
