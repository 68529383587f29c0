// The race detector empties pools at random, which changes allocation counts.

//go:build !race

package rulelimit_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rulelimit"
)

func TestTakeByRulesDoesNotAllocate(t *testing.T) {
	observed := 0
	lim, _ := open(t, shop, &rulelimit.Options{Observe: func(rulelimit.Observation) { observed++ }})
	r := penstock.RuleRequest{Domain: "shop", Descriptors: []penstock.Descriptor{
		{Entries: entries("user", "1"), Cost: 1}, {Entries: entries("address", "a"), Cost: 1},
	}}
	var by penstock.RuleLimiter = lim
	answers := make([]penstock.RuleAnswer, 2)
	take := func() {
		if _, err := by.TakeByRules(context.Background(), r, answers); err != nil {
			t.Fatal(err)
		}
	}
	take()
	if n := testing.AllocsPerRun(200, take); n > 0 {
		t.Errorf("%v allocations a decision, want none", n)
	}
}
