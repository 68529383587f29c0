package engine_test

import (
	"fmt"
	"testing"
)

// What was counted belongs to the rule's path of keys and values, as docs/rules.md says.
func TestReloadKeepsCountersOfTheSamePath(t *testing.T) {
	const all = 10 // what each key uses before the reload
	for _, test := range []struct {
		what          string
		before, after string
		remaining     int64 // after the reload
	}{
		{"nothing", "limit: 10/1h", "limit: 10/1h", 0},
		{"moved, beside other rules", "limit: 10/1h", "limit: 10/1h\n  - key: zone\n    limit: 5/1h", 0},
		{"shadow_mode, on_store_failure", "limit: 10/1h", "limit: 10/1h\n    shadow_mode: true\n    on_store_failure: deny", 0},
		{"count of a window", "limit: 10/1h fixed-window", "limit: 25/1h fixed-window", 15},
		{"burst of a bucket", "limit: 10/1h", "limit: 10/1h burst=25", 15},
		{"count and burst of a bucket", "limit: 10/1h", "limit: 100/1h", 0},
		{"algorithm", "limit: 10/1h", "limit: 10/1h sliding-window", 10},
		{"period of a window", "limit: 10/1h fixed-window", "limit: 10/2h fixed-window", 10},
		{"a rule of its own for the value", "limit: 10/1h", "limit: 10/1h\n  - key: user\n    value: x\n    limit: 10/1h", 10},
	} {
		file := func(rule string) string { return "domain: d\ndescriptors:\n  - key: user\n    " + rule + "\n" }
		e := newEngine(t, newMemory(), file(test.before), nil)
		want(t, decide(t, e, "d", descriptor(all, "user=x")), "allowed: granted=10 remaining=0")
		e.SetRules(parse(t, file(test.after)))
		t.Log("changed:", test.what)
		want(t, decide(t, e, "d", descriptor(0, "user=x")), fmt.Sprintf("allowed: granted=0 remaining=%d", test.remaining))
	}
}
