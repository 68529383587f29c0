package rules_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

func TestGlobalOfARule(t *testing.T) {
	const file = "domain: d\ndescriptors:\n  - {key: k, limit: 100/1m, also: [1000/1h], global: %}\n"
	for text, want := range map[string]struct {
		rules.Global
		says string
	}{
		"{}": {rules.Global{}, "over all regions together"},
		"{pool: 12.5%, age: 10s, on_partition: deny}": {
			rules.Global{Pool: 0.125, Age: 10 * time.Second, OnPartition: rules.FailDeny},
			"over all regions together, regions hold up to 12.5%, for 10s, deny without home",
		},
		"{on_partition: local}": {rules.Global{OnPartition: rules.FailLocal}, "over all regions together, local without home"},
	} {
		set, err := rules.Parse(rules.File{Name: "f", Text: []byte(strings.Replace(file, "%", text, 1))})
		if err != nil {
			t.Fatal(err)
		}
		r := set.Rule("d/k")
		if *r.Global != want.Global || r.Global.String() != want.says || r.Also.Global == nil || *r.Also.Global != want.Global {
			t.Errorf("%s: got %+v %q, and %+v of also", text, *r.Global, r.Global, r.Also.Global)
		}
	}
	for text, want := range map[string]string{
		"true":                "want a map",
		"{pool: 95%}":         "at most 90%",
		"{pool: 0%}":          "above 0%",
		"{pool: NaN%}":        "above 0%",
		"{pool: 0.1}":         "such as 12%",
		"{age: 2h}":           "at most 1h",
		"{on_partition: ask}": "want local, allow or deny",
		"{hold: 5%}":          "not allowed here",
		"{size: 5}":           "unknown key 'size'",
	} {
		_, err := rules.Parse(rules.File{Name: "f", Text: []byte(strings.Replace(file, "%", text, 1))})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	set, err := rules.Parse(rules.File{Name: "f", Text: []byte(strings.Replace(file, "global: %", "settle: true, global: {}", 1))})
	if err != nil || len(set.Warnings()) == 0 || !strings.Contains(set.Warnings()[0].Reason, "round trip") {
		t.Errorf("beside settle: %v, %v", set.Warnings(), err)
	}
}
