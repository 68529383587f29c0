package engine_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// Evaluations are pooled. None decides by rules of the one before.
func TestDecideKeepsNoLimitsAcrossAReload(t *testing.T) {
	file := func(a, b string) string {
		return "domain: d\ndescriptors:\n  - {key: a, limit: " + a + "}\n  - {key: b, limit: " + b + "}\n"
	}
	e := newEngine(t, newMemory(), file("10/1h", "20/1h"), nil)
	both := func(x, y string) string { return decide(t, e, "d", descriptor(1, x), descriptor(1, y)) }
	for range 3 {
		e.SetRules(parse(t, file("10/1h", "20/1h")))
		want(t, both("a=1", "b=1"), "allowed: granted=1 remaining=9 | granted=1 remaining=19")
		want(t, both("b=2", "a=2"), "allowed: granted=1 remaining=19 | granted=1 remaining=9")
		want(t, decide(t, e, "d", descriptor(1, "b=3")), "allowed: granted=1 remaining=19")
		e.SetRules(parse(t, file("30/1h fixed-window", "40/1h fixed-window")))
		want(t, both("a=4", "b=4"), "allowed: granted=1 remaining=29 | granted=1 remaining=39")
		e = newEngine(t, newMemory(), file("10/1h", "20/1h"), nil)
	}
}

// Takes, peeks, shadow rules and unlimited ones of a request are decided together, in any order.
func TestDecidePlainAndOtherDescriptorsTogether(t *testing.T) {
	const file = `
domain: d
descriptors:
  - {key: a, limit: 5/1h}
  - {key: b, limit: 3/1h}
  - {key: shadow, limit: 1/1h, shadow_mode: true}
  - {key: free, rate_limit: {unlimited: true}}
`
	for _, test := range []struct {
		what      string
		ds        []engine.Descriptor
		responses []string
	}{
		{"plain", []engine.Descriptor{descriptor(1, "a=1"), descriptor(2, "b=1")}, []string{
			"allowed: granted=1 remaining=4 | granted=2 remaining=1",
			"denied: granted=0 remaining=4 | granted=0 remaining=1 over denied",
		}},
		{"no rule between", []engine.Descriptor{descriptor(1, "a=1"), descriptor(1, "x=1"), descriptor(2, "b=1")}, []string{
			"allowed: granted=1 remaining=4 | no rule | granted=2 remaining=1",
			"denied: granted=0 remaining=4 | no rule | granted=0 remaining=1 over denied",
		}},
		{"a shadow rule last", []engine.Descriptor{descriptor(1, "a=1"), descriptor(2, "b=1"), descriptor(1, "shadow=1")}, []string{
			"allowed: granted=1 remaining=4 | granted=2 remaining=1 | granted=1 remaining=0",
			"denied: granted=0 remaining=4 | granted=0 remaining=1 over denied | granted=0 remaining=0",
		}},
		{"a peek and an unlimited rule last", []engine.Descriptor{descriptor(2, "b=1"), descriptor(0, "a=1"), descriptor(1, "free=1")}, []string{
			"allowed: granted=2 remaining=1 | granted=0 remaining=5 | unlimited",
			"denied: granted=0 remaining=1 over denied | granted=0 remaining=5 | unlimited",
		}},
		{"an unlimited rule first", []engine.Descriptor{descriptor(1, "free=1"), descriptor(2, "b=1")}, []string{
			"allowed: unlimited | granted=2 remaining=1", "denied: unlimited | granted=0 remaining=1 over denied",
		}},
	} {
		t.Log(test.what)
		for _, o := range []*engine.Options{nil, {CountHits: true}} {
			e := newEngine(t, newMemory(), file, o)
			for _, response := range test.responses {
				want(t, decide(t, e, "d", test.ds...), response)
			}
		}
	}
}

// A request that the store cannot decide counts as an error of each of its rules.
func TestDecidePlainCountsErrorsOfTheStore(t *testing.T) {
	failing := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	e := newEngine(t, failing, "domain: d\ndescriptors:\n  - {key: a, limit: 5/1h}\n  - {key: b, limit: 3/1h}\n", nil)
	var r engine.Result
	for range 2 {
		if err := e.Decide(context.Background(), "d", []engine.Descriptor{descriptor(1, "a=1"), descriptor(1, "b=1")}, &r); err == nil || len(r.Statuses) > 0 {
			t.Fatalf("got %v and %+v, want an error and no statuses", err, r)
		}
	}
	for _, c := range e.RuleStats()[1:] {
		if c.Errors.Load() != 2 || c.Allowed() != 0 {
			t.Errorf("%s: %d errors, %d allowed, want 2 and 0", c.Rule, c.Errors.Load(), c.Allowed())
		}
	}
}
