package migrating

import (
	"context"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/penstock-io/penstock"
)

func xtimeBefore() error {
	lim := rate.NewLimiter(10, 20) // ten a second, twenty at once
	if !lim.Allow() {
		return errTooMany
	}
	return nil
}

func xtimeAfter(ctx context.Context, store penstock.Store) error {
	lim, err := penstock.New(store, penstock.PerSecond(10).WithBurst(20))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "user:42")
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany
	}
	return nil
}

func TestXTimeExampleRuns(t *testing.T) {
	if err := xtimeBefore(); err != nil {
		t.Error(err)
	}
	if err := xtimeAfter(t.Context(), penstock.NewMemory(nil)); err != nil {
		t.Error(err)
	}
}

func TestXTimeAgrees(t *testing.T) {
	for _, unit := range []time.Duration{time.Microsecond, time.Millisecond, 100 * time.Millisecond} {
		c := newClock()
		theirs := rate.NewLimiter(10, 20)
		c.compare(t, trace(20_000, unit, 500*time.Millisecond, 22), limiter(t, c.memory(), penstock.PerSecond(10).WithBurst(20)),
			func(n int) bool { return theirs.AllowN(c.now, n) })
	}
}

// Reservations are for the same times, up to the rounding of its floats.
func TestXTimeReservationsAgree(t *testing.T) {
	c := newClock()
	theirs := rate.NewLimiter(10, 20)
	ours := limiter(t, c.memory(), penstock.PerSecond(10).WithBurst(20))
	for i, s := range trace(2000, time.Millisecond, time.Second, 5) {
		c.advance(s.after)
		r := ours.Request("k")
		r.Cost, r.MaxDelay = int64(s.cost), time.Minute
		d, err := ours.Store().Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		delay := theirs.ReserveN(c.now, s.cost).DelayFrom(c.now)
		if !d.Allowed || (delay-d.Delay).Abs() > time.Microsecond {
			t.Fatalf("step %d: theirs waits %v, ours %v", i, delay, d)
		}
	}
}

// It uses the time that a caller passes, and callers read the clock before they wait for
// the lock. A late caller sets its clock back, and the same second is granted twice.
// penstock's stores read the clock themselves, under the lock.
func TestXTimeLateCallerGetsSecondTwice(t *testing.T) {
	c := newClock()
	theirs := rate.NewLimiter(1000, 1000)
	ours := limiter(t, c.memory(), penstock.PerSecond(1000))
	all := func() (n int) {
		for theirs.AllowN(c.now, 1) {
			n++
		}
		return n
	}
	got := all()
	theirs.AllowN(c.now.Add(-time.Second), 0)
	if got += all(); got != 2000 {
		t.Errorf("x/time/rate admitted %d at once, want 2000", got)
	}
	if got := admitted(t, ours, 5000); got != 1000 {
		t.Errorf("penstock admitted %d at once, want 1000", got)
	}
}

// A burst of 0 admits nothing there, and as many as the count here.
func TestXTimeZeroBurstDeniesAll(t *testing.T) {
	c := newClock()
	if rate.NewLimiter(10, 0).AllowN(c.now, 1) {
		t.Error("x/time/rate admits a burst of 0")
	}
	if got := admitted(t, limiter(t, c.memory(), penstock.PerSecond(10).WithBurst(0)), 100); got != 10 {
		t.Errorf("penstock admitted %d, want 10", got)
	}
}
