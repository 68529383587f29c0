// The race detector empties pools at random, which changes allocation counts.

//go:build !race

package engine_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock/server/engine"
)

func TestDecideOneDescriptorDoesNotAllocate(t *testing.T) {
	e := newEngine(t, newMemory(), houseRules, nil)
	var v engine.Result
	for _, ds := range [][]engine.Descriptor{
		{of(1, "user=ada")},
		{of(0, "user=ada")},
		{of(1, "vip=ada")},
		{of(1, "trial=ada")},
		{own(of(1, "user=ada"), 5)},
	} {
		allocs := testing.AllocsPerRun(200, func() {
			if err := e.Decide(context.Background(), "house", ds, &v); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("deciding %v allocates %v times", ds, allocs)
		}
	}
}
