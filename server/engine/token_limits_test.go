package engine_test

import (
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// envoyPeek returns a peek of Envoy's, which asks whether a request may begin.
func envoyPeek(entries ...string) engine.Descriptor {
	d := descriptor(0, entries...)
	d.DenyInDebt = true
	return d
}

const tokenRules = `
domain: llm
descriptors:
  - {key: model, charge: always, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: paced, charge: always, limit: "3600/1h burst=1000"}
  - {key: slides, charge: always, limit: "1000/1h sliding-window"}
  - {key: trial, charge: always, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 2}}
`

// A request is let in while a token is left, and reports its tokens when it ends: after 1200
// tokens of 1000 the bucket is 200 over the limit, and requests are denied.
func TestDecideChargeAlwaysChargesReportsInFull(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		for _, key := range []string{"model=a", "paced=a", "slides=a"} {
			want(t, decide(t, e, "llm", envoyPeek(key)), "allowed: granted=0 remaining=1000")
			want(t, decide(t, e, "llm", descriptor(600, key)), "allowed: granted=600 remaining=400")
			want(t, decide(t, e, "llm", envoyPeek(key)), "allowed: granted=0 remaining=400")
			want(t, decide(t, e, "llm", descriptor(600, key)), "allowed: granted=600 remaining=0")
			want(t, decide(t, e, "llm", envoyPeek(key)), "denied: granted=0 remaining=0 over denied")
			want(t, decide(t, e, "llm", descriptor(100, key)), "denied: granted=100 remaining=0 over denied")
			want(t, decide(t, e, "llm", descriptor(-301, key)), "allowed: granted=-301 remaining=1")
			want(t, decide(t, e, "llm", envoyPeek(key)), "allowed: granted=0 remaining=1")
		}
	})
}

func TestDecideChargeAlwaysDeniesAtNothingLeft(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		want(t, decide(t, e, "llm", descriptor(1000, "model=a")), "allowed: granted=1000 remaining=0")
		want(t, decide(t, e, "llm", descriptor(0, "model=a")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", descriptor(20, "trial=a")), "allowed: granted=20 remaining=0")
		want(t, decide(t, e, "llm", envoyPeek("trial=a")), "allowed: granted=0 remaining=0 denied")
	})
}

// Tokens that were used are charged even if another descriptor denies the request, which
// itself charges nothing.
func TestDecideChargeAlwaysWhateverTheAnswer(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		want(t, decide(t, e, "llm", descriptor(600, "model=a"), descriptor(3, "user=x")), "denied: granted=600 remaining=400 | granted=0 remaining=2 over denied")
		want(t, decide(t, e, "llm", descriptor(600, "model=a"), descriptor(1, "user=x")), "allowed: granted=600 remaining=0 | granted=1 remaining=1")
		want(t, decide(t, e, "llm", descriptor(1, "user=x"), envoyPeek("model=a")), "denied: granted=0 remaining=1 | granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", descriptor(1, "user=x"), descriptor(5, "model=a")), "denied: granted=0 remaining=1 | granted=5 remaining=0 over denied")
	})
}

// Within one request, later descriptors see what earlier ones of the same key were charged.
func TestDecideChargeAlwaysSeesEarlierDescriptors(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		want(t, decide(t, e, "llm", descriptor(1500, "model=a"), descriptor(1, "model=a")), "denied: granted=1500 remaining=0 | granted=1 remaining=0 over denied")
	})
}

// An override replaces the number of a rule with charge: always, and not how it charges.
func TestDecideChargeAlwaysUnderOverride(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		want(t, decide(t, e, "llm", descriptor(600, "model=a")), "allowed: granted=600 remaining=400")
		want(t, decide(t, e, "llm", withOverride(envoyPeek("model=a"), 500)), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", withOverride(descriptor(900, "model=a"), 2000)), "allowed: granted=900 remaining=500")
		want(t, decide(t, e, "llm", envoyPeek("model=a")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", withOverride(envoyPeek("model=a"), 2000)), "allowed: granted=0 remaining=500")
	})
}

// A peek of Envoy's is denied at a key that owes, under any rule; the same peek of another
// caller is allowed.
func TestDecideDeniesPeeksOfEnvoyInDebt(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, tokenRules, nil)
		want(t, decide(t, e, "llm", descriptor(2, "plain=a")), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "llm", envoyPeek("plain=a")), "allowed: granted=0 remaining=0")
		want(t, decide(t, e, "llm", withOverride(descriptor(3, "plain=a"), 9)), "allowed: granted=3 remaining=4")
		want(t, decide(t, e, "llm", envoyPeek("plain=a")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", descriptor(0, "plain=a")), "allowed: granted=0 remaining=0")
	})
}

// What an override records stays recorded, however low the limits are that decide later
// requests, in both modes.
func TestDecideOverrideKeepsWhatIsRecorded(t *testing.T) {
	for _, mode := range []string{"", "compat: envoy"} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			e := newEngine(t, store, "domain: api\n"+mode+"\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]", nil)
			high := func(cost int64) string { return decide(t, e, "api", withOverride(descriptor(cost, "user=ada"), 100)) }
			low := func() string { return decide(t, e, "api", withOverride(envoyPeek("user=ada"), 1)) }
			want(t, high(95), "allowed: granted=95 remaining=5")
			want(t, low(), "denied: granted=0 remaining=0 over denied")
			want(t, decide(t, e, "api", envoyPeek("user=ada")), "denied: granted=0 remaining=0 over denied")
			want(t, high(5), "allowed: granted=5 remaining=0")
			want(t, decide(t, e, "api", descriptor(0, "user=ada"))[:7], map[string]string{"": "allowed", "compat: envoy": "denied:"}[mode])
			want(t, high(-95), "allowed: granted=-95 remaining=95")
			want(t, decide(t, e, "api", descriptor(5, "user=ada")), "allowed: granted=5 remaining=0")
		})
	}
}

// An override of another unit is counted apart.
func TestDecideOverrideOfAnotherUnitCountsApart(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}, {key: path, value: /*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}]", nil)
		want(t, decide(t, e, "api", withOverride(descriptor(2, "user=ada"), 2)), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "api", descriptor(2, "user=ada")), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "api", withOverride(descriptor(2, "path=/a"), 2)), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "api", descriptor(2, "path=/b")), "allowed: granted=2 remaining=0")
	})
}

// All descriptors of a request pass or none, those with overrides included.
func TestDecideOverrideIsRefundedIfTheRequestIsDenied(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", withOverride(descriptor(3, "user=ada"), 9), withOverride(descriptor(1, "free=x"), 9), descriptor(11, "path=/")),
			"denied: granted=0 remaining=9 | granted=0 remaining=9 | granted=0 remaining=10 over denied")
		want(t, decide(t, e, "api", withOverride(descriptor(0, "user=ada"), 9), withOverride(descriptor(0, "free=x"), 9)), "allowed: granted=0 remaining=9 | granted=0 remaining=9")
	})
}
