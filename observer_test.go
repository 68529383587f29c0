package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

func TestWithObserverConformance(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return penstock.WithObserver(penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond}), func(penstock.Observation) {})
	})
}

func TestWithObserverSeesEachDecision(t *testing.T) {
	var seen []string
	var failure error
	memory := penstock.NewMemory(nil)
	store := penstock.WithObserver(penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		time.Sleep(time.Second)
		if failure != nil {
			return penstock.Decision{}, failure
		}
		return memory.Take(ctx, r)
	}), func(o penstock.Observation) {
		seen = append(seen, fmt.Sprintf("%s %d %v %v %v", o.Request.Key, o.Request.Cost, o.Decision.Allowed, o.Duration, o.Err))
	})
	expect := func(what string, want ...string) {
		t.Helper()
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("%s: observed %q, want %q", what, seen, want)
		}
		seen = nil
	}
	synctest.Test(t, func(t *testing.T) {
		lim, err := penstock.New(store, penstock.PerHour(2).WithBurst(2))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = lim.AllowN(t.Context(), "a", 2)
		_, _ = lim.Allow(t.Context(), "a")
		expect("takes", "a 2 true 1s <nil>", "a 1 false 1s <nil>")
		rs, ds := []penstock.Request{lim.Request("b"), lim.Request("c")}, make([]penstock.Decision, 2)
		if err := penstock.TakeEach(t.Context(), store, rs, ds); err != nil {
			t.Error(err)
		}
		expect("a batch", "b 1 true 2s <nil>", "c 1 true 2s <nil>")
		failure = errors.New("down")
		if _, err := lim.Allow(t.Context(), "a"); !errors.Is(err, failure) {
			t.Errorf("got %v, want the error of the store", err)
		}
		expect("an error", "a 1 false 1s down")
		if err := penstock.TakeAll(t.Context(), store, rs, ds); !errors.Is(err, failure) {
			t.Errorf("got %v, want the error of the store", err)
		}
		if len(seen) != 2 {
			t.Errorf("all or nothing: observed %q, want one error for each request", seen)
		}
	})
}
