package migrating

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

const page = "../../docs/migrating.md"

// All Go code on the page is in these files, line by line, where it is compiled and run.
func TestPageCodeIsCompiled(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources.WriteString("\n" + flat(string(text)))
	}
	fences := goFences(t)
	for _, fence := range fences {
		if !strings.Contains(sources.String(), "\n"+flat(fence)) {
			t.Errorf("not in the tests:\n%s", fence)
		}
	}
	if len(fences) < 20 {
		t.Errorf("%d Go code blocks on the page", len(fences))
	}
}

// goFences returns the Go code blocks of the page.
func goFences(t *testing.T) (fences []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		fences = append(fences, match[1])
	}
	return fences
}

// flat returns a text without its indentation.
func flat(text string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(text, "")
}

// Limits that the page writes as text are valid.
func TestPageLimitsAreValid(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("[`\"](\\d+/[a-z0-9][^`\"]*)[`\"]").FindAllStringSubmatch(string(text), -1)
	for _, match := range found {
		if _, err := penstock.ParseLimit(match[1]); err != nil {
			t.Errorf("%q: %v", match[1], err)
		}
	}
	if len(found) < 5 {
		t.Errorf("found %d limits", len(found))
	}
}
