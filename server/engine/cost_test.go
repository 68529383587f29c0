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

func TestDecideSeveralDescriptorsDoesNotAllocate(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, nil)
	all := []engine.Descriptor{
		descriptor(1, "path=a"), descriptor(1, "path=b"), descriptor(1, "user=ada"), descriptor(1, "trial=ada"), descriptor(1, "path=c"),
	}
	var v engine.Result
	for n := 1; n <= len(all); n++ {
		allocs := testing.AllocsPerRun(50, func() { // allowed first, and denied later
			if err := e.Decide(context.Background(), "api", all[:n], &v); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("deciding %d descriptors allocates %v times", n, allocs)
		}
	}
}

func TestDecideUnderOverridesDoesNotAllocate(t *testing.T) {
	o := newOverridden(t, newMemory())
	o.set("o/bucket", "bucket=banned", "ban")
	o.set("o/bucket", "bucket=10.0.0.0/8", "ban")
	o.set("o/bucket", "bucket=free*", "unlimited")
	o.set("o/bucket", "bucket=more", "100000000/1m")
	var v engine.Result
	for _, entry := range []string{"bucket=other", "bucket=banned", "bucket=10.1.1.1", "bucket=11.1.1.1", "bucket=free1", "bucket=more"} {
		ds := []engine.Descriptor{descriptor(1, entry)}
		allocs := testing.AllocsPerRun(200, func() {
			if err := o.Decide(context.Background(), "o", ds, &v); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("deciding %s allocates %v times", entry, allocs)
		}
	}
}

func TestDecideFurtherLimitsAllocateNothing(t *testing.T) {
	e := newEngine(t, newMemory(), alsoRules, nil)
	ds, r := []engine.Descriptor{descriptor(1, "phone=3")}, engine.Result{}
	if n := testing.AllocsPerRun(100, func() { _ = e.Decide(t.Context(), "llm", ds, &r) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
