package overload_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/overload"
)

func enter(t *testing.T, g *overload.Gate) overload.Pass {
	t.Helper()
	pass, err := g.Enter(t.Context(), overload.Normal)
	if err != nil {
		t.Fatalf("Enter: %v", err)
	}
	return pass
}

func TestGateNeverExceedsFixedLimit(t *testing.T) {
	const limit, callers, calls = 7, 32, 2000
	g := overload.NewGate(&overload.GateOptions{Limit: limit})
	var inside, entered atomic.Int64
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for range calls {
				pass, err := g.Enter(t.Context(), overload.Priority(i%3))
				if err != nil {
					continue
				}
				if n := inside.Add(1); n > limit {
					t.Errorf("in flight: got %d, want at most %d", n, limit)
				}
				entered.Add(1)
				inside.Add(-1)
				pass.Leave(overload.Outcome(i % 3))
			}
		})
	}
	group.Wait()
	if s := g.Stats(); s.InFlight != 0 || s.Waiting != 0 || s.Limit != limit || entered.Load() == 0 {
		t.Errorf("after %d calls: %+v, want none in flight or waiting, limit %d", entered.Load(), s, limit)
	}
}

func TestGateWithoutWaitingRefusesAtOnce(t *testing.T) {
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	enter(t, g)
	_, err := g.Enter(t.Context(), overload.Critical)
	var full *overload.FullError
	if !errors.As(err, &full) || !errors.Is(err, overload.ErrFull) {
		t.Fatalf("Enter of a full gate: got %v, want a FullError", err)
	}
	if full.Limit != 1 || full.Priority != overload.Critical || full.RetryAfter < time.Second {
		t.Errorf("FullError: %+v, want limit 1, critical, at least a second", full)
	}
	if !strings.Contains(err.Error(), "limit 1, critical priority") {
		t.Errorf("error text: %q", err)
	}
}

func TestGateWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: 80 * time.Millisecond})
		enter(t, g)
		start := time.Now()
		_, err := g.Enter(t.Context(), overload.Normal)
		if waited := time.Since(start); !errors.Is(err, overload.ErrFull) || waited != 80*time.Millisecond {
			t.Errorf("Enter: got %v after %v, want ErrFull after 80ms", err, waited)
		}
		if n := g.Stats().Waiting; n != 0 {
			t.Errorf("waiting: got %d, want 0", n)
		}
	})
}

func TestGateCanceledWaiterLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(&overload.GateOptions{Limit: 1})
		pass := enter(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := g.Enter(ctx, overload.Normal)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Enter: got %v, want canceled", err)
		}
		if s := g.Stats(); s.Waiting != 0 || s.InFlight != 1 {
			t.Errorf("after the cancellation: %+v, want one in flight, none waiting", s)
		}
		pass.Leave(overload.Success)
		enter(t, g).Leave(overload.Success)
	})
}

// TestGateCancellationRacesWithAdmission cancels waiters at about the moment when
// their turn comes. No place may be lost.
func TestGateCancellationRacesWithAdmission(t *testing.T) {
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: time.Minute})
	for range 2000 {
		pass := enter(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if p, err := g.Enter(ctx, overload.Normal); err == nil {
				p.Leave(overload.Success)
			}
		}()
		go cancel()
		pass.Leave(overload.Success)
		<-done
	}
	if s := g.Stats(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("after all calls: %+v, want none in flight or waiting", s)
	}
}

func TestGateAdmitsBetterPrioritiesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(&overload.GateOptions{Limit: 1})
		pass := enter(t, g)
		order := make(chan string, 6)
		wait := func(name string, p overload.Priority) {
			go func() {
				if pass, err := g.Enter(t.Context(), p); err == nil {
					order <- name
					pass.Leave(overload.Success)
				}
			}()
			synctest.Wait()
		}
		wait("sheddable", overload.Sheddable)
		wait("normal 1", overload.Normal)
		wait("normal 2", overload.Normal)
		wait("critical 1", overload.Critical)
		wait("critical 2", overload.Critical)
		pass.Leave(overload.Success)
		for _, want := range []string{"critical 1", "critical 2", "normal 1", "normal 2", "sheddable"} {
			if got := <-order; got != want {
				t.Errorf("admitted: got %s, want %s", got, want)
			}
		}
	})
}

// TestGateNewCallDoesNotPassWaitingOne has a place that is free for a moment.
func TestGateNewCallDoesNotPassWaitingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(&overload.GateOptions{Limit: 1})
		pass := enter(t, g)
		first := make(chan overload.Pass)
		go func() {
			p, err := g.Enter(t.Context(), overload.Normal)
			if err != nil {
				t.Errorf("Enter of the waiting call: %v", err)
			}
			first <- p
		}()
		synctest.Wait()
		pass.Leave(overload.Success)
		if s := g.Stats(); s.InFlight != 1 {
			t.Errorf("in flight after Leave: got %d, want the call that waited", s.InFlight)
		}
		(<-first).Leave(overload.Success)
	})
}

func TestGateFindsLimitOfRealTimeServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, callers = 5, 40
		g := overload.NewGate(&overload.GateOptions{Now: time.Now}) // without the waits of this machine's goroutines
		work := make(chan struct{}, workers)
		var served, refused atomic.Int64
		stop := time.Now().Add(20 * time.Second)
		var group sync.WaitGroup
		for i := range callers {
			// On a clock that stands still while goroutines run, equal times would let all
			// callers come back at one instant, and find the workers busy or leave them idle.
			random := rand.New(rand.NewPCG(uint64(i), 1))
			about := func(d time.Duration) time.Duration { return d/2 + time.Duration(random.Int64N(int64(d))) }
			group.Go(func() {
				for time.Now().Before(stop) {
					err := g.Do(t.Context(), overload.Normal, func(context.Context) error {
						work <- struct{}{}
						time.Sleep(about(10 * time.Millisecond))
						<-work
						return nil
					})
					if err != nil {
						refused.Add(1)
						time.Sleep(about(20 * time.Millisecond))
						continue
					}
					served.Add(1)
				}
			})
		}
		group.Wait()
		if n := served.Load(); n < 9000 {
			t.Errorf("served: got %d of the 10,000 that %d workers can", n, workers)
		}
		if limit := g.Stats().Limit; limit > 3*workers {
			t.Errorf("limit: got %d, want at most %d", limit, 3*workers)
		}
	})
}

func TestGateDoLeavesAfterPanic(t *testing.T) {
	g := overload.NewGate(&overload.GateOptions{Limit: 1})
	func() {
		defer func() { _ = recover() }()
		_ = g.Do(t.Context(), overload.Normal, func(context.Context) error { panic("boom") })
	}()
	if n := g.Stats().InFlight; n != 0 {
		t.Errorf("in flight after a panic: got %d, want 0", n)
	}
}

func TestGateDoesNotAllocate(t *testing.T) {
	for name, o := range map[string]*overload.GateOptions{"fixed": {Limit: 10}, "adaptive": nil} {
		g := overload.NewGate(o)
		ctx := t.Context()
		n := testing.AllocsPerRun(1000, func() {
			pass, err := g.Enter(ctx, overload.Normal)
			if err != nil {
				t.Error(err)
			}
			pass.Leave(overload.Success)
		})
		if n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
}

func TestGateSurvivesLeavingTwice(t *testing.T) {
	gate := overload.NewGate(&overload.GateOptions{Limit: 1})
	pass, err := gate.Enter(t.Context(), overload.Normal)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		pass.Leave(overload.Success)
	}
	if n := gate.Stats().InFlight; n != 0 {
		t.Errorf("%d calls are in flight", n)
	}
	if pass, err = gate.Enter(t.Context(), overload.Normal); err != nil {
		t.Fatal(err)
	}
	pass.Leave(overload.Success)
}

func TestZeroPassIsHarmless(*testing.T) { overload.Pass{}.Leave(overload.Success) }

func TestInsteadAnswersRefusedAndFailedCalls(t *testing.T) {
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	do := func(ctx context.Context, f func(context.Context) error) error { return g.Do(ctx, overload.Normal, f) }
	var asked error
	instead := func(_ context.Context, err error) (string, error) {
		asked = err
		return "instead", nil
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		full    bool
		err     error
		want    string
		because error
	}{
		{false, nil, "answer", nil},
		{false, broken, "instead", broken},
		{true, nil, "instead", overload.ErrFull},
	} {
		asked = nil
		var pass overload.Pass
		if c.full {
			pass = enter(t, g)
		}
		got, err := overload.Instead(t.Context(), do, func(context.Context) (string, error) { return "answer", c.err }, instead)
		pass.Leave(overload.Success)
		if got != c.want || err != nil || !errors.Is(asked, c.because) {
			t.Errorf("full %v, error %v: got %q, %v because of %v; want %q because of %v", c.full, c.err, got, err, asked, c.want, c.because)
		}
	}
}

func TestInsteadIsNotForCanceledCallers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := func(ctx context.Context) (int, error) { return 0, ctx.Err() }
	instead := func(context.Context, error) (int, error) {
		t.Error("instead was called")
		return 1, nil
	}
	if _, err := overload.Instead(ctx, overload.NewBreaker(nil).Do, f, instead); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}
