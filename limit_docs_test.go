package penstock

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page about rules has every word that the text of a limit may have, and its
// examples parse.
func TestRulesPageMatchesLimitText(t *testing.T) {
	page, err := os.ReadFile("docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## The text of a limit\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, word := range slices.Concat(algorithmWords, alignWords) {
		if !strings.Contains(section, "`"+word+"`") {
			t.Errorf("the section does not have the word %s", word)
		}
	}
	for _, key := range limitKeys {
		if !strings.Contains(section, "\n| `"+key) {
			t.Errorf("the table has no row for %s", key)
		}
	}
	_, examples, _ := strings.Cut(section, "```text limits\n")
	examples, _, _ = strings.Cut(examples, "```")
	if n := strings.Count(examples, "\n"); n < 8 {
		t.Errorf("only %d examples found: the search is broken", n)
	}
	for text := range strings.Lines(examples) {
		if _, err := ParseLimit(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\| .*(?:as in Go|spelled out).*$`).FindAllString(section, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			if _, ok := parseDuration(m[1]); !ok {
				t.Errorf("%q is no duration", m[1])
			}
		}
	}
}
