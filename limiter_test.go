package penstock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

var ctx = context.Background()

func limiter(t testing.TB, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// expectWait checks that a call takes exactly that long.
func expectWait(t *testing.T, want time.Duration, call func() error) {
	t.Helper()
	start := time.Now()
	if err := call(); err != nil {
		t.Errorf("waited %v: %v", time.Since(start), err)
	}
	if got := time.Since(start); got != want {
		t.Errorf("waited %v, want %v", got, want)
	}
}

// expectRemaining checks how many units of a key are left.
func expectRemaining(t *testing.T, lim *penstock.Limiter, key string, want int64) {
	t.Helper()
	d, err := lim.Peek(ctx, key)
	if err != nil || d.Remaining != want {
		t.Errorf("%q has %d left (%v), want %d", key, d.Remaining, err, want)
	}
}

func TestLimiterWaitReturnsWhenUnitsAreAvailable(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1/1s":                          time.Second,
		"10/1m burst=1":                 6 * time.Second,
		"1/1s leaky-bucket":             time.Second,
		"1/1s fixed-window":             time.Second,
		"1/1s sliding-window":           2 * time.Second,
		"1/1s sliding-log":              time.Second,
		"1/2s rolling-window bucket=1s": 3 * time.Second,
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := limiter(t, penstock.NewMemory(nil), text)
				expectWait(t, 0, func() error { return lim.Wait(ctx, "k") })
				expectWait(t, want, func() error { return lim.Wait(ctx, "k") })
			})
		})
	}
}

func TestLimiterWaitServesInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1s")
		start := time.Now()
		served := make([]time.Duration, 50)
		var group sync.WaitGroup
		for i := range served {
			group.Go(func() {
				if err := lim.Wait(ctx, "k"); err != nil {
					t.Error(err)
				}
				served[i] = time.Since(start)
			})
			synctest.Wait() // until it has reserved its unit
		}
		group.Wait()
		for i, got := range served {
			if want := time.Duration(i) * time.Second; got != want {
				t.Errorf("waiter %d was served after %v, want %v", i, got, want)
			}
		}
	})
}

// More calls than can be reserved ahead are still served, one a second.
func TestLimiterWaitServesCallsBeyondReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1s")
		start := time.Now()
		var group sync.WaitGroup
		for range 200 {
			group.Go(func() {
				if err := lim.Wait(ctx, "k"); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if got := time.Since(start); got != 199*time.Second {
			t.Errorf("200 waiters at one a second took %v, want 3m19s", got)
		}
	})
}

func TestLimiterWaitPastDeadlineFailsAtOnce(t *testing.T) {
	for _, text := range []string{
		"1/1m", "1/1m leaky-bucket", "1/1m fixed-window", "1/1m sliding-window", "1/1m rolling-window", "1/1m sliding-log",
		"1/1h burst=1", // beyond the reach of reservations
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := limiter(t, penstock.NewMemory(nil), text)
				if err := lim.Wait(ctx, "k"); err != nil {
					t.Fatal(err)
				}
				soon, cancel := context.WithTimeout(ctx, 59*time.Second)
				defer cancel()
				start := time.Now()
				err := lim.Wait(soon, "k")
				if !errors.Is(err, penstock.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Wait of a minute within 59 s: %v, want ErrDeadline", err)
				}
				if got := time.Since(start); got != 0 {
					t.Errorf("it failed after %v, want at once", got)
				}
				expectRemaining(t, lim, "k", 0)
			})
		})
	}
}

// The queue gets shorter as time passes, but so does the time left.
func TestLimiterWaitInLongQueueFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "10/10s leaky-bucket")
		if d, err := lim.AllowN(ctx, "k", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		soon, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		start := time.Now()
		if err := lim.Wait(soon, "k"); !errors.Is(err, penstock.ErrDeadline) || time.Since(start) != 0 {
			t.Errorf("five seconds of queue with four left: %v after %v, want ErrDeadline at once", err, time.Since(start))
		}
		later, cancel := context.WithTimeout(ctx, 6*time.Second)
		defer cancel()
		expectWait(t, 5*time.Second, func() error { return lim.Wait(later, "k") })
	})
}

func TestLimiterWaitUntilExactlyTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1m")
		if err := lim.Wait(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(ctx, time.Minute+1)
		defer cancel()
		expectWait(t, time.Minute, func() error { return lim.Wait(soon, "k") })
	})
}

func TestLimiterWaitAboveCapacityReturnsErrNever(t *testing.T) {
	for _, text := range []string{"5/1s", "5/1s leaky-bucket", "5/1s fixed-window", "0/1s"} {
		lim := limiter(t, penstock.NewMemory(nil), text)
		if err := lim.WaitN(ctx, "k", 6); !errors.Is(err, penstock.ErrNever) {
			t.Errorf("%s: WaitN(6): %v, want ErrNever", text, err)
		}
	}
}

func TestLimiterWaitRefundsWhenContextEnds(t *testing.T) {
	for _, text := range []string{"10/10s", "10/10s leaky-bucket", "10/10s fixed-window"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := limiter(t, penstock.NewMemory(nil), text)
				if d, _ := lim.AllowN(ctx, "k", 9); !d.Allowed {
					t.Fatal(d)
				}
				c, cancel := context.WithCancel(ctx)
				failed := make(chan error)
				go func() { failed <- lim.WaitN(c, "k", 4) }()
				synctest.Wait()
				cancel()
				if err := <-failed; !errors.Is(err, context.Canceled) {
					t.Errorf("WaitN after cancel: %v", err)
				}
				expectRemaining(t, lim, "k", 1)
			})
		})
	}
}

func TestLimiterWaitForZeroUnitsReturnsAtOnce(t *testing.T) {
	for _, text := range []string{"5/1h", "5/1h leaky-bucket", "5/1h fixed-window", "0/1h"} {
		synctest.Test(t, func(t *testing.T) {
			lim := limiter(t, penstock.NewMemory(nil), text)
			if _, err := lim.AllowAtMost(ctx, "k", 5); err != nil {
				t.Fatal(err)
			}
			expectWait(t, 0, func() error { return lim.WaitN(ctx, "k", 0) })
		})
	}
}

func TestLimiterWaitWithEndedContextTakesNothing(t *testing.T) {
	lim := limiter(t, penstock.NewMemory(nil), "5/1h")
	c, cancel := context.WithCancel(ctx)
	cancel()
	if err := lim.Wait(c, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v, want context.Canceled", err)
	}
	expectRemaining(t, lim, "k", 5)
}

func TestLimiterBadInputNamesFieldAndChargesNothing(t *testing.T) {
	store := penstock.NewMemory(nil)
	lim := limiter(t, store, "5/1h")
	take := func(change func(*penstock.Request)) error {
		r := penstock.Request{Key: "k", Limit: lim.Limit(), Cost: 1}
		change(&r)
		d, err := store.Take(ctx, r)
		if d != (penstock.Decision{}) {
			t.Errorf("%+v returned an error and %+v", r, d)
		}
		return err
	}
	call := func(_ any, err error) error { return err }
	for what, c := range map[string]struct {
		err   error
		kind  error
		field string
	}{
		"no key":              {call(lim.Allow(ctx, "")), penstock.ErrBadKey, "Key"},
		"taking less than 0":  {call(lim.AllowN(ctx, "k", -1)), penstock.ErrBadCost, "Cost"},
		"the least int64":     {call(lim.AllowN(ctx, "k", math.MinInt64)), penstock.ErrBadCost, "Cost"},
		"at most less than 0": {call(lim.AllowAtMost(ctx, "k", -1)), penstock.ErrBadCost, "Cost"},
		"waiting for -1":      {lim.WaitN(ctx, "k", -1), penstock.ErrBadCost, "Cost"},
		"reserving -1":        {call(lim.ReserveN(ctx, "k", -1)), penstock.ErrBadCost, "Cost"},
		"refund of 0":         {call(lim.Refund(ctx, "k", 0)), penstock.ErrBadCost, "Cost"},
		"refund of -1":        {call(lim.Refund(ctx, "k", -1)), penstock.ErrBadCost, "Cost"},
		"a negative delay":    {take(func(r *penstock.Request) { r.MaxDelay = -1 }), penstock.ErrBadCost, "MaxDelay"},
		"refund at most":      {take(func(r *penstock.Request) { r.Cost, r.AtMost = -1, true }), penstock.ErrBadCost, "AtMost"},
		"reset under an ID":   {take(func(r *penstock.Request) { r.Cost, r.ID = penstock.Reset, "id" }), penstock.ErrBadCost, "ID"},
		"no limit":            {take(func(r *penstock.Request) { r.Limit = penstock.Limit{} }), penstock.ErrBadLimit, "Period"},
		"a negative period":   {take(func(r *penstock.Request) { r.Limit.Period = -time.Second }), penstock.ErrBadLimit, "Period"},
		"a negative count":    {take(func(r *penstock.Request) { r.Limit.Count = -1 }), penstock.ErrBadLimit, "Count"},
		"a zone of no place": {take(func(r *penstock.Request) {
			r.Limit = penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1, Align: penstock.AlignDay, Zone: "Mars/Olympus"}
		}), penstock.ErrBadLimit, "Zone"},
	} {
		var field *penstock.FieldError
		if !errors.Is(c.err, c.kind) || !errors.As(c.err, &field) || field.Field != c.field {
			t.Errorf("%s: %v, want %v about %s", what, c.err, c.kind, c.field)
		}
	}
	expectRemaining(t, lim, "k", 5)
}

// Values of a listedStore, and of a bareFunc, cannot be compared.
type listedStore struct {
	penstock.Store
	hooks []func()
}

type bareFunc func()

func (bareFunc) Take(context.Context, penstock.Request) (penstock.Decision, error) {
	return penstock.Decision{}, nil
}

func TestNewRefusesStoreThatCannotBeCompared(t *testing.T) {
	bare, listed := bareFunc(func() {}), listedStore{penstock.AllowAll, nil}
	for _, s := range []penstock.Store{bare, listed} {
		if _, err := penstock.New(s, penstock.PerHour(1)); err == nil || !strings.Contains(err.Error(), "want a pointer to one") {
			t.Errorf("%T: got %v, want advice", s, err)
		}
	}
	for _, s := range []penstock.Store{&bare, &listed, penstock.AllowAll, struct{ penstock.Store }{penstock.AllowAll}} {
		if _, err := penstock.New(s, penstock.PerHour(1)); err != nil {
			t.Errorf("%T: %v", s, err)
		}
	}
	if _, is := any(penstock.BatchFunc(nil)).(penstock.Store); is {
		t.Error("a BatchFunc is a store without a pointer, and cannot be compared")
	}
}

func TestNewWithoutStoreFails(t *testing.T) {
	for _, s := range []penstock.Store{nil, (*penstock.Memory)(nil), (*penstock.Observer)(nil), (*penstock.Fallback)(nil), (*penstock.BatchFunc)(nil)} {
		if lim, err := penstock.New(s, penstock.PerSecond(1)); err == nil {
			t.Errorf("New of a nil %T returned %v", s, lim)
		}
	}
}

// A charge is granted whatever is left, and denies takes until it is paid.
func TestLimiterChargeOverdrawsKey(t *testing.T) {
	clock := newFakeClock()
	lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{Now: clock.now}), "10/10s")
	for _, c := range []struct{ n, granted int64 }{{4, 4}, {11, 11}, {9, 5}, {1, 0}} {
		if d, err := lim.Charge(ctx, "key", c.n); err != nil || !d.Allowed || d.Granted != c.granted {
			t.Errorf("charge of %d: %v, %v, want %d granted", c.n, d, err, c.granted)
		}
	}
	if d, err := lim.Allow(ctx, "key"); err != nil || d.Allowed || d.RetryAfter != 11*time.Second || d.ResetAfter != 20*time.Second {
		t.Errorf("while the key owes: %v, %v, want a denial for 11s", d, err)
	}
	clock.advance(11 * time.Second)
	allowOne(t, lim, "key")
}

func TestLimiterChargeRejectsWhatCannotOwe(t *testing.T) {
	for text, n := range map[string]int64{
		"10/10s": 0, "11/10s": -1, "10/10s rolling-window": 1, "10/10s sliding-log": 1,
	} {
		_, err := limiter(t, penstock.NewMemory(nil), text).Charge(ctx, "key", n)
		var field *penstock.FieldError
		if !errors.Is(err, penstock.ErrBadCost) || !errors.As(err, &field) || field.Field != "Overdraw" {
			t.Errorf("charge of %d under %s: %v, want an error about Overdraw", n, text, err)
		}
	}
}

func TestLimitCapacityIsTheLargestGrant(t *testing.T) {
	for _, text := range []string{
		"5/1h", "5/1h burst=3", "0/1h", "5/1h leaky-bucket burst=9", "5/1h fixed-window", "5/1h sliding-window",
		"5/1h rolling-window", "5/1h sliding-log",
	} {
		lim := limiter(t, penstock.NewMemory(nil), text)
		capacity := lim.Limit().Capacity()
		if d, err := lim.AllowN(ctx, "more", capacity+1); err != nil || d.RetryAfter != penstock.Never || d.Limit != capacity {
			t.Errorf("%s: taking %d: %v, %v, want never, of %d", text, capacity+1, d, err, capacity)
		}
		if d, err := lim.AllowN(ctx, "all", capacity); err != nil || !d.Allowed {
			t.Errorf("%s: taking %d: %v, %v, want allowed", text, capacity, d, err)
		}
	}
}

// What a customer who has used up a plan gets at once from one ten times as large.
func TestLimitRaisedUnderOneNameKeepsDebt(t *testing.T) {
	for _, c := range []struct {
		old, raised string
		want        int64
	}{
		{"60/1m", "600/1m", 0},
		{"60/1m burst=60", "60/1m burst=600", 540},
		{"60/1m fixed-window", "600/1m fixed-window", 540},
	} {
		now := time.Unix(1e9, 0)
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
		if d, err := limiter(t, store, c.old+" name=plan").AllowN(ctx, "ada", 60); err != nil || !d.Allowed {
			t.Fatalf("%s: %v, %v", c.old, d, err)
		}
		if d, err := limiter(t, store, c.raised+" name=plan").Peek(ctx, "ada"); err != nil || d.Remaining != c.want {
			t.Errorf("from %s to %s: %d remain, %v, want %d", c.old, c.raised, d.Remaining, err, c.want)
		}
	}
}

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
