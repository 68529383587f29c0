package rules_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
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

func TestParseUnknownAlgorithm(t *testing.T) {
	_, err := rules.Parse(rules.File{Name: "a.yaml", Text: []byte("domain: a\ndescriptors: [{key: k, algorithm: gcra, rate_limit: {unit: day}}]")})
	if err == nil || !strings.Contains(err.Error(), "algorithm: want ") || !strings.Contains(err.Error(), ", got 'gcra'") {
		t.Errorf("got %v, want what an algorithm may be", err)
	}
	for _, a := range penstock.Algorithms() {
		if !strings.Contains(fmt.Sprint(err), a.String()) {
			t.Errorf("%v does not have %v", err, a)
		}
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

// Further limits are a setting of the rule that has them, and not of each other.
func TestSettingsNameFurtherLimitsOnce(t *testing.T) {
	set := parse(t, "domain: sms\ndescriptors: [{key: phone, limit: 10/1m, also: [20/1d, 30/7d, 40/30d], descriptors: [{key: priority, value: batch, keep_free: 1}]}]")
	const further = "20/1d, 30/7d, 40/30d"
	for _, r := range set.Rules() {
		want := further
		if r.IsFurther() {
			want = ""
		}
		got := ""
		for _, line := range r.Settings() {
			if line[0] == "also" {
				got += line[1]
			}
		}
		if got != want {
			t.Errorf("%s: also %q, want %q", r.Name, got, want)
		}
	}
	if n := len(set.Rules()); n != 8 {
		t.Errorf("%d rules, want four for each of two descriptors", n)
	}
}
