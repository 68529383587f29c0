package redisstore_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// The clock of Redis steps when it is set, or when a failover changes the server. A
// step forward costs one more burst for each key, a step back one refill of waiting.

// minuteLimits returns limits of every kind that are full again after a minute.
func minuteLimits() (limits []penstock.Limit) {
	for a := range penstock.SlidingLog + 1 {
		limits = append(limits, penstock.PerMinute(burst).WithAlgorithm(a))
	}
	return append(limits, penstock.Limit{
		Algorithm: penstock.FixedWindow, Count: burst, Period: time.Minute, Align: penstock.AlignClock,
	})
}

// takeUntilDenied takes units until one is denied. It returns the units admitted and
// the denial.
func takeUntilDenied(t *testing.T, store *redisstore.Store, key string, l penstock.Limit) (admitted int64, last penstock.Decision) {
	t.Helper()
	for range 10 * burst {
		d, err := store.Take(t.Context(), penstock.Request{Key: key, Limit: l, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			return admitted, d
		}
		admitted += d.Granted
	}
	t.Fatalf("%s: %d admitted, and no end", l, admitted)
	return 0, last
}

func TestStoreClockStepForwardAdmitsOneMoreBurst(t *testing.T) {
	store, now := openFakeClock(t, redisstore.Options{}), time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, l := range minuteLimits() {
		fakeClockServer.Clock.Set(now)
		before, _ := takeUntilDenied(t, store, "k", l)
		fakeClockServer.Clock.Set(now.Add(time.Hour))
		after, _ := takeUntilDenied(t, store, "k", l)
		t.Logf("%s: admitted %d, bound %d", l, before+after, 2*burst)
		if before != burst || after != burst {
			t.Errorf("%s: %d admitted, and %d after a step of one hour, want %d and no more than once again", l, before, after, burst)
		}
	}
}

func TestStoreClockStepBackLocksOutOneRefill(t *testing.T) {
	store, now := openFakeClock(t, redisstore.Options{}), time.Date(2042, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, l := range append(minuteLimits(), slowLimits[:2]...) {
		fakeClockServer.Clock.Set(now)
		before, full := takeUntilDenied(t, store, "k", l)
		back := now.Add(-10 * l.Period)
		fakeClockServer.Clock.Set(back)
		after, denied := takeUntilDenied(t, store, "k", l)
		if before != burst || after != 0 {
			t.Errorf("%s: %d admitted, and %d after a step back, want %d and no more", l, before, after, burst)
		}
		refill := max(full.ResetAfter, l.Period)
		if l.IsBucket() {
			refill *= 2 // with the reach of reservations
		}
		if denied.RetryAfter <= 0 || denied.RetryAfter > refill {
			t.Errorf("%s: after a step back retry after %v, want no more than %v", l, denied.RetryAfter, refill)
		}
		fakeClockServer.Clock.Set(back.Add(denied.RetryAfter))
		later, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: l, Cost: 1})
		if err != nil || !later.Allowed {
			t.Errorf("%s: %v after a step back: %+v, %v, want it to be allowed", l, denied.RetryAfter, later, err)
		}
		t.Logf("%s: admitted %d, bound %d; locked out for %v, bound %v", l, before+after, burst, denied.RetryAfter, refill)
	}
}
