package rules_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func parse(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return set
}

// twoLimits ends the message about a duplicate descriptor.
const twoLimits = ": for two limits on one key, write the second there as also: LIMIT"

func TestErrorsNameFileAndLine(t *testing.T) {
	_, err := rules.Parse(
		rules.File{Name: "good.yaml", Text: []byte("domain: good\n")},
		rules.File{Name: "bad.yaml", Text: []byte("domain: bad\ndescriptors:\n- key: a\n- key: a\n- value: b\n")},
	)
	var one *rules.Error
	if !errors.As(err, &one) || one.File != "bad.yaml" || one.Line != 4 || one.Reason != "duplicate descriptor composite key 'bad.a', first in bad.yaml:3"+twoLimits {
		t.Errorf("got %+v, want the duplicate on line 4 of bad.yaml", one)
	}
	want := "bad.yaml:4: duplicate descriptor composite key 'bad.a', first in bad.yaml:3" + twoLimits + "\nbad.yaml:5: descriptor has empty key: add key: NAME"
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestErrorsAreLimitedTo40(t *testing.T) {
	text := "domain: d\ndescriptors:\n" + strings.Repeat("- value: a\n", 1000)
	_, err := rules.Parse(rules.File{Name: "f", Text: []byte(text)})
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 41 || lines[40] != "f: and 960 more problems" {
		t.Errorf("%d lines, the last %q; want 41, the last with the number of the other 960", len(lines), lines[len(lines)-1])
	}
}

// Errors are logged with text from the file, which must not be able to forge log lines.
func TestErrorsStayOnOneLine(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, text := range []string{
		"domain: d\n\"a\\nb\\x1b[1m\": c\n",
		"domain: d\ndescriptors:\n- {key: \"a\\nb\"}\n- {key: \"a\\nb\"}\n",
		"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: \"\\r\\n" + long + "\"}}\n",
		"domain: d\ndescriptors: [\"\\u2028\", \"" + long + "\"]\n",
	} {
		_, err := rules.Parse(rules.File{Name: "f", Text: []byte(text)})
		var all rules.Errors
		if !errors.As(err, &all) {
			t.Fatalf("%q gave %v, want errors", text, err)
		}
		for _, e := range all {
			if s := e.Error(); strings.ContainsAny(s, "\n\r\x1b\u2028") || len(s) > 300 {
				t.Errorf("%q gave %q, want one short line", text, s)
			}
		}
	}
}

func TestParseBoundsFiles(t *testing.T) {
	flood := make([]rules.File, 1001)
	for i := range flood {
		flood[i] = rules.File{Name: fmt.Sprintf("f%d", i), Text: fmt.Appendf(nil, "domain: d%d", i)}
	}
	if _, err := rules.Parse(flood[:1000]...); err != nil {
		t.Errorf("1000 files: %v", err)
	}
	full := "domain: d\n" + strings.Repeat("#", 16<<20-10)
	if !testing.Short() { // half a minute with the race detector
		parse(t, full)
	}
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
	bombs := []string{bomb.String(), maps.String()}
	if testing.Short() { // half a minute each with the race detector
		bombs = bombs[:1]
	}
	for _, text := range bombs {
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

func TestSetDomainsAreSortedByName(t *testing.T) {
	set, err := rules.Parse(
		rules.File{Name: "b.yaml", Text: []byte("domain: b\ncompat: envoy\n")},
		rules.File{Name: "a.yaml", Text: []byte("# a\ndomain: a\ncompat:\n")},
	)
	if err != nil {
		t.Fatal(err)
	}
	all := set.Domains()
	if len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" || all[0].CompatEnvoy || !all[1].CompatEnvoy {
		t.Errorf("domains are %+v, want a, and b compatible with Envoy", all)
	}
	if d := set.Domain("a"); d != all[0] || d.File != "a.yaml" || d.Line != 2 {
		t.Errorf("domain a is %+v, want the one on line 2 of a.yaml", d)
	}
	if d := set.Domain("c"); d != nil {
		t.Errorf("domain c is %+v, want nil", d)
	}
}

func TestUnitLimitIsValid(t *testing.T) {
	for u := rules.Second; u <= rules.Week; u++ {
		l := u.Limit(5)
		if err := l.Validate(); err != nil || l.Count != 5 || l.Period != u.Length() {
			t.Errorf("5 per %s is %v: %v", u, l, err)
		}
	}
	if got := rules.Unit(8).String() + " " + rules.UnknownUnit.String() + " " + rules.OnStoreFailure(9).String(); got != "unit(8) unknown failure(9)" {
		t.Errorf("got %q", got)
	}
}

// FuzzParse checks the properties of sets and errors that callers rely on.
func FuzzParse(f *testing.F) {
	for _, text := range fuzzSeeds(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := rules.Parse(rules.File{Name: "f.yaml", Text: text})
		if err != nil {
			checkErrors(t, text, err)
			return
		}
		names := map[string]bool{}
		for i, r := range set.Rules() {
			if r.Index != i || names[r.Name] || names["limit "+r.Limit.Name] && !r.Unlimited {
				t.Fatalf("rule %d has index %d, and name %q, limit %q used before: %t", i, r.Index, r.Name, r.Limit.Name, names[r.Name])
			}
			names[r.Name], names["limit "+r.Limit.Name] = true, true
			if err := r.Limit.Validate(); err != nil != r.Unlimited {
				t.Fatalf("rule %q has the limit %v: %v", r.Name, r.Limit, err)
			}
			if r.Limit != r.Limit.Normal() {
				t.Fatalf("rule %q has the limit %+v, which is not normal", r.Name, r.Limit)
			}
		}
		for _, d := range set.Domains() {
			entries := []rules.Entry{{Key: "a", Value: "b"}, {Key: "user", Value: string(text)}}
			r, key := d.Match(entries, nil)
			if x := set.Explain(d.Name, entries); x.Rule != r || x.Key != string(key) {
				t.Fatalf("%v matched %v, and is explained by\n%s", entries, r, x)
			}
		}
	})
}

func checkErrors(t *testing.T, text []byte, err error) {
	t.Helper()
	var all rules.Errors
	if !errors.As(err, &all) || len(all) == 0 {
		t.Fatalf("got %T %v, want rules.Errors", err, err)
	}
	lines := countLines(string(text))
	for _, e := range all {
		if e.File != "f.yaml" || e.Line < 0 || e.Line > lines || e.Reason == "" || strings.Contains(e.Reason, "\n") {
			t.Fatalf("%+v, in a file of %d lines", e, lines)
		}
	}
}

// countLines returns an upper bound of the number of lines in a YAML text.
func countLines(text string) int {
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		return 1 + len(text)/2 // UTF-16
	}
	n := 1
	for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
		n += strings.Count(text, end)
	}
	return n
}
