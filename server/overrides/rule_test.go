package overrides_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
)

func TestCheckRuleRejectsWhatARuleCannotDo(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(`
domain: o
descriptors:
  - {key: bucket, limit: 60/1m}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: held, limit: 2/30s concurrent, id: request_id}
`)})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(...penstock.Limit) error { return nil }
	for _, c := range []struct{ rule, limit, want string }{
		{"o/free", "10/1m", "only be banned"},
		{"o/free", "unlimited", "only be banned"},
		{"o/free", "ban", ""},
		{"o/bucket", "10/1m leaky-bucket", "delays requests"},
		{"o/bucket", "10", "bad limit"},
		{"o/bucket", "unlimited", ""},
		{"o/bucket", "10/1m", ""},
		{"o/bucket", "10/1m concurrent", "cannot replace each other"},
		{"o/held", "10/1m", "cannot replace each other"},
		{"o/held", "3/1m concurrent", ""},
		{"o/held", "ban", ""},
	} {
		o := overrides.Override{Rule: c.rule, Limit: c.limit}
		err := o.CheckRule(set.Rule(c.rule), claim)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: got %v, want %q", c.rule, c.limit, err, c.want)
		}
		action, err := overrides.ParseAction(c.limit)
		if applies := err == nil && action.AppliesTo(set.Rule(c.rule)); err == nil && c.limit != "10/1m leaky-bucket" && applies != (c.want == "") {
			t.Errorf("%s %s: applies: %t", c.rule, c.limit, applies)
		}
	}
}
