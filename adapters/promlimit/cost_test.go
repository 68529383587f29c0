// The race detector empties pools at random, which changes allocation counts.

//go:build !race

package promlimit_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/adapters/promlimit"
)

func TestObserveDoesNotAllocate(t *testing.T) {
	m := promlimit.New()
	lim, err := penstock.New(penstock.WithObserver(penstock.NewMemory(nil), m.Observe), penstock.PerSecond(1e6).WithName("a"))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(context.Background(), "k") }); n > 0 {
		t.Errorf("%v allocations a decision, want none", n)
	}
}
