package pagetest_test

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

// speak makes the browser of a tab ask for languages.
func (tb *tab) speak(t *testing.T, languages string) {
	t.Helper()
	agent := evaluate[string](t, tb, "navigator.userAgent")
	must(tb.ctx, t, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: agent, AcceptLanguage: languages})
}

// foreign returns the visible texts, titles, labels and placeholders with English punctuation beside a Chinese character,
// or with a word of Latin letters that is neither data, nor code, nor one of the words that Chinese engineers write so.
const foreign = `(() => {
	const terms = new Set(['penstock', 'key', 'Key', 'EN', 'Redis', 'PostgreSQL', 'MySQL', 'SQLite', 'gzip', 'JSON', 'ID', 'RetryAfter', 'domain', 'ban', 'unlimited', 'p50', 'p90', 'p99', 'KB', 'MB', 'GB',
		'http', 'admin', 'resp', 'grpc', 'on_store_failure', 'local', 'user', 'rules', 'top', 'keys', 'tenant', 'Shard', 'home', 'align', 'zone', 'penalty']);
	const data = 'code, pre, .key, .mono, option, .rule-link, .daemon, .explanation, .reason, .where, .node, .rank-rule, .state strong, .lane-name strong, .lane-picture, .chip.mono, .sub, .settings, .change, .daemons td, .overrides td:first-child, .summary, .detail, .assumed, .will b, .candidate strong, .keep, #language';
	const found = [];
	const check = (text, e) => {
		const latin = (text.match(/[A-Za-z][A-Za-z_]+/g) ?? []).filter((w) => !terms.has(w));
		if (latin.length > 0 || /\p{sc=Han}[,:;]|[^ ][,:;.] ?\p{sc=Han}/u.test(text)) found.push(e.tagName + '.' + (e.className.baseVal ?? e.className) + ': ' + text.slice(0, 80));
	};
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement;
		if (e.checkVisibility() && !e.closest(data) && !e.closest('noscript')) check(walker.currentNode.data, e);
	}
	for (const e of document.querySelectorAll('[title], [placeholder], [aria-label]')) {
		for (const name of ['title', 'placeholder', 'aria-label']) if (e.hasAttribute(name) && !e.closest('code, .key, .mono, .settings, .where, textarea, svg')) check(e.getAttribute(name), e);
	}
	return [...new Set(found)];
})()`

// Every view, dialog and empty list of the page is Chinese in a Chinese browser.
func TestPageSpeaksChinese(t *testing.T) {
	d := fill(t)
	empty := startDaemon(t, nil, "--rules", "")
	tb := openTab(t)
	tb.speak(t, "zh-CN,zh;q=0.9,en;q=0.8")
	check := func(where string) {
		t.Helper()
		if found := evaluate[[]string](t, tb, foreign); len(found) > 0 {
			t.Errorf("%s has texts that are not Chinese:\n%s", where, strings.Join(found, "\n"))
		}
	}
	for _, view := range viewNames {
		tb.showFull(t, d, view)
		check(view)
		tb.visit(t, link(empty.url(t, "admin"), view))
		tb.waitUntil(t, view+" of a daemon without rules is shown", "document.querySelector('.view-"+view+"') && document.getElementById('status').dataset.state === 'up'")
		check(view + " without rules")
	}
	if got := evaluate[string](t, tb, "document.documentElement.lang + ' ' + document.title"); got != "zh-CN 模拟器 · penstock" {
		t.Errorf("the page says that it is %q", got)
	}
	tb.show(t, d, "keys", "key", "3", "keyrule", "shop/user")
	for _, button := range []string{"override", "ban", "refund", "reset"} {
		if got := tb.ask(t, ".acts button[name="+button+"]"); button != "override" && !strings.Contains(got, "此操作将") {
			t.Errorf("%s asks %q", button, got)
		}
		check("the question of " + button)
		tb.click(t, "dialog button[name=no]")
		tb.waitUntil(t, "the dialog is closed", "!document.querySelector('dialog')")
	}
	tb.ask(t, ".acts button[name=refund]")
	tb.yes(t, "OPS-1", "已退还：剩余 1 / 5。")
	check("the note about a refund")
	tb.visit(t, link(d.url(t, "admin"), "simulator", "traffic", "log"))
	tb.waitUntil(t, "there is no log yet", "document.querySelector('.log-lanes .empty')")
	check("the log of the simulator")
}

func TestLanguageIsTheBrowsersOrTheChosenOne(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	for languages, want := range map[string]string{"zh-TW": "实时", "fr,zh-CN": "实时", "en-US,zh": "Live", "fr": "Live"} {
		tb := openTab(t)
		tb.speak(t, languages)
		tb.show(t, d, "live")
		if got := tb.text(t, ".tabs a"); got != want {
			t.Errorf("a browser that asks for %s sees %q, want %q", languages, got, want)
		}
	}
	tb := openTab(t)
	tb.show(t, d, "live", "window", "1h")
	for _, want := range []string{"实时", "Live", "实时"} {
		tb.click(t, "#language")
		tb.waitUntil(t, "the page is in the other language", showing(".tabs a", want)+" && "+views["live"])
	}
	tb.visit(t, d.url(t, "admin")+"/?again#/live")
	tb.waitUntil(t, "the choice is remembered", showing(".tabs a", "实时"))
}
