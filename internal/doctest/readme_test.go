package doctest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	english = "README.md"
	chinese = "README.zh-CN.md"
)

// The two READMEs have the same outline, commands, code, pictures and links, so
// that a change to one cannot leave the other behind.
func TestChineseREADMEMatchesEnglish(t *testing.T) {
	en, zh := readPage(t, english), readPage(t, chinese)
	for _, part := range []struct {
		name string
		of   func(string) []string
	}{
		{"heading levels", headingLevels},
		{"code blocks", codeBlocks},
		{"indented commands", commands},
		{"link targets", linkTargets},
		{"table sizes", tableRows},
	} {
		got, want := part.of(zh), part.of(en)
		if !slices.Equal(got, want) {
			t.Errorf("%s of %s and %s differ:\n%q\n%q", part.name, chinese, english, got, want)
		}
		if len(want) == 0 {
			t.Errorf("%s has no %s", english, part.name)
		}
	}
}

func TestREADMEIsShort(t *testing.T) {
	for _, page := range []string{english, chinese} {
		if n := strings.Count(readPage(t, page), "\n"); n > 200 {
			t.Errorf("%s has %d lines, want at most 200", page, n)
		}
	}
}

func headingLevels(text string) (levels []string) {
	for line := range strings.Lines(withoutFences(text)) {
		if level := line[:len(line)-len(strings.TrimLeft(line, "#"))]; level != "" {
			levels = append(levels, level)
		}
	}
	return levels
}

// goComment is the part of a line that may be translated.
var goComment = regexp.MustCompile(`(?m)\s*(//|#) .*$`)

// codeBlocks leaves out drawings, whose labels are translated.
func codeBlocks(text string) (blocks []string) {
	for _, f := range Fences("", text) {
		if strings.Contains(f.Body, "└──") {
			continue
		}
		blocks = append(blocks, f.Info+"\n"+goComment.ReplaceAllString(f.Body, ""))
	}
	return blocks
}

func commands(text string) (lines []string) {
	for line := range strings.Lines(withoutFences(text)) {
		if strings.HasPrefix(line, "    ") {
			lines = append(lines, strings.TrimSpace(goComment.ReplaceAllString(line, "")))
		}
	}
	return lines
}

// linkTargets leaves out the links of the READMEs to each other, pages that exist in Chinese only, and anchors, which
// follow the language of the headings. A page in Chinese stands for the English one.
func linkTargets(text string) (targets []string) {
	for _, m := range linkTarget.FindAllStringSubmatch(withoutFences(text), -1) {
		target, _, _ := strings.Cut(m[1], "#")
		switch target {
		case english, chinese, "", "docs/zh-CN/README.md", "docs/zh-CN/quickstart.md", "docs/zh-CN/scenarios.md":
		case "docs/zh-CN/redis-failures.md":
			targets = append(targets, "docs/reliability.md")
		default:
			targets = append(targets, strings.Replace(target, "/zh-CN/", "/", 1))
		}
	}
	return targets
}

func tableRows(text string) (rows []string) {
	for line := range strings.Lines(withoutFences(text)) {
		if strings.HasPrefix(line, "|") {
			rows = append(rows, strings.Repeat("|", strings.Count(line, "|")))
		}
	}
	return rows
}
