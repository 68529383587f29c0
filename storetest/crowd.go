package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-io/penstock"
)

// In a crowd, a thousand ask at the same instant for what a hundred can have.
const (
	crowd  = 1000
	places = 100
)

func testCrowd(t *testing.T, open Open) {
	for _, a := range algorithms {
		limit := penstock.PerMinute(places).WithAlgorithm(a)
		t.Run(a.String(), func(t *testing.T) { checkCrowd(t, open, limit) })
	}
	t.Run("one ID", func(t *testing.T) { checkOneID(t, open) })
	t.Run("all or nothing", func(t *testing.T) { checkCrowdTogether(t, open) })
}

// ask lets the crowd ask, each its own request, and returns the decisions.
func ask(t *testing.T, take func(i int) (penstock.Decision, error)) []penstock.Decision {
	t.Helper()
	ds := make([]penstock.Decision, crowd)
	errs := make([]error, crowd)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range crowd {
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

// checkCrowd expects that exactly as many as fit are allowed, and that each of
// them is told another number of remaining units.
func checkCrowd(t *testing.T, open Open, limit penstock.Limit) {
	store := openAt(t, open, &Clock{}, noon)
	ds := ask(t, func(int) (penstock.Decision, error) {
		return store.Take(context.Background(), penstock.Request{Key: "key", Limit: limit, Cost: 1})
	})
	var remaining []int64
	for _, d := range ds {
		if d.Allowed {
			remaining = append(remaining, d.Remaining)
		} else if d.Granted != 0 || d.Remaining != 0 || d.RetryAfter <= 0 {
			t.Fatalf("%s: denied in a crowd: got %s, want nothing remaining and a time to come back",
				limit, decisionText(d))
		}
	}
	slices.Sort(remaining)
	for i, n := range remaining {
		if n != int64(i) {
			t.Fatalf("%s: the allowed were told that %d remained, want each number below %d once", limit, remaining, places)
		}
	}
	if len(remaining) != places {
		t.Errorf("%s: %d of %d were allowed, want %d", limit, len(remaining), crowd, places)
	}
}

// checkOneID expects that a thousand takes under one ID charge once.
func checkOneID(t *testing.T, open Open) {
	store := openAt(t, open, &Clock{}, noon)
	limit := penstock.PerMinute(places)
	ds := ask(t, func(int) (penstock.Decision, error) {
		return store.Take(context.Background(), penstock.Request{Key: "key", Limit: limit, Cost: 7, ID: "same"})
	})
	for _, d := range ds {
		if !d.Allowed || d.Granted != 7 || d.Remaining != places-7 {
			t.Fatalf("%s: 7 units asked for %d times under one ID: got %s, want them granted once and %d remaining",
				limit, crowd, decisionText(d), places-7)
		}
	}
}

// checkCrowdTogether expects that takes of two keys, in either order, charge
// both or none.
func checkCrowdTogether(t *testing.T, open Open) {
	store := openAt(t, open, &Clock{}, noon)
	wide, narrow := penstock.PerMinute(crowd), penstock.PerMinute(places).WithAlgorithm(penstock.SlidingLog)
	ds := ask(t, func(i int) (penstock.Decision, error) {
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
	if allowed != places {
		t.Errorf("%d of %d were allowed under both limits, want %d", allowed, crowd, places)
	}
	for limit, want := range map[penstock.Limit]int64{wide: crowd - places, narrow: 0} {
		d, err := store.Take(context.Background(), penstock.Request{Key: "both", Limit: limit})
		if err != nil || d.Remaining != want {
			t.Errorf("%s after that: got %s, %v, want %d remaining", limit, decisionText(d), err, want)
		}
	}
}
