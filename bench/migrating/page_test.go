package migrating

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

// pages have so many blocks of Go, at least.
var pages = map[string]int{"../../docs/migrating.md": 20, "../../docs/zh-CN/migrating.md": 9}

// All Go code on the pages is in these files, line by line, where it is compiled and run.
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
	for page, atLeast := range pages {
		fences := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readPage(t, page), -1)
		for _, fence := range fences {
			if !strings.Contains(sources.String(), "\n"+flat(fence[1])) {
				t.Errorf("%s has, and the tests have not:\n%s", page, fence[1])
			}
		}
		if len(fences) < atLeast {
			t.Errorf("%s has %d blocks of Go", page, len(fences))
		}
	}
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// flat returns a text without its indentation.
func flat(text string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(text, "")
}

// Limits that the pages write as text are valid.
func TestPageLimitsAreValid(t *testing.T) {
	for page := range pages {
		found := regexp.MustCompile("[`\"](\\d+/[a-z0-9][^`\"]*)[`\"]").FindAllStringSubmatch(readPage(t, page), -1)
		for _, match := range found {
			if _, err := penstock.ParseLimit(match[1]); err != nil {
				t.Errorf("%s: %q: %v", page, match[1], err)
			}
		}
		if len(found) < 4 {
			t.Errorf("%s has %d limits", page, len(found))
		}
	}
}
