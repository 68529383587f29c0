package penstock_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const architecturePage = "docs/architecture.md"

// Whoever looks for a file of the library, or for a package, finds it in the table
// of where to read.
func TestArchitectureNamesEveryPlace(t *testing.T) {
	named := placesToRead(t)
	for _, place := range placesThereAre(t) {
		if !slices.ContainsFunc(named, func(pattern string) bool { return covers(pattern, place) }) {
			t.Errorf("%s does not say what %s is about", architecturePage, place)
		}
	}
	for _, pattern := range named {
		if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
			t.Errorf("%s speaks of %s, and there is none", architecturePage, pattern)
		}
	}
}

// covers reports whether a pattern is about a place: is it, or is a file in it.
func covers(pattern, place string) bool {
	same, _ := path.Match(pattern, place)
	return same || path.Dir(pattern) == place
}

// placesToRead returns the patterns in the table's first column. Those after the
// first of a row are in its folder, if they do not name one.
func placesToRead(t *testing.T) (patterns []string) {
	_, table, _ := strings.Cut(readPage(t, architecturePage), "\n## Where to read\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		folder := ""
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			place := m[1]
			if strings.Contains(place, "/") {
				folder = path.Dir(place)
			} else {
				place = path.Join(folder, place)
			}
			patterns = append(patterns, place)
		}
	}
	return patterns
}

// placesThereAre returns the files of the library and the folders of all other
// packages, but for examples and what is measured beside others.
func placesThereAre(t *testing.T) (places []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, d fs.DirEntry, err error) error {
		folder := path.Dir(file)
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (d.Name()[0] == '.' || d.Name() == "testdata" || file == "examples" || file == "bench"):
			return fs.SkipDir
		case !strings.HasSuffix(file, ".go"), folder == "." && (strings.HasSuffix(file, "_test.go") || file == "doc.go"):
		case folder == ".":
			places = append(places, file)
		case !slices.Contains(places, folder):
			places = append(places, folder)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return places
}
