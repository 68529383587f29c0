package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const priorityRules = `
domain: api
descriptors:
  - key: tenant
    limit: "10/1h ALGORITHM"
    descriptors:
      - {key: priority, value: batch, keep_free: 20%}
`

// All rules of a request keep what they should, all or nothing, under every algorithm.
func TestDecideKeepsUnitsFree(t *testing.T) {
	for _, algorithm := range []string{"token-bucket", "fixed-window", "fixed-window align=clock", "sliding-window", "rolling-window", "sliding-log"} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			e := newEngine(t, store, strings.ReplaceAll(priorityRules, "ALGORITHM", algorithm), nil)
			batch := func(cost int64) engine.Descriptor { return descriptor(cost, "tenant=7", "priority=batch") }
			want(t, decide(t, e, "api", batch(9)), "denied: granted=0 remaining=10 over denied")
			want(t, decide(t, e, "api", batch(8)), "allowed: granted=8 remaining=2")
			want(t, decide(t, e, "api", batch(1)), "denied: granted=0 remaining=2 over denied")
			want(t, decide(t, e, "api", batch(0)), "allowed: granted=0 remaining=2")
			want(t, decide(t, e, "api", descriptor(2, "tenant=7")), "allowed: granted=2 remaining=0")
			want(t, decide(t, e, "api", batch(-3)), "allowed: granted=-3 remaining=3")
			want(t, decide(t, e, "api", batch(1)), "allowed: granted=1 remaining=2")
		})
	}
}

// Under compat, hits beyond the limit stay counted; those of batch requests are over it while
// fewer than the kept ones are left, also by the cache of keys over their limit.
func TestDecideEnvoyCompatKeepsUnitsFree(t *testing.T) {
	for _, keys := range []int{0, 1024} {
		yaml := "compat: envoy\n" + strings.ReplaceAll(priorityRules, "ALGORITHM", "fixed-window align=clock")
		e := newEngine(t, newMemory(), yaml, &engine.Options{OverLimitKeys: keys, OverLimitAge: time.Minute})
		batch := descriptor(1, "tenant=7", "priority=batch")
		want(t, decide(t, e, "api", descriptor(7, "tenant=7")), "allowed: granted=7 remaining=3")
		want(t, decide(t, e, "api", batch), "allowed: granted=1 remaining=2")
		over := decide(t, e, "api", batch)
		if !strings.HasPrefix(over, "denied") {
			t.Errorf("with two left: %s, want a denial", over)
		}
		if over = decide(t, e, "api", batch); !strings.HasPrefix(over, "denied") {
			t.Errorf("again: %s, want a denial", over)
		}
		if got := decide(t, e, "api", descriptor(0, "tenant=7")); strings.HasPrefix(got, "denied") {
			t.Errorf("peek: %s, want what is left", got)
		}
	}
}

// An override of the tenant holds for its batch requests too, which keep a part of it.
func TestDecideKeepsPartOfOverrideFree(t *testing.T) {
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	yaml := strings.ReplaceAll(priorityRules, "ALGORITHM", "fixed-window")
	e := newEngine(t, newMemory(), yaml, &engine.Options{Overrides: book})
	if err := book.Put(t.Context(), []overrides.Override{{Rule: "api/tenant", Key: "tenant=7", Limit: "50/1h fixed-window"}}); err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e, "api", descriptor(41, "tenant=7", "priority=batch")), "denied: granted=0 remaining=50 over denied")
	want(t, decide(t, e, "api", descriptor(40, "tenant=7", "priority=batch")), "allowed: granted=40 remaining=10")
	want(t, decide(t, e, "api", descriptor(10, "tenant=7")), "allowed: granted=10 remaining=0")
}
