package migrating

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/ratelimit"

	"github.com/penstock-io/penstock"
)

func uberBefore() {
	rl := ratelimit.New(100, ratelimit.WithoutSlack) // one every ten milliseconds
	rl.Take()
}

func uberAfter(ctx context.Context, store penstock.Store) error {
	lim, err := penstock.New(store, penstock.PerSecond(100).WithBurst(1))
	if err != nil {
		return err
	}
	return lim.Wait(ctx, "api")
}

func TestUberExampleRuns(t *testing.T) {
	uberBefore()
	if err := uberAfter(t.Context(), penstock.NewMemory(nil)); err != nil {
		t.Error(err)
	}
}

// takeTimes runs a trace and returns when each take returned.
func takeTimes(t *testing.T, steps []step, take func()) (got []time.Duration) {
	t.Helper()
	start := time.Now()
	for _, s := range steps {
		time.Sleep(s.after)
		take()
		got = append(got, time.Since(start))
	}
	return got
}

func wait(t *testing.T, lim *penstock.Limiter) {
	t.Helper()
	if err := lim.Wait(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

func compareTimes(t *testing.T, theirs, ours []time.Duration) {
	t.Helper()
	for i := range theirs {
		if theirs[i] != ours[i] {
			t.Fatalf("step %d: theirs goes at %v, ours at %v", i, theirs[i], ours[i])
		}
	}
}

func TestUberAgrees(t *testing.T) {
	steps := trace(2000, time.Millisecond, 30*time.Millisecond, 1)
	synctest.Test(t, func(t *testing.T) {
		theirs := ratelimit.New(100, ratelimit.WithoutSlack)
		ours := limiter(t, penstock.NewMemory(nil), penstock.PerSecond(100).WithBurst(1))
		compareTimes(t, takeTimes(t, steps, func() { theirs.Take() }), takeTimes(t, steps, func() { wait(t, ours) }))
	})
}

// Its slack is a burst of one more than the slack, which starts empty.
func TestUberSlackAgrees(t *testing.T) {
	steps := trace(2000, time.Millisecond, 50*time.Millisecond, 1)
	synctest.Test(t, func(t *testing.T) {
		theirs := ratelimit.New(100, ratelimit.WithSlack(10))
		theirs.Take()
		first := takeTimes(t, steps, func() { theirs.Take() })
		ours := limiter(t, penstock.NewMemory(nil), penstock.PerSecond(100).WithBurst(11))
		if d, err := ours.AllowN(t.Context(), "k", 11); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		compareTimes(t, first, takeTimes(t, steps, func() { wait(t, ours) }))
	})
}

// It rounds the interval down to whole nanoseconds and so is slightly too fast; penstock
// rounds up, and rejects rates that would be far off.
func TestUberIsTooFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 7000
		steps := make([]step, n+1)
		theirs := ratelimit.New(7, ratelimit.WithoutSlack)
		ours := limiter(t, penstock.NewMemory(nil), penstock.PerSecond(7).WithBurst(1))
		if got := takeTimes(t, steps, func() { theirs.Take() })[n]; got >= n/7*time.Second {
			t.Errorf("uber-go/ratelimit took %v for %d at 7 a second: it is no longer too fast", got, n)
		}
		if got := takeTimes(t, steps, func() { wait(t, ours) })[n]; got < n/7*time.Second {
			t.Errorf("penstock took %v for %d at 7 a second", got, n)
		}
	})
	if err := penstock.PerSecond(600_000_000).Validate(); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("600 million a second: %v", err)
	}
}

// Its Take cannot be cancelled; Limiter.Wait returns at once if it would take too long.
func TestUberTakeIgnoresCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := limiter(t, penstock.NewMemory(nil), penstock.PerMinute(1))
		wait(t, ours)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := ours.Wait(ctx, "k"); !errors.Is(err, penstock.ErrDeadline) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
