package engine_test

import (
	"testing"

	"github.com/penstock-io/penstock"
)

// A Go program on the same store meets a rule by the rule's name and key, on purpose; a
// request limit of that name does not.
func TestProgramLimitMeetsRuleByName(t *testing.T) {
	store := penstock.NewMemory(nil)
	e := newEngine(t, store, "domain: shop\ndescriptors: [{key: tenant, limit: 5/1h}]\n", nil)
	decide(t, e, "shop", descriptor(3, "tenant=acme"))
	own := penstock.PerHour(5).WithName("shop/tenant")
	brought := own
	brought.Untrusted = true
	for limit, want := range map[penstock.Limit]int64{own: 2, brought: 5} {
		d, err := store.Take(t.Context(), penstock.Request{Key: "tenant=acme", Limit: limit})
		if err != nil || d.Remaining != want {
			t.Errorf("untrusted %t: %v, %v, want %d remaining", limit.Untrusted, d, err, want)
		}
	}
}
