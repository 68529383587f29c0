package lineage

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	lineagePage = "../../docs/lineage.md"
	chinesePage = "../../docs/zh-CN/lineage.md"
)

var (
	rowOfPage  = regexp.MustCompile(`(?m)^\| .* \|$`)
	testOnPage = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	fileOnPage = regexp.MustCompile("`([a-z0-9/_-]+\\.(?:go|lua|md|txt))`")
	testInCode = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
)

func TestLineagePageReferencesExist(t *testing.T) {
	page := readPage(t, lineagePage)
	tests := testsBelow(t, "../..")
	for _, name := range append(namesIn(testOnPage, page), namesIn(testOnPage, readPage(t, chinesePage))...) {
		if !slices.Contains(tests, name) {
			t.Errorf("a page names the test %s, which does not exist", name)
		}
	}
	for _, name := range namesIn(fileOnPage, page) {
		if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
			t.Errorf("%s: %v", lineagePage, err)
		}
	}
	built, _, found := strings.Cut(string(page), "\n## Not implemented\n")
	if !found {
		t.Errorf("%s: no section of what is not implemented", lineagePage)
	}
	for _, row := range rowOfPage.FindAllString(string(page), -1) {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 4 || slices.ContainsFunc(cells, func(cell string) bool { return strings.TrimSpace(cell) == "" }) {
			t.Errorf("%s: want four non-empty cells: %s", lineagePage, row)
		}
		if strings.Contains(built, row) && !strings.HasPrefix(row, "| from") && !testOnPage.MatchString(row) {
			t.Errorf("%s: no test for this row: %s", lineagePage, row)
		}
	}
}

func readPage(t *testing.T, name string) []byte {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestLineagePageListsEveryTest(t *testing.T) {
	page := readPage(t, lineagePage)
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range testsIn(t, files) {
		if !slices.Contains(namesIn(testOnPage, page), name) {
			t.Errorf("%s does not name %s", lineagePage, name)
		}
	}
	scripts, err := filepath.Glob("rivalscripts/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("found no rival scripts: %v", err)
	}
	for _, path := range scripts {
		if path = "bench/lineage/" + path; !slices.Contains(namesIn(fileOnPage, page), path) {
			t.Errorf("%s does not name %s", lineagePage, path)
		}
	}
}

func namesIn(pattern *regexp.Regexp, text []byte) (names []string) {
	for _, match := range pattern.FindAllSubmatch(text, -1) {
		names = append(names, string(match[1]))
	}
	return names
}

// testsBelow returns the names of all tests in a tree.
func testsBelow(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testsIn(t, files)
}

func testsIn(t *testing.T, files []string) (names []string) {
	t.Helper()
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, namesIn(testInCode, text)...)
	}
	if len(names) == 0 {
		t.Fatalf("found no tests in %q", files)
	}
	return names
}
