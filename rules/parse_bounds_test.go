//go:build !race

package rules_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

// Parsing has one goroutine. What is as large as may be takes half a minute each with the race detector.

func TestParseBoundsFiles(t *testing.T) {
	flood := make([]rules.File, 1001)
	for i := range flood {
		flood[i] = rules.File{Name: fmt.Sprintf("f%d", i), Text: fmt.Appendf(nil, "domain: d%d", i)}
	}
	if _, err := rules.Parse(flood[:1000]...); err != nil {
		t.Errorf("1000 files: %v", err)
	}
	full := "domain: d\n" + strings.Repeat("#", 16<<20-10)
	parse(t, full)
	for _, c := range []struct {
		name  string
		files []rules.File
		want  string
	}{
		{"too many files", flood, "f1000: too many rule files: at most 1000 are allowed"},
		{"too large", []rules.File{{Name: "f", Text: []byte(full + "#")}}, "f: file has 16777217 bytes: at most 16777216 are allowed"},
	} {
		if _, err := rules.Parse(c.files...); fmt.Sprint(err) != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// A few lines of aliases can expand to billions of nodes.
func TestParseBoundsAliasesAndDepth(t *testing.T) {
	var bomb, maps strings.Builder
	bomb.WriteString("domain: d\ndescriptors:\n- key: a0\n  descriptors: &a0 [{key: x, limit: 1/s}]\n")
	maps.WriteString("domain: d\ndescriptors:\n- key: a\n  metadata:\n    a0: &a0 [x, x]\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&bomb, "- key: a%d\n  descriptors: &a%d [{key: x, descriptors: *a%d}, {key: y, descriptors: *a%d}]\n", i, i, i-1, i-1)
		fmt.Fprintf(&maps, "    a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	for _, text := range []string{bomb.String(), maps.String()} {
		checkBounded(t, text, "more than 2097152 YAML nodes in all files, with aliases expanded")
	}
	for _, c := range []struct{ name, text, want string }{
		{"itself", "domain: d\ndescriptors: &a\n- key: a\n  descriptors: *a\n", "nested more than 64 levels deep"},
		{"itself merged", "domain: d\ndescriptors:\n- &a\n  key: a\n  <<: *a\n", "nested more than 64 levels deep"},
		{"itself as metadata", "domain: d\ndescriptors:\n- key: a\n  metadata: &a {b: *a}\n", "nested more than 64 levels deep"},
		{"deep", "domain: d\ndescriptors: " + strings.Repeat("[{key: a, descriptors: ", 65) + "[]" + strings.Repeat("}]", 65), "nested more than 64 levels deep"},
		{"deep in YAML", "domain: " + strings.Repeat("[", 1<<20), "exceeded max depth of 10000"},
	} {
		t.Run(c.name, func(t *testing.T) { checkBounded(t, c.text, c.want) })
	}
	parse(t, "domain: d\ndescriptors: "+strings.Repeat("[{key: a, descriptors: ", 64)+strings.Repeat("}]", 64))
}

// checkBounded checks that a text is rejected before it has used much memory.
func checkBounded(t *testing.T, text, want string) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := rules.Parse(rules.File{Name: "f", Text: []byte(text)})
	runtime.ReadMemStats(&after)
	if !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %.300v, want %s", err, want)
	}
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 1024 {
		t.Errorf("%d MiB allocated", mib)
	}
}
