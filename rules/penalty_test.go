package rules_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

func TestPenaltyOfARule(t *testing.T) {
	const file = "domain: d\ndescriptors:\n  - {key: k, limit: 10/1m, penalty: %}\n"
	for text, want := range map[string]rules.Penalty{
		"{after: 100/1m, for: 10m, up_to: 24h}": {After: 100, Within: time.Minute, For: 10 * time.Minute, UpTo: 24 * time.Hour},
		"{after: 5/1h, for: 10m}":               {After: 5, Within: time.Hour, For: 10 * time.Minute, UpTo: 24 * time.Hour},
		"{after: 5/1h, for: 7d}":                {After: 5, Within: time.Hour, For: 7 * 24 * time.Hour, UpTo: 7 * 24 * time.Hour},
	} {
		set, err := rules.Parse(rules.File{Name: "f", Text: []byte(strings.Replace(file, "%", text, 1))})
		if err != nil || *set.Rule("d/k").Penalty != want {
			t.Errorf("%s: got %v %v", text, set, err)
		}
	}
	for text, want := range map[string]string{
		"{for: 10m}":                             "needs after and for",
		"{after: 5/1m}":                          "needs after and for",
		"{}":                                     "needs after and for",
		"{after: 5, for: 10m}":                   "want denials per time",
		"{after: 0/1m, for: 10m}":                "want denials per time",
		"{after: -1/1m, for: 10m}":               "want denials per time",
		"{after: 5/1m burst=2, for: 10m}":        "want denials per time",
		"{after: 5/1m, for: ten}":                "want a duration",
		"{after: 5/1m, for: 10m, up_to: 5m}":     "up_to",
		"{after: 5/1m, for: 10m, until: 5m}":     "unknown key 'until'",
		"{after: 5/1m, for: 10m, algorithm: no}": "not allowed here",
		"5/1m":                                   "want a map",
	} {
		_, err := rules.Parse(rules.File{Name: "f", Text: []byte(strings.Replace(file, "%", text, 1))})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	const unlimited = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unlimited: true}, penalty: {after: 5/1m, for: 10m}}\n"
	if _, err := rules.Parse(rules.File{Name: "f", Text: []byte(unlimited)}); err == nil || !strings.Contains(err.Error(), "unlimited") {
		t.Errorf("with unlimited: got %v", err)
	}
}
