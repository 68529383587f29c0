package pagetest_test

import (
	"fmt"
	"strings"
	"testing"
)

const penaltyRules = `
domain: shop
descriptors:
  - key: user
    limit: "5/1h"
    penalty: {after: 3/1m, for: 10m}
  - key: tenant
    limit: "100/1h"
    settle: true
    descriptors:
      - {key: priority, value: batch, keep_free: 30%}
  - {key: stream, id: request_id, limit: "20/1m concurrent"}
`

// showing returns an expression that is true while an element has a text.
func showing(selector, text string) string {
	return fmt.Sprintf("document.querySelector(%s)?.textContent.includes(%s)", quote(selector), quote(text))
}

// banByPenalty makes requests of a key until a penalty bans it.
func banByPenalty(t *testing.T, d *daemon, user string) {
	t.Helper()
	for range 9 {
		d.take(t, "user", user)
	}
	waitFor(t, "the key is banned", func() bool { return strings.Contains(d.logged(), "key banned by a penalty") })
}

func TestBannedKeyShowsItsBanWhichCanBeEnded(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules}, args...)
		banByPenalty(t, d, "42")
		tb := openTab(t)
		tb.show(t, d, "keys", "key", "42", "keyrule", "shop/user")
		tb.waitUntil(t, "the ban is shown", showing(".state header .tag.denied", "banned until "))
		text := tb.text(t, ".state")
		if !strings.Contains(text, "denied too often") || !strings.Contains(text, "ban of user=42") || tb.text(t, ".gauge") != "banned" || strings.Contains(text, "is full") {
			t.Errorf("the page shows of a banned key:\n%s", text)
		}
		if got := tb.ask(t, ".acts button[name=end]"); got != "This will end the ban of user=42 under shop/user: from now on the limit of the rule applies to it again." {
			t.Errorf("the page asks %q", got)
		}
		tb.yes(t, "OPS-7: our test", "Ended: ban of user=42.")
		tb.waitUntil(t, "the state of the key is shown", "/^\\d of 5 left$/.test(document.querySelector('.state [data-figure=remaining]')?.textContent)")
		tb.waitUntil(t, "the action is listed", showing(".audit .change", "ban → the rule"))
		if e, _ := d.audit(t); e.Action != "override.delete" || e.Reason != "OPS-7: our test" || e.Result != "done" {
			t.Errorf("the audit has %+v", e)
		}
		if got := tb.ask(t, ".note button[name=undo]"); !strings.HasPrefix(got, "This will deny every request of user=42 under shop/user, until ") {
			t.Errorf("the page asks %q", got)
		}
		tb.yes(t, "", "Set: ban for user=42 of shop/user.")
		tb.waitUntil(t, "the ban is shown again", showing(".state header .tag.denied", "banned until "))
		if e, _ := d.audit(t); e.Action != "override.set" || e.Reason != "undo: OPS-7: our test" || e.Result != "done" {
			t.Errorf("the audit has %+v", e)
		}
	})
}

func TestOverridesAreListedSetAndEnded(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules})
	tb := openTab(t)
	tb.show(t, d, "overrides")
	tb.waitUntil(t, "there is none", showing(".empty", "No overrides"))
	tb.ask(t, "button[name=set]")
	for name, text := range map[string]string{"rule": "shop/user", "key": "42", "limit": "600/1d", "for": "24h"} {
		tb.write(t, "dialog input[name="+name+"]", text)
	}
	if got := tb.text(t, "dialog .will"); got != "This will give 42 under shop/user the limit 600/1d, for 24h. Until now the limit of the rule applies." {
		t.Errorf("the page asks %q", got)
	}
	tb.yes(t, "plan pro", "Set: 600/1d for 42 of shop/user. in force on this daemon alone, and lost when it ends: only Redis shares overrides, and --data keeps them.")
	tb.waitUntil(t, "the override is listed", showing(".overrides tbody", "user=42"))
	if got := strings.Join(tb.texts(t, ".overrides tbody td:nth-child(-n+6)"), " "); !strings.HasPrefix(got, "shop/user user=42 600/1d ") || !strings.HasSuffix(got, " never plan pro") {
		t.Errorf("the page lists %q", got)
	}
	if !d.take(t, "user", "42") {
		t.Error("a request is denied")
	}
	tb.show(t, d, "keys", "key", "42")
	tb.waitUntil(t, "the override applies", showing(".state [data-figure=remaining]", "599 of 600 left"))
	tb.waitUntil(t, "the action is listed", showing(".audit .change", "the rule → 600/1d"))

	tb.show(t, d, "overrides", "filter", "none of them")
	tb.waitUntil(t, "the filter matches none", showing(".empty", "No override matches"))
	tb.show(t, d, "overrides", "filter", "PLAN")
	tb.waitUntil(t, "the filter matches it", showing(".overrides tbody", "user=42"))
	tb.ask(t, ".overrides button[name=end]")
	tb.yes(t, "downgrade", "Ended: 600/1d of user=42.")
	tb.waitUntil(t, "it is gone", "!document.querySelector('.overrides tbody tr')")
}

type override struct{ Limit, Until, Reason string }

// overrides returns those that the daemon lists.
func (d *daemon) overrides(t *testing.T) []override {
	t.Helper()
	var list struct{ Overrides []override }
	d.call(t, "GET", "/v1/overrides", &list)
	return list.Overrides
}

// Each change can be undone: what was set ends, and what was there before is set again, with its end.
func TestChangesOfOverridesAreUndone(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules}, args...)
		d.take(t, "user", "42")
		tb := openTab(t)
		tb.show(t, d, "keys", "key", "42", "keyrule", "shop/user")
		if got := tb.ask(t, ".acts button[name=ban]"); got != "This will deny every request of user=42 under shop/user, for 1h. Until now the limit of the rule applies." {
			t.Errorf("the page asks %q", got)
		}
		tb.write(t, "dialog input[name=reason]", "abuse")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the ban is shown", showing(".state header .tag.denied", "banned until "))
		if d.take(t, "user", "42") {
			t.Error("a banned key is allowed")
		}
		tb.ask(t, ".note button[name=undo]")
		tb.yes(t, "", "Ended: ban of user=42.")
		if !d.take(t, "user", "42") {
			t.Error("the key is still denied after the undo")
		}

		send(t, "PUT", d.url(t, "admin")+"/v1/overrides", `{"rule":"shop/user","key":"42","limit":"600/1d","until":"2199-01-02T03:04:05Z","reason":"plan pro"}`, nil)
		tb.show(t, d, "overrides")
		if got := tb.ask(t, ".overrides button[name=change]"); !strings.Contains(got, "Until now: 600/1d, until ") {
			t.Errorf("the page asks %q", got)
		}
		tb.write(t, "dialog input[name=limit]", "<b>/1d")
		tb.write(t, "dialog input[name=reason]", "wrong")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the limit is refused", "document.querySelector('dialog .problem').checkVisibility() && !document.querySelector('dialog .problem b')")
		tb.write(t, "dialog input[name=limit]", "700/1d")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the other limit is listed", showing(".overrides tbody", "700/1d"))
		if o := d.overrides(t); len(o) != 1 || o[0].Limit != "700/1d" || o[0].Until != "2199-01-02T03:04:05Z" {
			t.Errorf("after another limit alone there are %+v, want the same end", o)
		}
		tb.ask(t, ".overrides button[name=change]")
		tb.write(t, "dialog input[name=limit]", "unlimited")
		tb.write(t, "dialog input[name=for]", "10m")
		tb.write(t, "dialog input[name=reason]", "a sale")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the other limit is listed", showing(".overrides tbody", "unlimited"))
		if got := tb.ask(t, ".note button[name=undo]"); !strings.HasPrefix(got, "This will give user=42 under shop/user the limit 700/1d, until ") {
			t.Errorf("the page asks %q", got)
		}
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the former limit is listed", showing(".overrides tbody", "700/1d"))
		if o := d.overrides(t); len(o) != 1 || o[0].Limit != "700/1d" || o[0].Until != "2199-01-02T03:04:05Z" || o[0].Reason != "undo: a sale" {
			t.Errorf("after the undo there are %+v", o)
		}
	})
}

// Actions need a daemon that allows them.
func TestReadOnlyPageChangesNoOverrides(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules}, "--admin-actions=false")
	banByPenalty(t, d, "42")
	tb := openTab(t)
	for _, view := range []string{"overrides", "keys"} {
		tb.show(t, d, view, "key", "42", "keyrule", "shop/user")
		tb.waitUntil(t, "the ban is shown", "document.querySelector('.view .tag.denied')")
		if evaluate[bool](t, tb, "[...document.querySelectorAll('.acts, .acts *')].some((e) => e.checkVisibility())") {
			t.Errorf("%s has buttons for actions", view)
		}
	}
}

// A value alone is shown under the rules where something is known of it; others are folded away.
func TestBareValueIsFoundAmongManyRules(t *testing.T) {
	many := "domain: many\ndescriptors:\n"
	for i := range 60 {
		many += fmt.Sprintf("  - {key: k%02d, limit: 5/1h}\n", i)
	}
	d := startDaemon(t, map[string]string{"many.yaml": many, "shop.yaml": penaltyRules})
	d.take(t, "user", "ada")
	tb := openTab(t)
	tb.show(t, d, "keys", "key", "ada")
	tb.waitUntil(t, "the key is found", "document.querySelector('.state')")
	visible := evaluate[[]string](t, tb, "[...document.querySelectorAll('.state')].filter((e) => e.checkVisibility()).map((e) => e.querySelector('strong').textContent)")
	if len(visible) != 1 || visible[0] != "shop/user" {
		t.Errorf("states of %q are shown, want shop/user alone", visible)
	}
	if got := tb.text(t, ".results > .folded"); got != "Nothing is charged to it under 31 rules and more" {
		t.Errorf("the others are summed up as %q", got)
	}
}

// Keys that differ only in spaces differ on the page.
func TestSpacesInKeysAreShown(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules})
	d.take(t, "user", "")
	d.take(t, "user", "   ")
	tb := openTab(t)
	tb.show(t, d, "keys")
	tb.waitUntil(t, "both are listed", "document.querySelectorAll('[data-ranking=asked] .key').length === 2")
	if got := strings.Join(tb.texts(t, "[data-ranking=asked] .key"), " "); !strings.Contains(got, "user=U+0020U+0020U+0020") || strings.Count(got, "U+0020") != 3 {
		t.Errorf("the page lists %q", got)
	}
}

func TestRulesShowWhatTheFileSays(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules})
	tb := openTab(t)
	tb.show(t, d, "rules", "domain", "shop", "entries", "user=42")
	want := " penalty 3/1m → 10m settle keep_free 30settle id request_id"
	if got := strings.Join(tb.texts(t, ".tree .settings"), " "); got != want {
		t.Errorf("the settings are %q, want %q", got, want)
	}
	if evaluate[bool](t, tb, "((e) => e.scrollWidth > e.clientWidth)(document.querySelector('.explanation'))") {
		t.Errorf("the explanation is cut off:\n%s", tb.text(t, ".explanation"))
	}
}
