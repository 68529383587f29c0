package rules_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestCandidatesThatCannotBeCountedAreWarnedOf(t *testing.T) {
	for descriptor, want := range map[string]string{
		"{key: a, limit: 5/1m, candidate: 3/1m burst=2}":                                          "",
		"{key: a, limit: 5/1m concurrent, id: r, candidate: 3/1m concurrent}":                     "candidate: not counted: permits",
		"{key: a, limit: 5/1m, charge: always, candidate: 3/1m}":                                  "",
		"{key: a, limit: 5/1m, keep_free: 4, candidate: 3/1m}":                                    "candidate: not counted: keep_free keeps 4 of 3 units",
		"{key: a, limit: 5/1m, candidate: 3/1m, descriptors: [{key: b, value: c, keep_free: 4}]}": "candidate: not counted: keep_free keeps 4 of 3 units",
	} {
		set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: d\ndescriptors: [" + descriptor + "]")})
		if err != nil {
			t.Fatalf("%s: %v", descriptor, err)
		}
		text := ""
		if w := set.Warnings(); len(w) > 0 {
			text = w.Error()
		}
		if !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s: got the warnings %q, want %q", descriptor, text, want)
		}
	}
}

func TestCandidateHasTheKeysOfItsRuleAndAStateOfItsOwn(t *testing.T) {
	text := "domain: d\ndescriptors: [{key: a, limit: 5/1m, also: 50/1h, candidate: 3/1m, descriptors: [{key: b, value: c, keep_free: 1}]}]"
	set, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	rule, sharing := set.Rule("d/a"), set.Rule("d/a/b=c")
	if rule.Candidate.Limit.Name == rule.Limit.Name || rule.Candidate.Also != nil || rule.Also.Candidate != nil {
		t.Errorf("got %+v", rule.Candidate)
	}
	if sharing.Candidate.Limit.Name != rule.Candidate.Limit.Name || sharing.Candidate.KeepFree != 1 {
		t.Errorf("the rule that shares the limit has the candidate %+v, want that of the limit", sharing.Candidate)
	}
	if got := set.Explain("d", []rules.Entry{{Key: "a", Value: "1"}}).String(); !strings.Contains(got, "3/1m, which counts beside") {
		t.Errorf("explained as\n%s", got)
	}
}
