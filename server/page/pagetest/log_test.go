package pagetest_test

import (
	"fmt"
	"strings"
	"testing"
)

// scraperLog is a log in which one client sends a request every second, and another four.
func scraperLog() string {
	var b strings.Builder
	for i := range 300 {
		at := fmt.Sprintf("[02/Mar/2026:09:%02d:%02d +0000]", i/60, i%60)
		fmt.Fprintf(&b, "198.51.100.7 - - %s \"GET / HTTP/1.1\" 200 12 \"-\" \"-\"\n", at)
		b.WriteString(strings.Repeat(fmt.Sprintf("203.0.113.9 - <b> %s \"GET /<img src=x onerror=window.pwned=1> HTTP/1.1\" 200 12 \"-\" \"-\"\n", at), 4))
	}
	return b.String()
}

// drop drops a file on the view, as a user would.
func (tb *tab) drop(t *testing.T, name, text string) {
	t.Helper()
	evaluate[bool](t, tb, fmt.Sprintf(`(() => {
		const dataTransfer = new DataTransfer();
		dataTransfer.items.add(new File([%s], %s));
		for (const kind of ['dragover', 'drop']) {
			const event = new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true });
			if (document.querySelector('.controls').dispatchEvent(event)) throw new Error('the browser would open the file');
		}
		return true;
	})()`, quote(text), quote(name)))
}

// waitForLog waits until a log was simulated with the parameters of a query.
func (tb *tab) waitForLog(t *testing.T, query string) {
	t.Helper()
	tb.waitUntil(t, "the log is simulated", "document.querySelector('.log-lanes')?.dataset.ready === "+quote(query))
}

func TestSimulatorTakesADroppedLog(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "simulator", "limit", "120/1m")
	tb.drop(t, "access.log", scraperLog())
	tb.waitForLog(t, "limit=120%2F1m&by=remote_address")
	if got := tb.text(t, ".log-lanes .about span"); !strings.HasPrefix(got, "1,500 requests of access.log, 4 min 59 s from ") {
		t.Errorf("the log is shown as %q", got)
	}
	lanes := tb.texts(t, ".log-lanes .lane-name strong")
	keys := tb.texts(t, ".log-lanes [data-figure=keys]")
	if len(lanes) != 6 || strings.Join(keys, ", ") != strings.Repeat("1 of 2, ", 5)+"1 of 2" {
		t.Errorf("lanes %q deny keys %q, want six that deny the scraper alone", lanes, keys)
	}
	for _, key := range tb.texts(t, ".log-keys .key") {
		if key != "remote_address=203.0.113.9" {
			t.Errorf("%q is denied", key)
		}
	}
	if !strings.Contains(strings.Join(tb.texts(t, ".assumed li"), "\n"), "whole seconds") {
		t.Error("the page does not say what was assumed")
	}

	// Other limits beside it, and another key, which is hostile.
	tb.write(t, "input[name=others]", "240/1m; 60/1m sliding-log")
	tb.waitForLog(t, "limit=120%2F1m&limit=240%2F1m&limit=60%2F1m+sliding-log&by=remote_address")
	if got := strings.Join(tb.texts(t, ".log-lanes .lane-name code"), ", "); got != "120/1m, 240/1m, 60/1m sliding-log" {
		t.Errorf("the limits beside each other are %q", got)
	}
	evaluate[bool](t, tb, "(() => { const s = document.querySelector('select[name=by]'); s.value = 'path'; s.dispatchEvent(new Event('change')); return true })()")
	tb.waitForLog(t, "limit=120%2F1m&limit=240%2F1m&limit=60%2F1m+sliding-log&by=path")
	if got := tb.texts(t, ".log-keys .key"); len(got) == 0 || got[0] != `path=/<img src\=x onerror\=window.pwned\=1>` || evaluate[bool](t, tb, "'pwned' in window") || evaluate[int](t, tb, "document.images.length") != 0 {
		t.Errorf("hostile paths are shown as %q", got)
	}

	// What is no log, or too large, is an error, and nothing is sent of the latter.
	tb.drop(t, "cat.png", "\x89PNG no log\n")
	tb.waitUntil(t, "the file is refused", showing(".controls .problem", "no line is one of a known access log"))
	evaluate[bool](t, tb, `(() => {
		const dataTransfer = new DataTransfer();
		dataTransfer.items.add(new File([new Uint8Array(33 << 20)], 'large.log'));
		document.querySelector('.controls').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
		return true;
	})()`)
	tb.waitUntil(t, "the large file is refused", showing(".controls .problem", "large.log has 33.0 MB: want at most 32.0 MB"))
	tb.drop(t, "access.log", scraperLog())
	tb.waitUntil(t, "the next log is simulated", "!document.querySelector('.controls .problem').checkVisibility()")
	tb.show(t, d, "simulator", "limit", "10/1s", "traffic", "edge")
	if evaluate[bool](t, tb, "document.querySelector('.log-lanes').checkVisibility() || !document.querySelector('.lanes').checkVisibility()") {
		t.Error("another traffic does not show its own lanes")
	}
	if found := evaluate[[]string](t, tb, "violations"); len(found) > 0 {
		t.Errorf("violations of the content security policy: %q", found)
	}
}

// A recording is counted by a rule of the daemon.
func TestSimulatorTakesARecording(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.visit(t, link(d.url(t, "admin"), "simulator", "limit", "5/1m", "traffic", "log"))
	tb.waitUntil(t, "rules can be chosen", "[...document.querySelectorAll('select[name=by] option')].some((o) => o.value === 'rule shop/user')")
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, "%d\tallowed\tshop\t1\tuser=%d\n", 1767225600000000000+int64(i)*1e6, i%2)
	}
	tb.drop(t, "day.recording", b.String())
	tb.waitUntil(t, "a rule is asked for", showing(".controls .problem", "choose a rule"))
	evaluate[bool](t, tb, "(() => { const s = document.querySelector('select[name=by]'); s.value = 'rule shop/user'; s.dispatchEvent(new Event('change')); return true })()")
	tb.waitForLog(t, "limit=5%2F1m&rule=shop%2Fuser")
	if got := tb.texts(t, ".log-lanes [data-figure=denied]")[0]; got != "10 · 50%" {
		t.Errorf("token-bucket denies %q", got)
	}
}
