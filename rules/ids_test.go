package rules

import (
	"strings"
	"testing"
)

func TestIDNamesPermitsOfConcurrentLimits(t *testing.T) {
	for _, c := range []struct{ rule, problem string }{
		{"limit: 5/30s concurrent", "a concurrent limit needs id:"},
		{"limit: 5/1m, id: request_id", "id: needs algorithm: concurrent, but it is token-bucket"},
		{"rate_limit: {unlimited: true, id: x}", "id: cannot be combined with unlimited"},
		{"limit: 5/30s concurrent, id: user", "key 'user': a rule of this domain has id: user"},
	} {
		text := "domain: d\ndescriptors: [{key: user, " + c.rule + "}]\n"
		if _, err := Parse(File{Name: "f", Text: []byte(text)}); err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: got %v, want %q", c.rule, err, c.problem)
		}
	}
}

// The entry that names a permit is no part of the key, wherever it stands.
func TestMatchSkipsIDs(t *testing.T) {
	set, err := Parse(File{Name: "f", Text: []byte(`domain: d
descriptors:
- key: tenant
  descriptors:
  - {key: user, limit: 5/30s concurrent, id: request_id}
`)})
	if err != nil {
		t.Fatal(err)
	}
	id, tenant, user := Entry{Key: "request_id", Value: "r|1"}, Entry{Key: "tenant", Value: "t"}, Entry{Key: "user", Value: "u"}
	_, want := set.Domain("d").Match([]Entry{tenant, user}, nil)
	for _, entries := range [][]Entry{{id, tenant, user}, {tenant, id, user}, {tenant, user, id}} {
		rule, key := set.Domain("d").Match(entries, nil)
		if rule == nil || rule.IDOf(entries) != "r|1" || string(key) != string(want) || !set.Domain("d").HasID(entries) {
			t.Errorf("%v: got rule %v and key %q, want %q", entries, rule, key, want)
		}
		if x := set.Explain("d", entries); x.Rule != rule || x.Key != string(want) || strings.Contains(x.String(), "pattern") {
			t.Errorf("%v: explained as\n%s", entries, x)
		}
	}
	if x := set.Explain("d", []Entry{id}); x.Rule != nil || !strings.Contains(x.String(), "name permits") {
		t.Errorf("an ID alone: explained as\n%s", x)
	}
	if rule, key := set.Domain("d").Match([]Entry{id}, nil); rule != nil || len(key) != 0 {
		t.Errorf("an ID alone: got %v and key %q", rule, key)
	}
}
