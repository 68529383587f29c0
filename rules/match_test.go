package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestMatchAllocatesNothing(t *testing.T) {
	set := parse(t, `
domain: api
descriptors:
- key: tenant
  descriptors:
  - {key: path, value: /login, limit: 1/s}
  - {key: path, value: /a*b*c, share_threshold: true, limit: 1/s}
  - {key: path, limit: 1/s, descriptors: [{key: user, limit: 1/s}]}
`)
	buf := make([]byte, 0, 256)
	for _, path := range []string{"/login", "/a-b-c", "/other", "/a|b"} {
		entries := []rules.Entry{{Key: "tenant", Value: "seven"}, {Key: "path", Value: path}}
		n := testing.AllocsPerRun(100, func() {
			if r, _ := set.Domain("api").Match(entries, buf); r == nil {
				t.Errorf("%v matches nothing", entries)
			}
		})
		if n != 0 {
			t.Errorf("matching %v allocates %v times", entries, n)
		}
	}
}

// A backtracking matcher would take exponential time for this pattern: each star can
// match any of the letters, and the last letter is missing.
func TestMatchPatternTakesLinearTime(t *testing.T) {
	pattern := strings.Repeat("a*", 2000) + "b"
	set := parse(t, fmt.Sprintf("domain: d\ndescriptors:\n- {key: k, value: %q, limit: 1/s}\n", pattern))
	for _, end := range []string{"b", "c"} {
		entries := []rules.Entry{{Key: "k", Value: strings.Repeat("a", 100_000) + end}}
		if r, _ := set.Domain("d").Match(entries, nil); (r != nil) != (end == "b") {
			t.Errorf("text that ends in %s: matched %v", end, r)
		}
	}
}

func TestMatchAppendsKeyToBuffer(t *testing.T) {
	set := parse(t, "domain: d\ndescriptors:\n- {key: a, limit: 1/s}\n")
	for _, c := range []struct{ key, want string }{{"a", "prefix:a=x"}, {"b", "prefix:"}} {
		if _, got := set.Domain("d").Match([]rules.Entry{{Key: c.key, Value: "x"}}, []byte("prefix:")); string(got) != c.want {
			t.Errorf("the key of %s is %q, want %q", c.key, got, c.want)
		}
	}
}

func TestExplainShortensLongLists(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 500 {
		fmt.Fprintf(&b, "- {key: user, value: \"%d\", limit: 1/s}\n", i)
	}
	text := parse(t, b.String()).Explain("d", []rules.Entry{{Key: "user", Value: "250"}}).String()
	if n := strings.Count(text, "\n"); n > 30 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{"> user=250", "… and 489 more that do not match", "rule   d/user=250"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestExplainEscapesControlCharacters(t *testing.T) {
	set := parse(t, "domain: d\ndescriptors:\n- {key: \"a\\x1b\", limit: 1/s}\n")
	entries := []rules.Entry{{Key: "a\x1b", Value: "\n\xff"}}
	text := set.Explain("d", entries).String() + set.Explain("e\x1b\n", entries).String()
	if strings.Contains(text, "\x1b") || strings.Contains(text, "\xff") || !strings.Contains(text, `key    a\x1b=\n�`) {
		t.Errorf("got %q", text)
	}
}

func BenchmarkMatch(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: api\ndescriptors:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "- {key: path, value: /p%d, descriptors: [{key: user, limit: 1/s}]}\n", i)
	}
	set, err := rules.Parse(rules.File{Name: "api.yaml", Text: []byte(text.String())})
	if err != nil {
		b.Fatal(err)
	}
	entries := []rules.Entry{{Key: "path", Value: "/p500"}, {Key: "user", Value: "42"}}
	buf := make([]byte, 0, 256)
	d := set.Domain("api")
	if r, _ := d.Match(entries, buf); r == nil || r.Name != `api/path=\/p500/user` {
		b.Fatalf("matched %v", r)
	}
	b.ReportAllocs()
	for b.Loop() {
		d.Match(entries, buf)
	}
}
