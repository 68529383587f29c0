package rules_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestParseKeepFree(t *testing.T) {
	for _, c := range []struct {
		fields  string
		kept    int64
		problem string
	}{
		{"limit: 10/1m, keep_free: 20%", 2, ""},
		{"limit: 10/1m, keep_free: 21%", 3, ""}, // rounded up
		{"limit: 10/1m burst=50, keep_free: 20%", 10, ""},
		{"limit: 9223372036854775807/1m fixed-window, keep_free: 99%", 9131138316486228049, ""},
		{"limit: 10/1m sliding-log, keep_free: 3", 3, ""},
		{"limit: 10/1m, keep_free: 0%", 0, ""},
		{"rate_limit: {unit: hour, requests_per_unit: 5, keep_free: 40%}", 2, ""},
		{"limit: 10/1m, keep_free: 100%", 0, "from 0% to 99%, such as 20%, got '100%'"},
		{"limit: 10/1m, keep_free: 12.5%", 0, "want a number of units, or a part of the limit"},
		{"limit: 10/1m, keep_free: -1", 0, "want a number of units"},
		{"limit: 10/1m, keep_free: 10", 0, "keeps 10 of 10 units, so that none could be taken"},
		{"limit: 1/1m, keep_free: 20%", 0, "keeps 1 of 1 units"},
		{"limit: 10/1m, charge: always, keep_free: 20%", 0, "cannot be combined with charge: always"},
		{"rate_limit: {unlimited: true}, keep_free: 20%", 0, "cannot be combined with unlimited"},
		{"keep_free: 20%", 0, "'keep_free' needs a limit: add rate_limit or limit to this descriptor, or to the one above it"},
	} {
		set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{key: k, " + c.fields + "}]")})
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", c.fields, err)
		case c.problem == "":
			if got := set.Rules()[0].KeepFree; got != c.kept {
				t.Errorf("%s: keeps %d, want %d", c.fields, got, c.kept)
			}
		case err == nil || !strings.Contains(err.Error(), c.problem):
			t.Errorf("%s: got %v, want %s", c.fields, err, c.problem)
		}
	}
}

// A descriptor with keep_free and no limit has that of the descriptor above, and its key.
func TestParseKeepFreeSharesLimitAbove(t *testing.T) {
	set := parse(t, `
domain: api
descriptors:
  - key: tenant
    limit: "100/1m"
    on_store_failure: deny
    descriptors:
      - {key: priority, value: batch, keep_free: 20%, descriptors: [{key: job, keep_free: 50%}]}
      - {key: priority, value: own, limit: "5/1m", keep_free: 1}
`)
	d := set.Domain("api")
	above, key := d.Match([]rules.Entry{{Key: "tenant", Value: "7"}}, nil)
	for _, c := range []struct {
		entries []rules.Entry
		name    string
		kept    int64
	}{
		{[]rules.Entry{{Key: "tenant", Value: "7"}, {Key: "priority", Value: "batch"}}, "api/tenant/priority=batch", 20},
		{[]rules.Entry{{Key: "tenant", Value: "7"}, {Key: "priority", Value: "batch"}, {Key: "job", Value: "1"}}, "api/tenant/priority=batch/job", 50},
	} {
		rule, shared := d.Match(c.entries, []byte("before "))
		if rule == nil || rule.Name != c.name || rule.Limit != above.Limit || rule.OnStoreFailure != rules.FailDeny || rule.KeepFree != c.kept {
			t.Errorf("%v: %+v, want %s with the limit of %s, keeping %d", c.entries, rule, c.name, above.Name, c.kept)
		}
		if string(shared) != "before "+string(key) {
			t.Errorf("%v: key %q, want that of the tenant, %q", c.entries, shared, key)
		}
	}
	own, _ := d.Match([]rules.Entry{{Key: "tenant", Value: "7"}, {Key: "priority", Value: "own"}}, nil)
	if own == nil || own.Limit.Name == above.Limit.Name || own.KeepFree != 1 {
		t.Errorf("%+v, want a limit of its own", own)
	}
}
