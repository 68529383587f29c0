package doctest

import (
	"encoding/csv"
	"math"
	"regexp"
	"slices"
	"strconv"
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

// What both READMEs say of speed is what the plot in them shows.
func TestREADMESaysWhatItsPlotShows(t *testing.T) {
	ns := decisionTimes(t)
	next := math.MaxFloat64
	for limiter, at := range ns {
		if limiter != "floor" && limiter != "penstock" {
			next = min(next, at["1000000"])
		}
	}
	own, floor := ns["penstock"], ns["floor"]
	for _, name := range []string{english, chinese} {
		text := readPage(t, name)
		for what, ratio := range map[string]float64{
			"one key, of the floor":           own["1"] / floor["1"],
			"a million keys, of the floor":    own["1000000"] / floor["1000000"],
			"the next limiter, of this one's": next / own["1000000"],
		} {
			if want := strconv.FormatFloat(ratio, 'f', 1, 64); !strings.Contains(text, want+" ×") && !strings.Contains(text, want+" 倍") {
				t.Errorf("%s does not say %s, the time at %s", name, want, what)
			}
		}
	}
}

// decisionTimes returns the nanoseconds that are plotted, by limiter and number of keys.
func decisionTimes(t *testing.T) map[string]map[string]float64 {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(readPage(t, "bench/results/keys.csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]float64{}
	for _, row := range rows[1:] {
		ns, err := strconv.ParseFloat(row[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if all[row[0]] == nil {
			all[row[0]] = map[string]float64{}
		}
		all[row[0]][row[1]] = ns
	}
	return all
}
