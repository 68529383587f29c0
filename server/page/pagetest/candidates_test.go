package pagetest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const candidateRules = `
domain: shop
descriptors:
  - {key: user, limit: "5/1h", candidate: "2/1h"}
  - {key: tenant, limit: "10/1h"}
`

// A candidate of the file and one of the page are compared with the limits in force, by counts and by keys, and deny nothing.
func TestCandidatesAreTriedAndCompared(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": candidateRules}, args...)
		tb := openTab(t)
		tb.show(t, d, "rules")
		tb.waitUntil(t, "the candidate of the file is shown", showing(".candidate", "shop/user"))
		if got := tb.text(t, ".candidate .keep"); !strings.Contains(got, `write limit: "2/1h`) || !strings.Contains(got, "shop.yaml:4, and remove the candidate there") {
			t.Errorf("the page says %q", got)
		}
		if evaluate[bool](t, tb, "document.querySelector('.candidate button[name=end]').checkVisibility()") {
			t.Error("the candidate of a file has a button to end it")
		}

		tb.ask(t, ".tree tr:nth-child(3) button[name=try]")
		tb.write(t, "dialog input[name=limit]", "3/1h")
		if got := tb.text(t, "dialog .will"); got != "This will count 3/1h beside the limit of shop/tenant, on this daemon alone, for 1h. It denies nothing." {
			t.Errorf("the page asks %q", got)
		}
		tb.yes(t, "OPS-9", "Tried: 3/1h for shop/tenant.")
		tb.waitUntil(t, "both are shown", "document.querySelectorAll('.candidate').length === 2")
		for range 4 {
			if !d.take(t, "tenant", "<b>acme") || !d.take(t, "user", "42") {
				t.Error("a candidate denies")
			}
		}
		second := ".candidate:nth-child(2) "
		if evaluate[bool](t, tb, "document.querySelector('.candidate strong').textContent === 'shop/tenant'") {
			second = ".candidate:nth-child(1) "
		}
		tb.waitUntil(t, "the difference is shown", showing(second+"[data-figure=candidate]", "1 denied · 25%")+" && "+showing(second+"[data-figure=in-force]", "0 denied · 0%"))
		if got := tb.texts(t, second+".candidate-keys .key"); len(got) != 1 || got[0] != "tenant=<b>acme" {
			t.Errorf("the keys that differ are %q", got)
		}

		if got := tb.ask(t, second+"button[name=end]"); !strings.HasPrefix(got, "This will end the trial of 3/1h") {
			t.Errorf("the page asks %q", got)
		}
		tb.write(t, "dialog input[name=reason]", "seen enough")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "it is gone", "document.querySelectorAll('.candidate').length === 1")
		tb.ask(t, ".note button[name=undo]")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "it is tried again", "document.querySelectorAll('.candidate').length === 2")
		if e, _ := d.audit(t); e.Action != "candidate.set" || e.Reason != "undo: seen enough" || e.Target.Rule != "shop/tenant" || e.Result != "done" {
			t.Errorf("the audit has %+v", e)
		}
	})
}

// The page says where candidates come from. One that is set takes the place of that of a file; a rule that is not in
// force yet cannot be tried.
func TestPageSaysWhereCandidatesComeFrom(t *testing.T) {
	next := filepath.Join(t.TempDir(), "next.yaml")
	if err := os.WriteFile(next, []byte("domain: shop\ndescriptors:\n  - {key: tenant, limit: 7/1h}\n  - {key: user, limit: 9/1h}\n  - {key: plan, limit: 1/1h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, map[string]string{"shop.yaml": candidateRules}, "--candidate-rules", next)
	tb := openTab(t)
	tb.show(t, d, "rules")
	tb.waitUntil(t, "all candidates are shown", "document.querySelectorAll('.candidate').length === 3")
	tb.ask(t, ".tree tr:nth-child(3) button[name=try]")
	tb.write(t, "dialog input[name=limit]", "3/1h")
	if got := tb.text(t, "dialog .will"); !strings.Contains(got, "It takes the place of 7/1h, and counts anew.") {
		t.Errorf("the page asks %q", got)
	}
	wantOrigins(t, tb, "shop/plan by the candidate rules false", "shop/tenant by the candidate rules false", "shop/user by the rule true")
	tb.yes(t, "OPS-9", "Tried: 3/1h for shop/tenant.")
	tb.waitUntil(t, "it is shown", showing(".candidates", "set on this daemon"))
	wantOrigins(t, tb, "shop/plan by the candidate rules false", "shop/tenant set on this daemon true", "shop/user by the rule true")
	if got := tb.texts(t, ".candidate .keep"); !slices.Contains(got, `To keep it, add the rule with limit: "1/1h" to the rules in force.`) {
		t.Errorf("the page says %q", got)
	}
	tb.show(t, d, "keys")
	tb.waitUntil(t, "the action is listed", showing("table.audit td.change", "3/1h"))
	if evaluate[bool](t, tb, "document.querySelector('table.audit .key') !== null") {
		t.Error("an action on a rule is shown with a key")
	}
}

// wantOrigins compares the candidates with where they come from, and whether they can be changed.
func wantOrigins(t *testing.T, tb *tab, want ...string) {
	t.Helper()
	got := evaluate[[]string](t, tb, `[...document.querySelectorAll('.candidate')].map((e) => [e.querySelector('strong').textContent,
		e.querySelector('header p').textContent.split(', ').at(-1), e.querySelector('button[name=change]').checkVisibility()].join(' ')).sort()`)
	if !slices.Equal(got, want) {
		t.Errorf("candidates: %q, want %q", got, want)
	}
}

func TestReadOnlyPageTriesNothing(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": candidateRules}, "--admin-actions=false")
	tb := openTab(t)
	tb.show(t, d, "rules")
	tb.waitUntil(t, "the candidate is shown", showing(".candidate", "shop/user"))
	if evaluate[bool](t, tb, "[...document.querySelectorAll('button[name=try], .acts')].some((e) => e.checkVisibility())") {
		t.Error("there are buttons for actions")
	}
}
