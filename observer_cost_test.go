// The race detector empties pools at random, which changes allocation counts.

//go:build !race

package penstock_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
)

func TestWithObserverDoesNotAllocate(t *testing.T) {
	var units int64
	store := penstock.WithObserver(penstock.NewMemory(nil), func(o penstock.Observation) { units += o.Decision.Granted })
	lim, err := penstock.New(store, penstock.PerSecond(1e6))
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(1000, func() {
		if _, err := lim.Allow(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 || units == 0 {
		t.Errorf("%v allocations a decision, %d units: want none, and some", n, units)
	}
}
