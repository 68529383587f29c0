package rules_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

func TestParseSettle(t *testing.T) {
	for _, c := range []struct {
		fields  string
		settle  bool
		hold    time.Duration
		problem string
	}{
		{fields: "limit: 10/1m"},
		{fields: "limit: 10/1m, settle: false"},
		{fields: "limit: 10/1m, settle: true", settle: true},
		{fields: "limit: 10/1m, settle: true, hold: 24h", settle: true, hold: 24 * time.Hour},
		{fields: "limit: 10/1m sliding-log, settle: true", settle: true},
		{fields: "rate_limit: {unit: day, requests_per_unit: 5, settle: true, hold: 90s}", settle: true, hold: 90 * time.Second},
		{fields: "limit: 10/1m, settle: 1", problem: "settle"},
		{fields: "limit: 10/1m, settle: true, hold: 25h", problem: "hold: want at most 24h, got '25h'"},
		{fields: "limit: 10/1m, settle: true, hold: 0s", problem: "hold: want a duration"},
		{fields: "limit: 10/1m, hold: 1h", problem: "hold: needs settle: true beside it"},
		{fields: "limit: 10/1m, settle: true, charge: always", problem: "settle: cannot be combined with charge: always"},
		{fields: "limit: 10/1m concurrent, id: request, settle: true", problem: "settle: cannot be combined with a concurrent limit"},
		{fields: "rate_limit: {unlimited: true}, settle: true", problem: "settle: cannot be combined with unlimited"},
		{fields: "settle: true", problem: "'settle' needs a limit"},
	} {
		set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{key: k, " + c.fields + "}]")})
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", c.fields, err)
		case c.problem == "":
			if got := set.Rules()[0]; got.Settle != c.settle || got.Hold != c.hold {
				t.Errorf("%s: got settle %v, hold %v", c.fields, got.Settle, got.Hold)
			}
		case err == nil || !strings.Contains(err.Error(), c.problem):
			t.Errorf("%s: got %v, want %s", c.fields, err, c.problem)
		}
	}
}

// A domain counts as Envoy's service does if one of its files says so.
func TestParseRefusesSettleUnderCompat(t *testing.T) {
	_, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte(`
domain: a
compat: envoy
descriptors:
  - key: k
    limit: 10/1m
    settle: true
    descriptors: [{key: priority, keep_free: 20%}]
`)})
	if err == nil || err.Error() != "a.yaml:6: settle: cannot be combined with compat: envoy of the domain 'a'" {
		t.Errorf("got %v", err)
	}
}
