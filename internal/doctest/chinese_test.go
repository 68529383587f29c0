package doctest

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	chinesePages      = "docs/zh-CN/*.md"
	chineseAlgorithms = "docs/zh-CN/algorithms.md"
	chineseScenarios  = "docs/zh-CN/scenarios.md"
)

// sourceLine is the first line of a Chinese page: the English pages that it retells, and their checksums when it
// was last compared with them.
var sourceLine = regexp.MustCompile(`^<!-- from((?: [\w./-]+@[0-9a-f]{12})+) -->\n`)

// A change to an English page fails this test until its Chinese page was compared with it. The test then writes the
// new checksum, with -update.
func TestChinesePagesFollowEnglish(t *testing.T) {
	for _, name := range chineseDocuments(t) {
		page := readPage(t, name)
		line := sourceLine.FindStringSubmatch(page)
		if line == nil {
			t.Errorf("%s does not begin with the pages that it retells: %v", name, sourceLine)
			continue
		}
		updated := page
		for source := range strings.FieldsSeq(line[1]) {
			file, was, _ := strings.Cut(source, "@")
			is := checksum(readPage(t, filepath.Join("docs", file)))
			if is != was && !*update {
				t.Errorf("%s is behind docs/%s: compare them, then run with -update", name, file)
			}
			updated = strings.Replace(updated, source, file+"@"+is, 1)
		}
		writePage(t, name, page, updated)
	}
}

func checksum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:12] }

func chineseDocuments(t *testing.T) (pages []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, chinesePages))
	if err != nil || len(found) < 8 {
		t.Fatalf("%v: %v, %v", chinesePages, found, err)
	}
	for _, path := range found {
		page, _ := filepath.Rel(root, path)
		pages = append(pages, page)
	}
	return pages
}

// brokenText is a line break between two Chinese characters, which browsers show as a space.
var brokenText = regexp.MustCompile(`[\p{Han}，。；：、（）][ \t]*\n[ \t]*[\p{Han}（]`)

func TestChineseLinesEndBetweenWords(t *testing.T) {
	for _, name := range append(chineseDocuments(t), chinese) {
		text := withoutFences(readPage(t, name))
		for _, m := range brokenText.FindAllStringIndex(text, -1) {
			t.Errorf("%s: the line break becomes a space in %q", name, text[max(0, m[0]-12):min(len(text), m[1]+12)])
		}
	}
}

// linkToEnglish is a link from a Chinese page to an English one.
var linkToEnglish = regexp.MustCompile(`\]\(\.\./[\w-]+\.md(?:#[\w-]+)?\)`)

// A reader is told before a link leads to a page in English.
func TestChinesePagesMarkEnglishLinks(t *testing.T) {
	for _, name := range chineseDocuments(t) {
		for _, line := range strings.Split(withoutFences(readPage(t, name)), "\n") {
			if m := linkToEnglish.FindString(line); m != "" && !strings.Contains(line, "英文") {
				t.Errorf("%s: %s leads to an English page, and the line does not say so", name, m)
			}
		}
	}
}
