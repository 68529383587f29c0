package rules_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestParseChargeAlways(t *testing.T) {
	for _, c := range []struct{ fields, problem string }{
		{"limit: 10/1m, charge: always", ""},
		{"rate_limit: {unit: hour, requests_per_unit: 5, charge: always}", ""},
		{"limit: 10/1m sliding-window, charge: always", ""},
		{"limit: 10/1m rolling-window, charge: granted", ""},
		{"limit: 10/1m rolling-window, charge: always", "charge: needs algorithm: token-bucket, leaky-bucket, fixed-window or sliding-window, but it is rolling-window"},
		{"limit: 10/1m sliding-log, charge: always", "but it is sliding-log"},
		{"limit: 10/1m, charge: never", "charge: want granted or always, got 'never'"},
		{"rate_limit: {unlimited: true}, charge: always", "charge: cannot be combined with unlimited"},
	} {
		set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{key: k, " + c.fields + "}]")})
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", c.fields, err)
		case c.problem == "":
			if got, want := set.Rules()[0].ChargeAlways, strings.Contains(c.fields, "always"); got != want {
				t.Errorf("%s: charges always is %v", c.fields, got)
			}
		case err == nil || !strings.Contains(err.Error(), c.problem):
			t.Errorf("%s: got %v, want %s", c.fields, err, c.problem)
		}
	}
}
