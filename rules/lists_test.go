package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestListsKeepTheirOrder(t *testing.T) {
	set := parse(t, "domain: shop\nlists:\n  edge:\n  - {user: 'header:X-User', plan: 7}\n  - {address: address}\ndescriptors:\n- key: user\n  limit: 1/s\n")
	want := [][]rules.Entry{{{Key: "user", Value: "header:X-User"}, {Key: "plan", Value: "7"}}, {{Key: "address", Value: "address"}}}
	if got := set.Domain("shop").List("edge"); len(got) != 2 || !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := set.Domain("shop").List("other"); got != nil {
		t.Errorf("another list: got %v, want nil", got)
	}
}

func TestListsRejectMistakes(t *testing.T) {
	for yaml, want := range map[string]string{
		"lists: [a]":                        "lists: want a map such as",
		"lists: {a: []}":                    "list 'a' has 0 descriptors: want 1 to 16",
		"lists: {a: [{}]}":                  "a descriptor of a list has 0 entries",
		"lists: {a: [{b: [c]}]}":            "b: want text, got a list",
		"lists: {a: [b]}":                   "want",
		"lists: {a: [{b: c}], a: [{b: c}]}": "duplicate key 'a'",
		"lists: {a: [" + strings.Repeat("{b: c},", 17) + "]}": "list 'a' has 17 descriptors",
	} {
		_, err := rules.Parse(rules.File{Name: "f.yaml", Text: []byte("domain: d\n" + yaml + "\ndescriptors:\n- key: a\n  limit: 1/s\n")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", yaml, err, want)
		}
	}
	file := rules.File{Name: "f.yaml", Text: []byte("domain: d\nlists: {a: [{b: c}]}\n")}
	if _, err := rules.ParseMerged(file, file); err == nil || !strings.Contains(err.Error(), "f.yaml:2: duplicate list 'a' in domain 'd'") {
		t.Errorf("twice: got %v", err)
	}
}
