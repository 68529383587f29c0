package rules_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

// Where that is allowed, files are read as envoyproxy/ratelimit reads them, with a warning for what has no
// effect: the first document, and the last of fields with one name. Without, they are refused.
func TestLoadAllowsDuplicates(t *testing.T) {
	const rule = "descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
	for name, c := range map[string]struct{ text, limit, warnings string }{
		"document":              {"domain: d\n" + rule + "---\ndomain: e\n", "5/1m", "f.yaml:4: second YAML document"},
		"document that is none": {"domain: d\n" + rule + "---\ndomain: [\n", "5/1m", "f.yaml:4: second YAML document"},
		"domain":                {"domain: e\ndomain: d\n" + rule, "5/1m", "f.yaml:2: duplicate key 'domain'"},
		"descriptors":           {"domain: d\ndescriptors: [{key: b}]\n" + rule, "5/1m", "f.yaml:3: duplicate key 'descriptors'"},
		"rate_limit":            {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: hour, requests_per_unit: 9}\n  rate_limit: {unit: minute, requests_per_unit: 5}\n", "5/1m", "f.yaml:5: duplicate key 'rate_limit'"},
		"half a rate_limit":     {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute, requests_per_unit: 9}\n  rate_limit: {requests_per_unit: 5}\n", "5/1m", "f.yaml:5: duplicate key 'rate_limit'"},
		"rate_limit, thrice":    {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute}\n  rate_limit: {unit: hour, requests_per_unit: 5}\n  rate_limit: {unit: minute}\n", "5/1m", "f.yaml:5: duplicate key 'rate_limit'\nf.yaml:6: duplicate key 'rate_limit', first on line 5"},
		"unit":                  {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, unit: minute, requests_per_unit: 5}}]\n", "5/1m", "f.yaml:2: duplicate key 'unit'"},
	} {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rules.Load(path, nil); err == nil {
			t.Errorf("%s: loaded without AllowDuplicates", name)
		}
		set, err := rules.Load(path, &rules.Options{AllowDuplicates: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := set.Domains(); len(d) != 1 || d[0].Name != "d" || !strings.HasPrefix(set.Rules()[0].Limit.String(), c.limit) {
			t.Errorf("%s: got %v with %v, want d with %s", name, d, set.Rules()[0].Limit, c.limit)
		}
		var warnings []string
		for _, w := range set.Warnings() {
			warnings = append(warnings, w.Error())
		}
		if wanted := strings.Split(c.warnings, "\n"); !slices.EqualFunc(warnings, wanted, strings.Contains) {
			t.Errorf("%s: warnings %q, want %q", name, warnings, wanted)
		}
	}
}
