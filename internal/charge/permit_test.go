package charge_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// A handler that goes on after its client has disconnected still holds its permit.
func TestAcquireHoldsPermitAfterContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiter(t, contextAware(), "1/30s concurrent")
		ctx, disconnect := context.WithCancel(t.Context())
		within, release, d, err := charge.Acquire(ctx, lim, "k", 1)
		if err != nil || release == nil || !d.Allowed {
			t.Fatalf("%v, %v, want a permit", d, err)
		}
		disconnect()
		time.Sleep(5 * time.Minute)
		if got := remaining(t, lim); got != 0 || !errors.Is(context.Cause(within), context.Canceled) {
			t.Errorf("%d permits remain, and the handler's context says %v, want none, and canceled", got, context.Cause(within))
		}
		release()
		if got := remaining(t, lim); got != 1 {
			t.Errorf("%d permits remain after the release, want 1", got)
		}
	})
}

func TestAcquireEndsContextIfPermitIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := penstock.NewMemory(nil)
		lim, other := limiter(t, memory, "1/30s concurrent"), limiter(t, memory, "1/30s concurrent")
		within, release, _, err := charge.Acquire(t.Context(), lim, "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if err := other.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if _, d, err := other.Acquire(t.Context(), "k"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		<-within.Done()
		if err := context.Cause(within); !errors.Is(err, penstock.ErrPermitLost) {
			t.Errorf("got %v, want %v", err, penstock.ErrPermitLost)
		}
	})
}

// A request whose client disconnects while the store decides gets no permit, and leaves none
// behind.
func TestAcquireReleasesPermitIfContextEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, disconnect := context.WithCancel(t.Context())
		memory := penstock.NewMemory(nil)
		lim := limiter(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			disconnect()
			return memory.Take(ctx, r)
		}), "1/30s concurrent")
		if _, release, d, err := charge.Acquire(ctx, lim, "k", 1); release != nil || d.Allowed || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v, want no permit, and canceled", d, err)
		}
		if got := remaining(t, lim); got != 1 {
			t.Errorf("%d permits remain, want 1", got)
		}
	})
}
