package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	notAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// documents returns all Markdown files, relative to the root.
func documents(t *testing.T) (pages []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") && d.Name() != ".github" && d.Name() != ".." {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			page, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			pages = append(pages, page)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

func TestDocumentLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, page := range documents(t) {
		for _, m := range linkTarget.FindAllStringSubmatch(withoutFences(readPage(t, page)), -1) {
			if target := m[1]; !strings.Contains(target, "://") {
				links++
				checkLink(t, page, target)
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links found: the search is broken", links)
	}
}

func checkLink(t *testing.T, page, target string) {
	t.Helper()
	file, anchor, _ := strings.Cut(target, "#")
	linked := page
	if file != "" {
		linked = filepath.Join(filepath.Dir(page), file)
	}
	if _, err := os.Stat(filepath.Join(root, linked)); err != nil {
		t.Errorf("%s links to %s, which does not exist", page, target)
		return
	}
	if anchor != "" && strings.HasSuffix(linked, ".md") && !anchors(readPage(t, linked))[anchor] {
		t.Errorf("%s links to %s, but %s has no such heading", page, target, linked)
	}
}

// anchors returns the anchors that GitHub makes of a page's headings.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(withoutFences(text), -1) {
		name := notAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// withoutFences blanks code blocks, whose lines may look like headings.
func withoutFences(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			continue
		}
		if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}
