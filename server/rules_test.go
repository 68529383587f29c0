package server_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

const spendUser = `{"domain":"shop","cost":5,"descriptors":[{"entries":[{"key":"user","value":"42"}]}]}`

// requestLimits are limits that look like the rule of shopRules.
var requestLimits = []string{
	"0/8760h fixed-window align=clock name=shop/user", "5/8760h fixed-window align=clock name=shop/user",
	"5/8760h fixed-window align=clock", "1/1ms name=shop/user",
}

// Request limits that come before a rule's first use leave the rule as it is.
func TestRuleIsUsableAfterRequestLimits(t *testing.T) {
	onAllStores(t, func(t *testing.T, d *daemon) {
		for _, l := range requestLimits {
			post(t, d.addr("http"), fmt.Sprintf(`{"key":"user=42","limit":"%s","cost":1}`, l))
		}
		if status, answer := post(t, d.addr("http"), spendUser); status != 200 || !strings.Contains(answer, `"remaining":0`) {
			t.Errorf("first use of the rule: %d %s, want all of its 5 units", status, answer)
		}
	})
}

// A daemon without the rules of another one on the same Redis cannot loosen them.
func TestRequestLimitAtOtherDaemonCannotReachRule(t *testing.T) {
	settings := map[string]string{"store": "redis://" + redis.Addr, "redis-prefix": rand.Text(), "redis-timeout": "10s"}
	other := start(t, settings)
	settings["rules"] = writeRules(t, shopRules)
	d := start(t, settings)
	if status, answer := post(t, d.addr("http"), spendUser); status != 200 {
		t.Fatalf("first use of the rule: %d %s", status, answer)
	}
	for _, l := range requestLimits {
		post(t, other.addr("http"), fmt.Sprintf(`{"key":"user=42","limit":"%s","cost":0}`, l))
		post(t, other.addr("http"), fmt.Sprintf(`{"key":"user=42","limit":"%s","cost":-9223372036854775808}`, l))
		if status, answer := post(t, d.addr("http"), spendUser); status != 429 {
			t.Errorf("after %s: %d %s, want a denial", l, status, answer)
		}
	}
}

// Rules that would share state are an error of their file, which names both.
func TestRulesOfOneIdentityAreRejected(t *testing.T) {
	file := write(t, "rules.yaml", "domain: shop\ndescriptors:\n  - {key: n704772, limit: 1/1m}\n  - {key: n4485192, limit: 1/1m}\n")
	_, err := server.New(t.Context(), load(t, map[string]string{"store": "redis://" + redis.Addr, "rules": file}), nil)
	want := []string{file + ":4:", "shop/n4485192 and shop/n704772", file + ":3)", "rename"}
	for _, part := range want {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %q in it", err, part)
		}
	}
}
