package pagetest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A descriptor is a domain and entries such as path=/login.
type descriptor struct {
	domain  string
	entries []string
}

// matcherCases returns the rule files and descriptors of a test case of the matcher.
func matcherCases(t *testing.T, name string) (files map[string]string, all []descriptor) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, section := range strings.Split("\n"+string(text), "\n-- ")[1:] {
		title, body, _ := strings.Cut(section, " --\n")
		switch {
		case strings.HasSuffix(title, ".yaml"):
			files[title] = body + "\n"
		case title == "explain":
			line, _, _ := strings.Cut(body, "\n")
			all = append(all, parseDescriptor(line))
		case title == "match":
			for line := range strings.Lines(body) {
				if before, _, ok := strings.Cut(line, " ->"); ok && line[0] != '#' {
					all = append(all, parseDescriptor(before))
				}
			}
		}
	}
	return files, all
}

func parseDescriptor(line string) descriptor {
	words := strings.Fields(line)
	return descriptor{words[0], words[1:]}
}

// The page explains as the command does, for every case of the matcher's tests.
func TestExplainEqualsTheCommand(t *testing.T) {
	names, err := filepath.Glob("../../../rules/testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no test cases: %v", err)
	}
	explained := 0
	for _, name := range names {
		files, all := matcherCases(t, name)
		if len(all) == 0 {
			continue
		}
		d := startDaemon(t, files)
		tb := openTab(t)
		tb.show(t, d, "rules")
		for _, one := range all {
			if len(one.entries) == 0 {
				continue // the command wants entries
			}
			explained++
			command := exec.Command(binary, append([]string{"rules", "explain", ".", one.domain}, one.entries...)...)
			command.Dir = d.rules
			out, err := command.Output()
			if err != nil {
				t.Fatalf("%v: %v", one, err)
			}
			entries := strings.Join(one.entries, "\n")
			ready := quote(`[` + quote(one.domain) + `,` + quote(entries) + `]`)
			got := follow[string](t, tb, link("", "rules", "domain", one.domain, "entries", entries),
				"document.querySelector('.explanation')?.dataset.ready === "+ready, "document.querySelector('.explanation').textContent")
			if got != string(out) {
				t.Errorf("%v: the page shows\n%s\nthe command prints\n%s", one, got, out)
			}
		}
	}
	if explained < 50 {
		t.Errorf("only %d cases; has the format of the test data changed?", explained)
	}
}

// Each limit of a rule has one line, however often the daemon is asked.
func TestRulesShowEachLimitOfARuleOnce(t *testing.T) {
	d := startDaemon(t, map[string]string{"sms.yaml": `
domain: sms
descriptors:
  - key: phone
    limit: "60/1m"
    also: ["5/day zone=Asia/Shanghai fixed-window", "100/7d"]
`})
	tb := openTab(t)
	tb.show(t, d, "rules")
	tb.waitForPolls(t, 4, "/rules")
	want := "sms phone phone//day phone//7d"
	if got := strings.Join(tb.texts(t, ".tree .node"), " "); got != want {
		t.Errorf("the tree is %q, want %q", got, want)
	}
}

func TestRulesShowTheTreeAndTheLastLoad(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "rules")
	if got := strings.Join(tb.texts(t, ".tree .node"), " "); got != "shop user api path=/login remote_address tenant partner=internal" {
		t.Errorf("the tree is %q", got)
	}
	if where := tb.texts(t, ".tree .where"); where[1] != "shop.yaml:5" {
		t.Errorf("the rule user is at %q, want shop.yaml:5", where[1])
	}
	path := filepath.Join(d.rules, "shop.yaml")
	if err := os.WriteFile(path, []byte(shopRules+"  - key: broken\n    limit: \"0.5/fortnight\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tb.waitUntil(t, "the failed load is shown", "document.querySelector('.reload')?.textContent.includes('fortnight')")
	if got := tb.text(t, ".reload"); !strings.Contains(got, "failed") || !strings.Contains(got, "are in force") {
		t.Errorf("the last load is shown as %q", got)
	}
	for _, view := range []string{"live", "keys", "simulator", "rules"} {
		tb.show(t, d, view)
		tb.waitUntil(t, view+" says so", "/shop.yaml:\\d+: .*fortnight/.test(document.querySelector('.banner.warn')?.textContent)")
		tb.waitUntil(t, "so does the header", "document.getElementById('status').textContent === 'up, old rules'")
	}
	if err := os.WriteFile(path, []byte(shopRules), 0o600); err != nil {
		t.Fatal(err)
	}
	tb.waitUntil(t, "the next load is shown", "document.querySelector('.reload .tag')?.textContent === 'loaded'")
	tb.show(t, d, "live")
	tb.waitUntil(t, "Live has no banner", "!document.querySelector('.banner')")
}
