package engine_test

import (
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

const topRules = `
domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: vip, rate_limit: {unlimited: true}}
`

// The lists of top keys agree with the counters of the rules: they count takes that were
// granted or denied, and neither peeks, refunds nor what another descriptor denied.
func TestTopKeysAgreeWithCounters(t *testing.T) {
	keys := topkeys.New(nil)
	e := newEngine(t, newMemory(), topRules, &engine.Options{TopKeys: keys})
	decide := func(ds ...engine.Descriptor) {
		t.Helper()
		var v engine.Result
		if err := e.Decide(t.Context(), "api", ds, &v); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		decide(descriptor(1, "user=ada"))
		decide(descriptor(1, "trial=ada"), descriptor(1, "vip=ada"))
		decide(descriptor(0, "user=ada"))
		decide(descriptor(1, "user=bob"), descriptor(1, "user=ada")) // from the second on ada denies, so bob is not charged
	}
	decide(descriptor(-1, "user=ada"))
	decide(withOverride(descriptor(1, "user=ada"), 5))
	e.SetRules(e.Rules())
	decide(descriptor(4, "user=cyd"))

	limit := requestlimits.Of(penstock.PerHour(2))
	request := func(key string) penstock.Request { return penstock.Request{Key: key, Limit: limit, Cost: 1} }
	mayRefund := func() bool { return false }
	for range 3 {
		if _, err := e.Take(t.Context(), request("k"), mayRefund); err != nil {
			t.Fatal(err)
		}
	}
	rs, ds := []penstock.Request{request("k"), request("l")}, make([]penstock.Decision, 2)
	if err := e.TakeEach(t.Context(), rs, ds, mayRefund); err != nil {
		t.Fatal(err)
	}
	if err := e.TakeAll(t.Context(), rs, ds, mayRefund); err != nil {
		t.Fatal(err)
	}

	checkTotals(t, e, keys)
	want := map[string][2]uint64{ // asked and denied
		"api/user|user=ada": {10, 7}, "api/user|user=bob": {1, 0}, "api/user|user=cyd": {1, 1}, "api/trial|trial=ada": {5, 4},
		"|user=ada": {1, 0}, "|k": {5, 3}, "|l": {1, 0},
	}
	asked, denied := countedKeys(keys)
	if len(asked) != len(want) {
		t.Errorf("asked: %v, want %v", asked, want)
	}
	for key, n := range want {
		if asked[key] != n[0] || denied[key] != n[1] {
			t.Errorf("%s: asked %d, denied %d, want %v", key, asked[key], denied[key], n)
		}
	}
}

func countedKeys(keys *topkeys.Tracker) (asked, denied map[string]uint64) {
	byAsked, byDenied := keys.Keys(nil)
	return counted(byAsked), counted(byDenied)
}

func counted(s topkeys.Summary) map[string]uint64 {
	all := map[string]uint64{}
	for _, e := range s.Entries {
		all[e.Rule+"|"+e.Key] += e.Count
	}
	return all
}

func checkTotals(t *testing.T, e *engine.Engine, keys *topkeys.Tracker) {
	t.Helper()
	var asked, denied uint64
	for _, c := range e.RuleStats() {
		denied += c.Denied.Load() + c.Shadowed.Load()
		asked += c.Allowed() + c.Denied.Load() + c.Shadowed.Load()
	}
	a, d := keys.Keys(nil)
	if a.Total != asked || d.Total != denied || asked == 0 {
		t.Errorf("asked %d and denied %d in all, counters have %d and %d", a.Total, d.Total, asked, denied)
	}
}

func TestTopKeysOfShadowModeAreShadowed(t *testing.T) {
	keys := topkeys.New(nil)
	e := newEngine(t, newMemory(), topRules, &engine.Options{TopKeys: keys, Shadow: true})
	limit := requestlimits.Of(penstock.PerHour(1))
	for range 3 {
		var v engine.Result
		if err := e.Decide(t.Context(), "api", []engine.Descriptor{descriptor(2, "user=ada")}, &v); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 1}, func() bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	_, denied := keys.Keys(nil)
	for _, entry := range denied.Entries {
		if entry.Count != 2 || entry.Shadowed != 2 {
			t.Errorf("%+v: want 2 denials, both shadowed", entry)
		}
	}
}
