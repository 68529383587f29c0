// The race detector empties pools at random, which changes allocation counts.

//go:build !race

package engine_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
)

func TestDecideOneDescriptorDoesNotAllocate(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, &engine.Options{TopKeys: topkeys.New(nil)})
	var v engine.Result
	for _, ds := range [][]engine.Descriptor{
		{descriptor(1, "user=ada")},
		{descriptor(0, "user=ada")},
		{descriptor(1, "vip=ada")},
		{descriptor(1, "trial=ada")},
		{descriptor(1, "unknown=ada")},
		{withOverride(descriptor(1, "user=ada"), 5)},
	} {
		allocs := testing.AllocsPerRun(200, func() {
			if err := e.Decide(context.Background(), "api", ds, &v); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("deciding %v allocates %v times", ds, allocs)
		}
	}
}
