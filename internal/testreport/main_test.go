package main

import (
	"strings"
	"testing"
	"time"
)

func TestReportCountsAndNamesFailures(t *testing.T) {
	for _, c := range []struct {
		name, events string
		ok           bool
		want         []string
	}{
		{
			"passing package",
			`{"Action":"pass","Package":"example.org/a/b","Test":"TestX"}
{"Action":"pass","Package":"example.org/a/b","Elapsed":1.5}`,
			true,
			[]string{"ok   example.org/a/b", "1 passed, 0 failed, 0 skipped", "1 packages", "b 2s"},
		},
		{
			"failing test shows its output",
			`{"Action":"output","Package":"p","Test":"TestX","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestX"}
{"Action":"fail","Package":"p"}`,
			false,
			[]string{"FAIL p TestX\ngot 1, want 2", "0 passed, 2 failed"},
		},
		{
			"passing output stays hidden, skipped output does not",
			`{"Action":"output","Package":"p","Test":"TestX","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestX"}
{"Action":"output","Package":"p","Test":"TestY","Output":"no server\n"}
{"Action":"skip","Package":"p","Test":"TestY"}
{"Action":"pass","Package":"p"}`,
			true,
			[]string{"skip p TestY\nno server", "1 passed, 0 failed, 1 skipped"},
		},
		{
			"build failure",
			`{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: x\n"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			false,
			[]string{"undefined: x", "FAIL p"},
		},
		{
			"panic in a test that never ends",
			`{"Action":"output","Package":"p","Test":"TestX","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}`,
			false,
			[]string{"panic: no"},
		},
		{"text that is no JSON", "go: no such module", false, []string{"go: no such module", "0 passed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(c.events + "\n")); err != nil {
				t.Fatal(err)
			}
			out.WriteString(r.summary("unit", time.Minute))
			if r.ok() != c.ok {
				t.Errorf("ok is %v, want %v", r.ok(), c.ok)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the report lacks %q:\n%s", want, out.String())
				}
			}
			if strings.Contains(out.String(), "noise") {
				t.Errorf("the report shows what a passing test printed:\n%s", out.String())
			}
		})
	}
}
