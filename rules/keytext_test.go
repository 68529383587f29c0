package rules_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

const keyRules = `
domain: api/v1
descriptors:
  - key: tenant
    limit: 12/1m
  - key: tenant
    value: acme
    limit: 100/1m
  - key: path
    value: /login
    limit: 3/1m
    descriptors:
      - key: remote_address
        limit: 3/1m
  - key: plan
    descriptors:
      - key: user
        limit: 3/1m
  - key: file
    value: "*.pdf"
    share_threshold: true
    limit: 3/1m
`

func TestParseKeyUnderstandsKeysEntriesAndValues(t *testing.T) {
	set := parseOne(t, keyRules)
	for _, c := range []struct{ rule, text, want string }{
		{`api\/v1/tenant`, "tenant=globex", "tenant=globex"},
		{`api\/v1/tenant`, "globex", "tenant=globex"},
		{`api\/v1/tenant`, "a,b|c", `tenant=a,b\|c`},
		{`api\/v1/tenant`, "tenant=a=b", `tenant=a\=b`},
		{`api\/v1/tenant`, `tenant=a\=b\|c`, `tenant=a\=b\|c`},
		{`api\/v1/tenant=acme`, "acme", "tenant=acme"},
		{`api\/v1/tenant=acme`, "", "tenant=acme"},
		{`api\/v1/path=\/login`, "/login", "path=/login"},
		{`api\/v1/path=\/login/remote_address`, "10.0.0.7", "path=/login|remote_address=10.0.0.7"},
		{`api\/v1/path=\/login/remote_address`, "path=/login,remote_address=10.0.0.7", "path=/login|remote_address=10.0.0.7"},
		{`api\/v1/path=\/login/remote_address`, "path=/login|remote_address=10.0.0.7", "path=/login|remote_address=10.0.0.7"},
		{`api\/v1/plan/user`, "pro,42", "plan=pro|user=42"},
		{`api\/v1/plan/user`, "pro|42", "plan=pro|user=42"},
		{`api\/v1/file=*.pdf`, "a.pdf", "file=*.pdf"},
		{`api\/v1/file=*.pdf`, "file=*.pdf", "file=*.pdf"},
	} {
		got, err := set.ParseKey(ruleNamed(t, set, c.rule), c.text)
		if err != nil || got != c.want {
			t.Errorf("%s: %q means %q, %v; want %q", c.rule, c.text, got, err, c.want)
		}
	}
}

func TestParseKeyRejectsKeysOfOtherForms(t *testing.T) {
	set := parseOne(t, keyRules)
	for _, c := range []struct{ rule, text, want string }{
		{`api\/v1/tenant`, "", `"" is not a key of rule api\/v1/tenant: want tenant=VALUE`},
		{`api\/v1/tenant`, "tenat=globex", `"tenat=globex" is not a key of rule api\/v1/tenant: want tenant=VALUE`},
		{`api\/v1/tenant`, "tenant=a|user=b", "want tenant=VALUE"},
		{`api\/v1/tenant`, "acme", `"acme" is a key of rule api\/v1/tenant=acme`},
		{`api\/v1/tenant=acme`, "globex", `want tenant=acme`},
		{`api\/v1/path=\/login/remote_address`, "path=/logout|remote_address=x", "want path=/login|remote_address=VALUE"},
		{`api\/v1/plan/user`, "pro", "want plan=VALUE|user=VALUE"},
		{`api\/v1/file=*.pdf`, "a.txt", "want file=*.pdf"},
	} {
		got, err := set.ParseKey(ruleNamed(t, set, c.rule), c.text)
		var wrong *rules.KeyError
		if !errors.As(err, &wrong) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %q means %q, %v; want an error that ends in %q", c.rule, c.text, got, err, c.want)
		}
	}
}

func parseOne(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func ruleNamed(t *testing.T, set *rules.Set, name string) *rules.Rule {
	t.Helper()
	var names []string
	for _, r := range set.Rules() {
		if r.Name == name {
			return r
		}
		names = append(names, r.Name)
	}
	t.Fatalf("no rule %s among %q", name, names)
	return nil
}

// Every key that Match makes is a key of the rule that it returns, and means itself.
func FuzzParseKeyOfMatchedDescriptor(f *testing.F) {
	f.Add("tenant", "globex", "", "")
	f.Add("path", "/login", "remote_address", `a|b=c\d`)
	f.Add("plan", "x=y", "user", "|")
	f.Add("file", "a,b.pdf", "", "")
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(keyRules)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		entries := []rules.Entry{{Key: key1, Value: value1}}
		if key2 != "" {
			entries = append(entries, rules.Entry{Key: key2, Value: value2})
		}
		rule, key := set.Domain("api/v1").Match(entries, nil)
		if rule == nil {
			return
		}
		if got, err := set.ParseKey(rule, string(key)); err != nil || got != string(key) {
			t.Errorf("%q of rule %s: got %q, %v", key, rule.Name, got, err)
		}
	})
}
