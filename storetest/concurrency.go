package storetest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/penstock-io/penstock"
)

// capacity is for how many concurrent calls the limits have room.
const capacity = 100

// concurrentCalls returns how many calls are made at once.
func concurrentCalls() int {
	if testing.Short() {
		return 3 * capacity
	}
	return 10 * capacity
}

func testConcurrency(t *testing.T, open Open, supported []penstock.Algorithm) {
	for _, a := range supported {
		limit := penstock.PerMinute(capacity).WithAlgorithm(a)
		t.Run(a.String(), func(t *testing.T) { checkConcurrentTakes(t, open, limit) })
	}
	t.Run("one ID", func(t *testing.T) { checkOneID(t, open, overTime(t, supported)) })
	t.Run("all or nothing", func(t *testing.T) { checkConcurrentTakeAll(t, open, overTime(t, supported)) })
}

// callConcurrently makes all calls at once, and returns their decisions.
func callConcurrently(t *testing.T, take func(i int) (penstock.Decision, error)) []penstock.Decision {
	t.Helper()
	ds := make([]penstock.Decision, concurrentCalls())
	errs := make([]error, len(ds))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range ds {
		wg.Go(func() {
			<-start
			ds[i], errs[i] = take(i)
		})
	}
	close(start)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ds
}

// checkConcurrentTakes expects that exactly as many calls as fit are allowed, each with
// a different number of remaining units.
func checkConcurrentTakes(t *testing.T, open Open, limit penstock.Limit) {
	store := openAt(t, open, &Clock{}, noon)
	ds := callConcurrently(t, func(i int) (penstock.Decision, error) {
		r := penstock.Request{Key: "key", Limit: limit, Cost: 1}
		if needsID(limit) {
			r.ID = strconv.Itoa(i)
		}
		return store.Take(context.Background(), r)
	})
	var remaining []int64
	for _, d := range ds {
		if d.Allowed {
			remaining = append(remaining, d.Remaining)
		} else if d.Granted != 0 || d.Remaining != 0 || d.RetryAfter <= 0 {
			t.Fatalf("%s: denied: got %s, want nothing remaining and a RetryAfter",
				limit, decisionText(d))
		}
	}
	slices.Sort(remaining)
	for i, n := range remaining {
		if n != int64(i) {
			t.Fatalf("%s: the allowed calls got %d remaining, want each number below %d once", limit, remaining, capacity)
		}
	}
	if len(remaining) != capacity {
		t.Errorf("%s: %d of %d were allowed, want %d", limit, len(remaining), len(ds), capacity)
	}
}

// checkOneID expects that all takes under one ID charge once.
func checkOneID(t *testing.T, open Open, overTime []penstock.Algorithm) {
	store := openAt(t, open, &Clock{}, noon)
	limit := penstock.PerMinute(capacity).WithAlgorithm(overTime[0])
	ds := callConcurrently(t, func(int) (penstock.Decision, error) {
		return store.Take(context.Background(), penstock.Request{Key: "key", Limit: limit, Cost: 7, ID: "same"})
	})
	for _, d := range ds {
		if !d.Allowed || d.Granted != 7 || d.Remaining != capacity-7 {
			t.Fatalf("%s: 7 units taken %d times under one ID: got %s, want them granted once and %d remaining",
				limit, len(ds), decisionText(d), capacity-7)
		}
	}
}

// checkConcurrentTakeAll expects that takes under two limits, in either order, charge
// both or none.
func checkConcurrentTakeAll(t *testing.T, open Open, overTime []penstock.Algorithm) {
	store := openAt(t, open, &Clock{}, noon)
	calls := int64(concurrentCalls())
	wide, narrow := penstock.PerMinute(calls), penstock.PerMinute(capacity).WithAlgorithm(overTime[len(overTime)-1])
	wide.Algorithm = overTime[0]
	ds := callConcurrently(t, func(i int) (penstock.Decision, error) {
		rs := []penstock.Request{{Key: "both", Limit: wide, Cost: 1}, {Key: "both", Limit: narrow, Cost: 1}}
		if i%2 == 1 {
			slices.Reverse(rs)
		}
		two := make([]penstock.Decision, len(rs))
		err := penstock.TakeAll(context.Background(), store, rs, two)
		return penstock.Decision{Allowed: two[0].Allowed && two[1].Allowed}, err
	})
	allowed := 0
	for _, d := range ds {
		allowed += count(d.Allowed)
	}
	if allowed != capacity {
		t.Errorf("%d of %d were allowed under both limits, want %d", allowed, calls, capacity)
	}
	for limit, want := range map[penstock.Limit]int64{wide: calls - capacity, narrow: 0} {
		d, err := store.Take(context.Background(), penstock.Request{Key: "both", Limit: limit})
		if err != nil || d.Remaining != want {
			t.Errorf("%s after that: got %s, %v, want %d remaining", limit, decisionText(d), err, want)
		}
	}
}
