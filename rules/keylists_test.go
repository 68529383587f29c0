package rules_test

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestKeyListsAreThoseOfRules(t *testing.T) {
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(`
domain: api
descriptors:
  - key: path
    descriptors:
      - {key: user, limit: 1/1s}
      - {key: user, value: ada, limit: 2/1s}
  - {key: tenant, value: acme, limit: 1/1s}
  - {key: tenant, value: "b*", rate_limit: {unlimited: true}}
`)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Domain("api").KeyLists(), []string{"path,user", "tenant"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := rules.KeyList([]rules.Entry{{Key: "path", Value: "/"}, {Key: "user", Value: "ada"}}); got != "path,user" {
		t.Errorf("got %q", got)
	}
}
