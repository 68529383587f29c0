package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// waits checks that a call takes exactly as long as it should.
func waits(t *testing.T, want time.Duration, call func() error) {
	t.Helper()
	start := time.Now()
	if err := call(); err != nil {
		t.Errorf("waited %v: %v", time.Since(start), err)
	}
	if got := time.Since(start); got != want {
		t.Errorf("waited %v, want %v", got, want)
	}
}

// remains checks what is left of a key.
func remains(t *testing.T, lim *penstock.Limiter, key string, want int64) {
	t.Helper()
	d, err := lim.Peek(ctx, key)
	if err != nil || d.Remaining != want {
		t.Errorf("%q has %d left (%v), want %d", key, d.Remaining, err, want)
	}
}

func TestWaitLastsUntilThereIsEnough(t *testing.T) {
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
				waits(t, 0, func() error { return lim.Wait(ctx, "k") })
				waits(t, want, func() error { return lim.Wait(ctx, "k") })
			})
		})
	}
}

func TestWaitersAreServedInTheOrderTheyCame(t *testing.T) {
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
			synctest.Wait() // until it stands in line
		}
		group.Wait()
		for i, got := range served {
			if want := time.Duration(i) * time.Second; got != want {
				t.Errorf("waiter %d was served after %v, want %v", i, got, want)
			}
		}
	})
}

// A line longer than a reservation can reach is still served, one a second.
func TestWaitBeyondTheReachOfReservations(t *testing.T) {
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

func TestWaitFailsAtArrivalWhenItCannotEndInTime(t *testing.T) {
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
					t.Errorf("it said so after %v, want at once", got)
				}
				remains(t, lim, "k", 0)
			})
		})
	}
}

// A queue moves up as time passes, but so does the deadline.
func TestWaitInALongQueueFailsAtArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "10/10s leaky-bucket")
		if d, err := lim.AllowN(ctx, "k", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		soon, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		start := time.Now()
		if err := lim.Wait(soon, "k"); !errors.Is(err, penstock.ErrDeadline) || time.Since(start) != 0 {
			t.Errorf("five seconds in line with four to spare: %v after %v, want ErrDeadline at once", err, time.Since(start))
		}
		patient, cancel := context.WithTimeout(ctx, 6*time.Second)
		defer cancel()
		waits(t, 5*time.Second, func() error { return lim.Wait(patient, "k") })
	})
}

func TestWaitJustInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "1/1m")
		if err := lim.Wait(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(ctx, time.Minute+1)
		defer cancel()
		waits(t, time.Minute, func() error { return lim.Wait(soon, "k") })
	})
}

func TestWaitForMoreThanTheLimitHolds(t *testing.T) {
	for _, text := range []string{"5/1s", "5/1s leaky-bucket", "5/1s fixed-window", "0/1s"} {
		lim := limiter(t, penstock.NewMemory(nil), text)
		if err := lim.WaitN(ctx, "k", 6); !errors.Is(err, penstock.ErrNever) {
			t.Errorf("%s: WaitN(6): %v, want ErrNever", text, err)
		}
	}
}

func TestWaitCancelledGivesBack(t *testing.T) {
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
				remains(t, lim, "k", 1)
			})
		})
	}
}

func TestWaitForNothingDoesNotWait(t *testing.T) {
	for _, text := range []string{"5/1h", "5/1h leaky-bucket", "5/1h fixed-window", "0/1h"} {
		synctest.Test(t, func(t *testing.T) {
			lim := limiter(t, penstock.NewMemory(nil), text)
			if _, err := lim.AllowAtMost(ctx, "k", 5); err != nil {
				t.Fatal(err)
			}
			waits(t, 0, func() error { return lim.WaitN(ctx, "k", 0) })
		})
	}
}

func TestWaitWithAnEndedContextTakesNothing(t *testing.T) {
	lim := limiter(t, penstock.NewMemory(nil), "5/1h")
	c, cancel := context.WithCancel(ctx)
	cancel()
	if err := lim.Wait(c, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v, want context.Canceled", err)
	}
	remains(t, lim, "k", 5)
}

func TestReserveSaysHowLongToHold(t *testing.T) {
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
			t.Errorf("after its moment, %v are left", got)
		}
	})
}

func TestReserveAndCancelLeaveNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, penstock.NewMemory(nil), "5/5s")
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
		remains(t, lim, "k", 0)
		close(cancelled)
		group.Wait()
		remains(t, lim, "k", 5)
	})
}

func TestCancelCanBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{next: penstock.NewMemory(nil), fail: map[string]bool{}}
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
		remains(t, lim, "k", 1)
	})
}

func TestCancelAfterTheMomentGivesNothingBack(t *testing.T) {
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
			remains(t, lim, "k", 9)
		}
	})
}

func TestReserveRefusesWhatItCannotPromise(t *testing.T) {
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

func TestBadInputIsNamedAndChargesNothing(t *testing.T) {
	store := penstock.NewMemory(nil)
	lim := limiter(t, store, "5/1h")
	take := func(change func(*penstock.Request)) error {
		r := penstock.Request{Key: "k", Limit: lim.Limit(), Cost: 1}
		change(&r)
		d, err := store.Take(ctx, r)
		if d != (penstock.Decision{}) {
			t.Errorf("%+v is answered with an error and %+v", r, d)
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
		"giving back nothing": {call(lim.Refund(ctx, "k", 0)), penstock.ErrBadCost, "Cost"},
		"giving back -1":      {call(lim.Refund(ctx, "k", -1)), penstock.ErrBadCost, "Cost"},
		"a negative delay":    {take(func(r *penstock.Request) { r.MaxDelay = -1 }), penstock.ErrBadCost, "MaxDelay"},
		"back at most":        {take(func(r *penstock.Request) { r.Cost, r.AtMost = -1, true }), penstock.ErrBadCost, "AtMost"},
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
	remains(t, lim, "k", 5)
}

func TestNewNeedsAStore(t *testing.T) {
	if lim, err := penstock.New(nil, penstock.PerSecond(1)); err == nil {
		t.Errorf("New(nil) returned %v", lim)
	}
}

func TestBatchesNeedAStoreAndSayWhichRequestIsWrong(t *testing.T) {
	rs, ds := []penstock.Request{{Key: "a", Limit: penstock.PerSecond(1), Cost: 1}, {Limit: penstock.PerSecond(1)}}, make([]penstock.Decision, 2)
	for name, take := range map[string]func(penstock.Store) error{
		"TakeAll":  func(s penstock.Store) error { return penstock.TakeAll(ctx, s, rs, ds) },
		"TakeEach": func(s penstock.Store) error { return penstock.TakeEach(ctx, s, rs, ds) },
	} {
		if err := take(nil); err == nil {
			t.Errorf("%s of no store: no error", name)
		}
		want := "penstock: request 1: bad key: Key is empty: want any bytes that identify the caller"
		if err := take(penstock.NewMemory(nil)); !errors.Is(err, penstock.ErrBadKey) || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", name, err, want)
		}
	}
}

func TestFixedStores(t *testing.T) {
	for _, c := range []struct {
		store   penstock.Store
		cost    int64
		allowed bool
		granted int64
	}{
		{penstock.AllowAll, 7, true, 7},
		{penstock.AllowAll, 0, true, 0},
		{penstock.AllowAll, -7, true, 0},
		{penstock.DenyAll, 7, false, 0},
		{penstock.DenyAll, 0, true, 0},
		{penstock.DenyAll, -7, true, 0},
	} {
		d, err := c.store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(5), Cost: c.cost})
		if err != nil || d.Allowed != c.allowed || d.Granted != c.granted || d.Limit != 5 {
			t.Errorf("cost %d: %+v, %v", c.cost, d, err)
		}
		if _, err := c.store.Take(ctx, penstock.Request{Limit: penstock.PerSecond(5)}); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("no key: %v", err)
		}
	}
}

// counting is a decorator as a user would write it: it knows only Take.
type counting struct {
	next  penstock.Store
	calls int
	fail  map[string]bool
}

func (c *counting) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	c.calls++
	if c.fail[r.Key] {
		return penstock.Decision{}, fmt.Errorf("counting: %w", penstock.ErrUnavailable)
	}
	return c.next.Take(ctx, r)
}

func TestTakeAllThroughAStoreThatOnlyTakes(t *testing.T) {
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: newHand().now})
	store := &counting{next: memory, fail: map[string]bool{"broken": true}}
	limit := penstock.PerHour(5)
	ask := func(keys ...string) ([]penstock.Decision, error) {
		rs := make([]penstock.Request, len(keys))
		for i, key := range keys {
			rs[i] = penstock.Request{Key: key, Limit: limit, Cost: 3}
		}
		ds := make([]penstock.Decision, len(keys))
		return ds, penstock.TakeAll(ctx, store, rs, ds)
	}
	ds, err := ask("a", "b")
	if err != nil || !ds[0].Allowed || !ds[1].Allowed || ds[1].Remaining != 2 {
		t.Fatalf("a, b: %+v, %v", ds, err)
	}
	ds, err = ask("c", "b", "d")
	if err != nil || ds[1].Allowed || ds[1].RetryAfter == 0 || !ds[0].Allowed || ds[0].Granted != 0 || ds[2].Remaining != 5 {
		t.Errorf("b cannot: %+v, %v", ds, err)
	}
	if _, err = ask("c", "broken", "d"); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a store that fails half way: %v", err)
	}
	lim, err := penstock.New(memory, limit)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"a": 2, "b": 2, "c": 5, "d": 5} {
		remains(t, lim, key, want)
	}
	if ds, err = ask("e", "e"); err != nil || ds[0].RetryAfter != penstock.Never || ds[0].Remaining != 5 {
		t.Errorf("twice three of five: %v, %v, want never, and five left", ds, err)
	}
	if ds, err = ask("f", "a"); err != nil || ds[1].Remaining != 2 || ds[1].RetryAfter != 12*time.Minute {
		t.Errorf("three of a's two: %v, %v, want two left and 12 minutes", ds, err)
	}
}

func TestTakeEachThroughAStoreThatOnlyTakes(t *testing.T) {
	store := &counting{next: penstock.NewMemory(nil)}
	rs := []penstock.Request{
		{Key: "a", Limit: penstock.PerHour(1), Cost: 1},
		{Key: "a", Limit: penstock.PerHour(1), Cost: 1},
		{Key: "b", Limit: penstock.PerHour(1), Cost: 1},
	}
	ds := make([]penstock.Decision, 3)
	if err := penstock.TakeEach(ctx, store, rs, ds); err != nil || !ds[0].Allowed || ds[1].Allowed || !ds[2].Allowed {
		t.Errorf("%+v, %v", ds, err)
	}
	calls := store.calls
	rs[2].Key = ""
	if err := penstock.TakeEach(ctx, store, rs, ds); !errors.Is(err, penstock.ErrBadKey) || store.calls != calls {
		t.Errorf("a malformed third request: %v after %d calls", err, store.calls-calls)
	}
	if err := penstock.TakeEach(ctx, store, rs[:2], ds[:1]); err == nil {
		t.Error("two requests and one place for decisions: no error")
	}
}

// A decorator may change the limit of a request that passes through it.
func TestADecoratorMayChangeTheLimit(t *testing.T) {
	memory := penstock.NewMemory(nil)
	halving := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		r.Limit.Count /= 2
		return memory.Take(ctx, r)
	})
	lim := limiter(t, halving, "10/1h sliding-log")
	if d, err := lim.Allow(ctx, "k"); err != nil || d.Limit != 5 || d.Remaining != 4 {
		t.Errorf("half of 10: %+v, %v", d, err)
	}
}
