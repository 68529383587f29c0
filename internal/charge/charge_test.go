package charge_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

func limiter(t *testing.T, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(s, l)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// contextAware returns a store that fails if ctx has ended, as a remote store
// does.
func contextAware() penstock.Store {
	memory := penstock.NewMemory(nil)
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if err := ctx.Err(); err != nil {
			return penstock.Decision{}, err
		}
		return memory.Take(ctx, r)
	})
}

func remaining(t *testing.T, lim *penstock.Limiter) int64 {
	t.Helper()
	d, err := lim.Peek(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func parts(costs ...int64) []charge.Part {
	ps := make([]charge.Part, len(costs))
	for i, c := range costs {
		ps[i] = charge.Part{Key: "k", Cost: c}
	}
	return ps
}

func TestNewSetGroupsLimitersByStore(t *testing.T) {
	near, far := penstock.NewMemory(nil), penstock.NewMemory(nil)
	given := []*penstock.Limiter{
		limiter(t, near, "1/1s"), limiter(t, far, "2/1s"), limiter(t, penstock.AllowAll, "3/1s"),
		limiter(t, near, "4/1s"), limiter(t, contextAware(), "5/1s"), limiter(t, penstock.AllowAll, "6/1s"), limiter(t, far, "7/1s"),
	}
	_, order := charge.NewSet(given)
	if want := []int{0, 3, 1, 6, 2, 5, 4}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	// Memory stores come first, whatever their position.
	slices.Reverse(given)
	_, order = charge.NewSet(given)
	if want := []int{0, 5, 3, 6, 1, 4, 2}; !slices.Equal(order, want) {
		t.Errorf("in reverse, order %v, want %v", order, want)
	}
}

func TestSetTakeChargesAllOrNothing(t *testing.T) {
	near, far := penstock.NewMemory(nil), penstock.NewMemory(nil)
	a, b, c := limiter(t, near, "10/1h"), limiter(t, far, "10/1h"), limiter(t, far, "4/1h")
	s, _ := charge.NewSet([]*penstock.Limiter{a, b, c})

	ps := parts(3, 1, 2)
	if n, ok, err := s.Take(t.Context(), ps, time.Now()); n != 3 || !ok || err != nil {
		t.Errorf("with room: %d, %v, %v", n, ok, err)
	}
	ps = parts(3, 1, 3)
	if n, ok, err := s.Take(t.Context(), ps, time.Now()); n != 3 || ok || err != nil {
		t.Errorf("without room in the last: %d, %v, %v", n, ok, err)
	}
	if d := ps[0].Decision; !d.Allowed || d.Remaining != 7 || d.Granted != 0 {
		t.Errorf("the refund says %v", d)
	}
	if d := ps[2].Decision; d.Allowed || d.RetryAfter == 0 {
		t.Errorf("what denied says %v", d)
	}
	if n, ok, err := s.Take(t.Context(), parts(8, 1, 1), time.Now()); n != 1 || ok || err != nil {
		t.Errorf("without room in the first store, the other is not asked: %d, %v, %v", n, ok, err)
	}
	if x, y, z := remaining(t, a), remaining(t, b), remaining(t, c); x != 7 || y != 9 || z != 2 {
		t.Errorf("after one grant and two denials there remain %d, %d, %d", x, y, z)
	}
}

// A denial by a remote store also reports the decisions of the memory store. A
// denial in memory costs no round trip.
func TestSetTakeRefundsEarlierStoresOnDenial(t *testing.T) {
	asked := 0
	memory := penstock.NewMemory(nil)
	far := limiter(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		asked++
		return memory.Take(ctx, r)
	}), "1/1h")
	near, nearToo := limiter(t, penstock.NewMemory(nil), "1/1d"), limiter(t, penstock.NewMemory(nil), "9/1d")
	s, order := charge.NewSet([]*penstock.Limiter{far, near, nearToo})
	if want := []int{1, 2, 0}; !slices.Equal(order, want) {
		t.Fatalf("order %v, want %v", order, want)
	}
	if _, ok, err := s.Take(t.Context(), parts(1, 1, 1), time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if n, ok, err := s.Take(t.Context(), parts(1, 1, 1), time.Now()); n != 1 || ok || err != nil || asked != 1 {
		t.Errorf("denied here: %d decided, %v, %v, and the remote store asked %d times", n, ok, err, asked)
	}
	if err := near.Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	ps := parts(1, 1, 1)
	if n, ok, err := s.Take(t.Context(), ps, time.Now()); n != 3 || ok || err != nil {
		t.Errorf("denied remotely: %d decided, %v, %v", n, ok, err)
	}
	if !ps[0].Decision.Allowed || !ps[1].Decision.Allowed || ps[2].Decision.RetryAfter < time.Minute {
		t.Errorf("denied remotely: %v", ps)
	}
	if x, y := remaining(t, near), remaining(t, nearToo); x != 1 || y != 8 {
		t.Errorf("%d and %d remain here, although nothing was taken", x, y)
	}
}

// A negative cost, in any position, refunds nothing and charges nothing.
func TestSetTakeRejectsNegativeCosts(t *testing.T) {
	asked, memory := 0, penstock.NewMemory(nil)
	a := limiter(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		asked++
		return memory.Take(ctx, r)
	}), "10/1h")
	b := limiter(t, penstock.AllowAll, "10/1h")
	s, _ := charge.NewSet([]*penstock.Limiter{a, b})
	if _, ok, err := s.Take(t.Context(), parts(5, 5), time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, costs := range [][]int64{{-1, 1}, {1, -1}, {1, penstock.Reset}} {
		if n, ok, err := s.Take(t.Context(), parts(costs...), time.Now()); n != 0 || !ok || !errors.Is(err, penstock.ErrBadCost) {
			t.Errorf("%v: %d decided, %v, %v", costs, n, ok, err)
		}
	}
	if got := remaining(t, a); got != 5 || asked != 2 {
		t.Errorf("%d remain of 5, and the store was asked %d times", got, asked)
	}
}

// Grants before a store failed stay charged; the caller keeps or refunds them.
func TestSetTakeStoreFailureKeepsEarlierCharges(t *testing.T) {
	lost := errors.New("lost")
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, lost
	})
	a := limiter(t, penstock.NewMemory(nil), "10/1h")
	s, _ := charge.NewSet([]*penstock.Limiter{a, limiter(t, broken, "10/1h")})
	ps := parts(3, 1)
	began := time.Now()
	n, ok, err := s.Take(t.Context(), ps, began)
	if n != 1 || !ok || !errors.Is(err, lost) || remaining(t, a) != 7 {
		t.Errorf("%d decided, %v, %v, and %d of 10 remain", n, ok, err, remaining(t, a))
	}
	if err := s.Refund(t.Context(), ps[:n], began); err != nil {
		t.Error(err)
	}
	if got := remaining(t, a); got != 10 {
		t.Errorf("%d of 10 remain", got)
	}
}

func TestSetHoldWaitsForDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := limiter(t, contextAware(), "1/1s leaky-bucket burst=5")
		s, _ := charge.NewSet([]*penstock.Limiter{queue})
		take := func() []charge.Part {
			ps := parts(1)
			if _, ok, err := s.Take(t.Context(), ps, time.Now()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			return ps
		}
		start := time.Now()
		for _, want := range []time.Duration{0, time.Second} {
			if ok, err := s.AwaitDelay(t.Context(), take()); !ok || err != nil || time.Since(start) != want {
				t.Errorf("held for %v, %v, want %v", time.Since(start), err, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		before := remaining(t, queue)
		if ok, err := s.AwaitDelay(ctx, take()); ok || err != nil {
			t.Errorf("held beyond its context: %v, %v", ok, err)
		}
		if got := remaining(t, queue); got != before {
			t.Errorf("%d remain of %d, although it was refunded", got, before)
		}
	})
}

// A wait that is cancelled in the next window refunds nothing of that window.
func TestSetHoldCancelRefundsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := penstock.NewMemory(nil)
		queue, window := limiter(t, store, "1/1m leaky-bucket burst=5"), limiter(t, store, "10/10s fixed-window")
		s, _ := charge.NewSet([]*penstock.Limiter{queue, window})
		for range 2 {
			if _, ok, err := s.Take(t.Context(), parts(1, 5), time.Now()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		ps := []charge.Part{{Key: "k"}, {Key: "k"}}
		ps[0].Decision = penstock.Decision{Allowed: true, Granted: 1, Delay: time.Minute, ResetAfter: 2 * time.Minute}
		ps[1].Decision = penstock.Decision{Allowed: true, Granted: 5, ResetAfter: 10 * time.Second}
		time.AfterFunc(15*time.Second, func() {
			if d, err := window.AllowN(t.Context(), "k", 7); !d.Allowed || err != nil {
				t.Error(d, err)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 16*time.Second)
		defer cancel()
		if ok, err := s.AwaitDelay(ctx, ps); ok || err != nil {
			t.Error(ok, err)
		}
		if x, y := remaining(t, queue), remaining(t, window); x != 4 || y != 3 {
			t.Errorf("%d and %d remain, want 4 and 3", x, y)
		}
	})
}

// What a cancelled wait could not refund is reported.
func TestSetAwaitDelayReportsFailedRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, memory := errors.New("lost"), penstock.NewMemory(nil)
		s, _ := charge.NewSet([]*penstock.Limiter{limiter(t, penstock.StoreFunc(
			func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
				if r.Cost < 0 {
					return penstock.Decision{}, lost
				}
				return memory.Take(ctx, r)
			}), "1/1m leaky-bucket burst=5")})
		ps := parts(1)
		for range 2 {
			if _, ok, err := s.Take(t.Context(), ps, time.Now()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ok, err := s.AwaitDelay(ctx, ps); ok || !errors.Is(err, lost) {
			t.Errorf("got %v, %v, want the error of the refund", ok, err)
		}
	})
}

func TestSetTakeOneLimiterAllocatesNothing(t *testing.T) {
	s, _ := charge.NewSet([]*penstock.Limiter{limiter(t, penstock.NewMemory(nil), "1000000/1s")})
	ctx := context.Background()
	n := testing.AllocsPerRun(100, func() {
		ps := [...]charge.Part{{Key: "k", Cost: 1}}
		if _, ok, err := s.Take(ctx, ps[:], time.Now()); !ok || err != nil {
			t.Error(ok, err)
		}
		if ok, err := s.AwaitDelay(ctx, ps[:]); !ok || err != nil {
			t.Error(ok, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// If a slow store denies after a new window has begun, the refund to the earlier store
// takes nothing off what other requests took in that window.
func TestSetRefundLateReturnsOnlyWhatIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near := limiter(t, penstock.NewMemory(nil), "10/1s fixed-window")
		slow := limiter(t, penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
			time.Sleep(2 * time.Second)
			if _, err := near.AllowN(t.Context(), "k", 5); err != nil {
				t.Error(err)
			}
			return penstock.Decision{RetryAfter: time.Second}, nil
		}), "1/1h")
		s, _ := charge.NewSet([]*penstock.Limiter{near, slow})
		if _, ok, err := s.Take(t.Context(), parts(4, 1), time.Now()); ok || err != nil {
			t.Fatal(ok, err)
		}
		if got := remaining(t, near); got != 5 {
			t.Errorf("%d of 10 remain, after others took 5", got)
		}
	})
}

// A panicking store is one whose first TakeAll panics, while what it has begun still uses the
// slices.
type panickingStore struct {
	penstock.Store
	used []*penstock.Decision
}

func (s *panickingStore) TakeAll(_ context.Context, _ []penstock.Request, ds []penstock.Decision) error {
	s.used = append(s.used, &ds[0])
	if len(s.used) == 1 {
		panic("store")
	}
	return nil
}

func TestSetTakeAfterPanicUsesOtherSlices(t *testing.T) {
	store := &panickingStore{Store: penstock.AllowAll}
	set, _ := charge.NewSet([]*penstock.Limiter{limiter(t, store, "1/1s"), limiter(t, store, "2/1s")})
	take := func() {
		defer func() { _ = recover() }()
		_, _, _ = set.Take(context.Background(), parts(1, 1), time.Now())
	}
	take()
	take()
	if len(store.used) != 2 || store.used[0] == store.used[1] {
		t.Errorf("two calls, the first of which panicked, used %p", store.used)
	}
}
