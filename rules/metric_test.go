package rules_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

// The paths are those of envoyproxy/ratelimit: detailed_metric tells all values, value_to_metric
// that of its node, and a pattern with one count is told as the pattern.
func TestMetricPathTellsValuesThatRulesAskFor(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte(`
domain: a
descriptors:
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [
      {key: below, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: route, value_to_metric: true, descriptors: [
      {key: user, rate_limit: {unit: day, requests_per_unit: 1}},
      {key: user, value: vip, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: file, value: "img*", value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: shared, value: "img*", share_threshold: true, detailed_metric: true, descriptors: [
      {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: p, value: "*y", rate_limit: {unit: day, requests_per_unit: 1}}
`)})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1000)
	for _, c := range []struct{ entries, want string }{
		{"plain=x", "none"},
		{"detailed=x", "detailed_x"},
		{"detailed=", "detailed_"},
		{"detailed=x|below=y", "none"},
		{"route=/r|user=u", "route_/r.user"},
		{"route=/r|user=vip", "route_/r.user_vip"},
		{"file=img7", "file_img7"},
		{"shared=img7|user=u", "shared_img*.user_u"},
		{"shared=img7|user=", "none"},
		{"p=xy", "none"},
		{"p_q=y", "p_q_p_*y"},
		{"detailed=a\nb\x00c", "detailed_a_b_c"},
		{"detailed=" + long, "none"},
		{"route=/r|user=" + long, "route_/r.user"},
	} {
		var entries []rules.Entry
		for pair := range strings.SplitSeq(c.entries, "|") {
			key, value, _ := strings.Cut(pair, "=")
			entries = append(entries, rules.Entry{Key: key, Value: value})
		}
		d := set.Domain("a")
		rule, _ := d.Match(entries, nil)
		got := "none"
		if rule.HasMetricValues() {
			if path, ok := d.AppendMetricPath(nil, rule, entries); ok {
				got = strings.ReplaceAll(string(path), "\x00", ".")
			}
		}
		if got != c.want {
			t.Errorf("%.40q: got %q, want %q", c.entries, got, c.want)
		}
	}
}

// All keys and values that a pattern with one count matches have one, however they are split. The text of a
// key that the pattern does not begin with is counted by itself, as in envoyproxy/ratelimit.
func TestSharedPatternHasOneKey(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte(`
domain: a
descriptors: [{key: s, value: "b_*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]
`)})
	if err != nil {
		t.Fatal(err)
	}
	for e, want := range map[rules.Entry]string{
		{Key: "s", Value: "b_x"}: "s=b_*", {Key: "s_b", Value: "y"}: "s=b_*", {Key: "s_b_c", Value: "y"}: "s_b_c=s_b_*",
	} {
		if _, key := set.Domain("a").Match([]rules.Entry{e}, nil); string(key) != want {
			t.Errorf("%v: got %q, want %q", e, key, want)
		}
	}
}
