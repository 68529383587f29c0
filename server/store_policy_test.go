package server

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/storepolicy"
)

// A rule overrides the settings that it has; the server's defaults apply to the rest.
func TestStorePoliciesFollowRules(t *testing.T) {
	c, err := LoadConfig(map[string]string{"nodes": "4", "on-store-failure": "deny", "lease": "true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := storepolicy.Policies{Defaults: c.defaultStorePolicy()}
	byDefault := storepolicy.Policy{OnFailure: penstock.FailClosed, Lease: true, DenyCache: true}
	named := func(name string) penstock.Limit { return penstock.Per(5, time.Hour).WithName(name) }
	if l := named("shop/open"); p.ForLimit(&l) != byDefault {
		t.Errorf("without rules: %+v", p.ForLimit(&l))
	}
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(`
domain: shop
descriptors:
  - {key: plain, limit: 5/1h}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: open, limit: 5/1h, on_store_failure: allow, lease: false}
  - {key: half, limit: 5/1h, share: 0.5, deny_cache: false}
  - {key: here, limit: 5/1h, on_store_failure: local}
`)})
	if err != nil {
		t.Fatal(err)
	}
	p.Set(set.Rules())
	for name, want := range map[string]storepolicy.Policy{
		"shop/plain": byDefault,
		"shop/free":  byDefault,
		"shop/gone":  byDefault,
		"":           byDefault,
		"shop/open":  {OnFailure: penstock.FailOpen, DenyCache: true},

		// The limit of an override of one key.
		overrides.LimitName("shop/open", "600/1m"): {OnFailure: penstock.FailOpen, DenyCache: true},
		overrides.LimitName("shop/gone", "600/1m"): byDefault,

		"shop/half": {OnFailure: penstock.FailLocal, Share: 0.5, Lease: true},
		"shop/here": {OnFailure: penstock.FailLocal, Lease: true, DenyCache: true},
	} {
		l := named(name)
		if got := p.ForLimit(&l); got != want {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
	untrusted := named("shop/open")
	untrusted.Untrusted = true
	if got := p.ForLimit(&untrusted); got != byDefault {
		t.Errorf("a request limit with the name of a rule: %+v, want %+v", got, byDefault)
	}
	p.Set(nil)
	if l := named("shop/open"); p.ForLimit(&l) != byDefault {
		t.Error("the policy of a removed rule still applies")
	}
}

// A Redis that may take long for a call may also take long for its first answer.
func TestServerWaitsForRedisAtStartAsLongAsForACall(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{50 * time.Millisecond: 2 * time.Second, 10 * time.Second: 10 * time.Second} {
		if got := (&Config{RedisTimeout: timeout}).connectTimeout(); got != want {
			t.Errorf("with --redis-timeout %v it waits for %v, want %v", timeout, got, want)
		}
	}
}
