package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
)

const rulesPage = "../docs/rules.md"

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

var (
	pageBlock   = regexp.MustCompile("(?s)```(yaml|console)\n(.*?)```\n")
	pageExplain = regexp.MustCompile(`(?m)^\$ penstock rules explain rules.yaml (\S+) (.*)\n((?:[^$\x60].*\n|\n)*)`)
)

// Every block of YAML on the pages is a valid file, and the commands below it print what
// the page shows. With -update, the test writes their output.
func TestRulesPageBlocksLoad(t *testing.T) {
	for page, atLeast := range map[string]int{
		rulesPage: 5, "../docs/zh-CN/rules.md": 2, "../docs/zh-CN/scenarios.md": 5,
		"../docs/zh-CN/quickstart.md": 1, "../docs/zh-CN/redis-failures.md": 1,
	} {
		t.Run(filepath.Base(page), func(t *testing.T) { checkRulesPage(t, page, atLeast) })
	}
}

func checkRulesPage(t *testing.T, name string, atLeast int) {
	page := readPage(t, name)
	var set *rules.Set
	files, commands := 0, 0
	updated := pageBlock.ReplaceAllStringFunc(page, func(block string) string {
		m := pageBlock.FindStringSubmatch(block)
		if m[1] == "yaml" {
			files++
			set = parse(t, m[2])
			return block
		}
		return pageExplain.ReplaceAllStringFunc(block, func(shown string) string {
			commands++
			m := pageExplain.FindStringSubmatch(shown)
			got := set.Explain(m[1], entriesOf(m[2])).String()
			if got != m[3] && !*update {
				t.Errorf("explain %s %s prints\n%swant, or run with -update:\n%s", m[1], m[2], got, m[3])
			}
			return strings.TrimSuffix(shown, m[3]) + got
		})
	})
	if files < atLeast || commands != strings.Count(page, "\n$ penstock rules explain") {
		t.Errorf("found %d files and %d commands: the search is broken", files, commands)
	}
	if *update && updated != page {
		if err := os.WriteFile(name, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func entriesOf(words string) (entries []rules.Entry) {
	for word := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(word, "=")
		entries = append(entries, rules.Entry{Key: key, Value: value})
	}
	return entries
}

// The table of fields has a row for every field that a rule file may have, and for no
// other.
func TestRulesPageHasEveryField(t *testing.T) {
	_, section, _ := strings.Cut(readPage(t, rulesPage), "\n## All fields\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = true
		}
	}
	for _, name := range rules.FieldNames() {
		if !documented[name] {
			t.Errorf("the table of fields has no row for %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("the table of fields has %s, which is no field", name)
	}
	for _, unit := range rules.UnitNames() {
		if !strings.Contains(section, "`"+unit+"`") {
			t.Errorf("the table of fields does not have the unit %s", unit)
		}
	}
}

var limitPair = regexp.MustCompile("(?m)^\\| `(\\{.*\\})` \\| `(.*)` \\|$")

// Each row that compares the two ways to write a limit has the same limit twice.
func TestRulesPagePairsAreEqual(t *testing.T) {
	pairs := limitPair.FindAllStringSubmatch(readPage(t, rulesPage), -1)
	for _, m := range pairs {
		limits := make([]penstock.Limit, 2)
		for i, field := range []string{"rate_limit: " + m[1], "limit: \"" + m[2] + "\""} {
			limits[i] = parse(t, "domain: d\ndescriptors:\n  - key: k\n    "+field+"\n").Rules()[0].Limit
		}
		if limits[0] != limits[1] {
			t.Errorf("%s is %v, %s is %v", m[1], limits[0], m[2], limits[1])
		}
	}
	if len(pairs) < 5 {
		t.Errorf("only %d pairs found: the search is broken", len(pairs))
	}
}
