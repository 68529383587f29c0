package rules_test

import (
	"fmt"
	"log"

	"github.com/penstock-io/penstock/rules"
)

const exampleFile = `
domain: api
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: user
        limit: 5/15m sliding-log
  - key: path
    rate_limit: {unit: second, requests_per_unit: 100}
`

func Example() {
	set, err := rules.Parse(rules.File{Name: "api.yaml", Text: []byte(exampleFile)})
	if err != nil {
		log.Fatal(err)
	}
	descriptor := []rules.Entry{{Key: "path", Value: "/login"}, {Key: "user", Value: "42"}}
	rule, key := set.Domain("api").Match(descriptor, nil)
	fmt.Println(rule.Name)
	fmt.Println(rule.Limit)
	fmt.Println(string(key))

	// Output:
	// api/path=\/login/user
	// 5/15m sliding-log name="api/path=\\/login/user"
	// path=/login|user=42
}

func ExampleSet_Explain() {
	set, err := rules.Parse(rules.File{Name: "api.yaml", Text: []byte(exampleFile)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(set.Explain("api", []rules.Entry{{Key: "path", Value: "/login"}}))

	// Output:
	// domain api
	//
	// path=/login
	// > path=/login  api.yaml:4  exact match
	//   path         api.yaml:9  matches any value, but an exact match wins
	//
	// no rule: the last entry matches path=/login (api.yaml:4), which has no limit; path (api.yaml:9) would lead to a rule, but matching never backtracks from the chosen descriptor
}
