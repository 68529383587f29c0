package pagetest_test

import (
	"strings"
	"testing"
)

type auditEntry struct {
	Action string `json:"action"`
	Actor  struct {
		Via     string `json:"via"`
		Address string `json:"address"`
	} `json:"actor"`
	Target struct {
		Rule string `json:"rule"`
		Key  string `json:"key"`
	} `json:"target"`
	Before *auditState `json:"before"`
	After  *auditState `json:"after"`
	Units  int64       `json:"units"`
	Reason string      `json:"reason"`
	Result string      `json:"result"`
	Node   string      `json:"node"`
}

type auditState struct {
	Remaining int64 `json:"remaining"`
}

// audit returns the newest entry and the number of all.
func (d *daemon) audit(t *testing.T) (newest auditEntry, n int) {
	t.Helper()
	var log struct {
		Entries []auditEntry `json:"entries"`
	}
	d.call(t, "GET", "/v1/audit", &log)
	if len(log.Entries) > 0 {
		newest = log.Entries[0]
	}
	return newest, len(log.Entries)
}

func (d *daemon) remaining(t *testing.T) int64 {
	t.Helper()
	var state struct {
		Decision struct {
			Remaining int64 `json:"remaining"`
		} `json:"decision"`
	}
	d.call(t, "GET", "/v1/keys?rule=shop/user&key=42", &state)
	return state.Decision.Remaining
}

// waitForState waits until the inspector and the daemon agree on what is left of a key.
func (tb *tab) waitForState(t *testing.T, d *daemon, text string, remaining int64) {
	t.Helper()
	tb.waitUntil(t, "the page shows "+text, "document.querySelector('.state [data-figure=remaining]')?.textContent === "+quote(text))
	if got := d.remaining(t); got != remaining {
		t.Errorf("/v1/keys says that %d remain, the page %q", got, text)
	}
}

// waitForNote waits until the page says that an action was carried out, which is on record then.
// The state may show it before.
func (tb *tab) waitForNote(t *testing.T, text string) {
	t.Helper()
	tb.waitUntil(t, "the page says "+text, "document.querySelector('.done')?.checkVisibility() && document.querySelector('.done').textContent === "+quote(text))
}

// ask presses the button of an action, and waits until the page asks about it. It returns the question.
func (tb *tab) ask(t *testing.T, button string) string {
	t.Helper()
	tb.waitUntil(t, "there is a button "+button, "document.querySelector("+quote(button)+")?.checkVisibility()")
	tb.click(t, button)
	tb.waitUntil(t, "the page asks", "document.querySelector('dialog[open]')")
	return tb.text(t, "dialog .will")
}

// yes answers the question of a dialog with a reason, and waits until the page says what was done.
func (tb *tab) yes(t *testing.T, reason, note string) {
	t.Helper()
	if reason != "" {
		tb.write(t, "dialog input[name=reason]", reason)
	}
	tb.click(t, "dialog button[name=yes]")
	tb.waitForNote(t, note)
	tb.waitUntil(t, "the dialog is closed", "!document.querySelector('dialog')")
}

func TestActionsNeedAReason(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, append(args, "--audit-log", t.TempDir()+"/audit.log")...)
		for range 6 {
			d.take(t, "user", "42")
		}
		tb := openTab(t)
		tb.show(t, d, "keys", "key", "42", "keyrule", "shop/user")
		tb.waitForState(t, d, "0 of 5 left", 0)

		if got := tb.ask(t, ".acts button[name=reset]"); got != "This will refund all that is charged to user=42 under shop/user. Now: 0 of 5 left; then nothing is charged. It cannot be undone." {
			t.Errorf("the page asks %q", got)
		}
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "a reason is asked for", "document.querySelector('dialog .problem').checkVisibility()")
		tb.click(t, "dialog button[name=no]")
		tb.waitUntil(t, "the dialog is closed", "!document.querySelector('dialog')")
		if _, n := d.audit(t); n != 0 || d.remaining(t) != 0 {
			t.Errorf("without a reason: %d entries in the audit, %d units remain; want nothing done", n, d.remaining(t))
		}
		if status := d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=42", nil); status != 400 {
			t.Errorf("DELETE without a reason: %d, want 400", status)
		}
		if e, n := d.audit(t); n != 1 || e.Result != "refused" || e.Action != "key.reset" || d.remaining(t) != 0 {
			t.Errorf("the refused attempt: %+v, %d entries; want it on record, and nothing done", e, n)
		}

		tb.ask(t, ".acts button[name=refund]")
		tb.write(t, "dialog input[name=units]", "2")
		if got := tb.text(t, "dialog .will"); got != "This will refund up to 2 units to user=42 under shop/user. Now: 0 of 5 left. It cannot be undone." {
			t.Errorf("the page asks %q", got)
		}
		tb.yes(t, "OPS-1: half of it", "Refunded: 2 of 5 left.")
		tb.waitForState(t, d, "2 of 5 left", 2)
		d.checkAudit(t, auditEntry{Action: "key.refund", Reason: "OPS-1: half of it", Units: 2}, 0, 2)

		tb.ask(t, ".acts button[name=reset]")
		tb.yes(t, "OPS-2: <b>all</b> of it", "Reset: 5 of 5 left.")
		tb.waitForState(t, d, "5 of 5 left", 5)
		d.checkAudit(t, auditEntry{Action: "key.reset", Reason: "OPS-2: <b>all</b> of it", Units: 3}, 2, 5)
		tb.waitUntil(t, "the page lists all three", "document.querySelectorAll('.audit tbody tr').length === 3")
		if got := tb.texts(t, ".audit .reason"); got[0] != "OPS-2: <b>all</b> of it" || got[1] != "OPS-1: half of it" {
			t.Errorf("the page lists the reasons %q", got)
		}
	})
}

// checkAudit checks the newest entry of the audit.
func (d *daemon) checkAudit(t *testing.T, want auditEntry, before, after int64) {
	t.Helper()
	e, _ := d.audit(t)
	if e.Action != want.Action || e.Result != "done" || e.Reason != want.Reason || e.Units != want.Units || e.Node == "" ||
		e.Actor.Via != "local" || !strings.HasPrefix(e.Actor.Address, "127.0.0.1") || e.Target.Rule != "shop/user" || e.Target.Key != "user=42" {
		t.Errorf("the audit has %+v, want %+v", e, want)
	}
	if e.Before == nil || e.After == nil || e.Before.Remaining != before || e.After.Remaining != after {
		t.Errorf("the audit has %+v before and %+v after, want %d and %d", e.Before, e.After, before, after)
	}
}

func TestReadOnlyPageHasNoActions(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, append(args, "--admin-actions=false")...)
		d.take(t, "user", "42")
		tb := openTab(t)
		tb.show(t, d, "keys", "key", "42", "keyrule", "shop/user")
		tb.waitForState(t, d, "4 of 5 left", 4)
		if evaluate[bool](t, tb, "[...document.querySelectorAll('.acts, .acts *')].some((e) => e.checkVisibility())") {
			t.Error("there are buttons for actions")
		}
		for _, method := range []string{"POST", "DELETE"} {
			if status := d.call(t, method, "/v1/keys?rule=shop/user&key=42&reason=r", nil); status != 403 {
				t.Errorf("%s: %d, want 403", method, status)
			}
		}
		if e, n := d.audit(t); n != 2 || e.Result != "refused" || d.remaining(t) != 4 {
			t.Errorf("audit: %+v of %d, %d remain; want both refused", e, n, d.remaining(t))
		}
	})
}

// The name of a limit in requests is a part of what identifies its state, as that of CL.THROTTLE's.
func TestActionsOnKeyOfNamedLimit(t *testing.T) {
	const limit = `3/1h name="log\"in now"`
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, append(args, "--audit-log", t.TempDir()+"/audit.log")...)
		for range 4 {
			d.takeLimit(t, "ann", limit)
		}
		tb := openTab(t)
		tb.show(t, d, "keys", "by", "denied")
		tb.waitUntil(t, "the key is listed", "document.querySelector('[data-ranking=denied] a.rank')")
		tb.click(t, "[data-ranking=denied] a.rank")
		tb.waitUntil(t, "the page shows what is left", "document.querySelector('.state [data-figure=remaining]')?.textContent === '0 of 3 left'")
		tb.waitUntil(t, "the page shows what was denied", "[...document.querySelectorAll('.state dt')].some((e) => e.textContent === 'Denied lately')")
		if got := tb.text(t, ".state header code"); got != "3/1h" {
			t.Errorf("the page shows the limit %q, want it without its name", got)
		}
		tb.ask(t, ".acts button[name=reset]")
		tb.yes(t, "OPS-3", "Reset: 3 of 3 left.")
		if e, _ := d.audit(t); e.Units != 3 {
			t.Errorf("the audit has %+v, want 3 units", e)
		}
		if !d.takeLimit(t, "ann", limit) {
			t.Error("a request is denied after the reset")
		}
	})
}

// What was taken under an ID is settled at what was used, where the rule allows it.
func TestTakesAreSettled(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": penaltyRules}, args...)
		send(t, "POST", d.url(t, "http")+"/v1/take", `{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"acme"}]}],"cost":60,"id":"b81c"}`, nil)
		d.take(t, "user", "42")
		tb := openTab(t)
		tb.show(t, d, "keys", "key", "acme", "keyrule", "shop/tenant")
		tb.waitUntil(t, "the take is charged", showing(".state [data-figure=remaining]", "40 of 100 left"))
		tb.ask(t, ".acts button[name=settle]")
		if !evaluate[bool](t, tb, "document.querySelector('dialog [name=yes]').disabled") {
			t.Error("without an ID, there is a Yes")
		}
		tb.write(t, "dialog input[name=id]", "other")
		tb.write(t, "dialog input[name=units]", "25")
		tb.write(t, "dialog input[name=reason]", "worker died")
		tb.click(t, "dialog button[name=yes]")
		tb.waitUntil(t, "the ID is unknown", showing("dialog .problem", "nothing was taken under this ID"))
		tb.write(t, "dialog input[name=id]", "b81c")
		if got := tb.text(t, "dialog .will"); !strings.HasPrefix(got, "This will make the take b81c from tenant=acme under shop/tenant cost 25 units: ") {
			t.Errorf("the page asks %q", got)
		}
		tb.yes(t, "", "Settled: 75 of 100 left.")
		tb.waitUntil(t, "the action is listed", showing(".audit .change", "40 → 75"))
		if e, _ := d.audit(t); e.Action != "key.settle" || e.Reason != "worker died" || e.Result != "done" {
			t.Errorf("the audit has %+v", e)
		}
		tb.show(t, d, "keys", "key", "42", "keyrule", "shop/user")
		tb.waitUntil(t, "the key is shown", showing(".state [data-figure=remaining]", "4 of 5 left"))
		if evaluate[bool](t, tb, "document.querySelector('.acts button[name=settle]') !== null") {
			t.Error("a rule without settle has a button to settle")
		}
	})
}

// An answer about one rule that comes after another was chosen is not shown.
func TestLateAnswerAboutAnotherRuleIsNotShown(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	d.take(t, "user", "42")
	d.take(t, "api", "7")
	tb := openTab(t)
	tb.show(t, d, "keys", "rule", "shop/user")
	evaluate[bool](t, tb, `
		window.held = []; window.isHeld = (url) => url.includes('v1/top') && url.includes('by=asked') && url.includes('user'); window.others = 0;
		const next = window.fetch;
		window.fetch = async (url, ...more) => {
			if (!String(url).includes('v1/top')) window.others++;
			const response = await next(url, ...more);
			if (window.isHeld(String(url))) await new Promise((release) => held.push(release));
			return response;
		};
		true`)
	tb.waitUntil(t, "an answer about the first rule is held", "held.length >= 1")
	const shown = "[...document.querySelectorAll('[data-ranking=asked] .rank-rule')].map((e) => e.textContent).join()"
	follow[bool](t, tb, link("", "keys", "rule", "shop/api"), shown+" === 'shop/api'", "true")
	evaluate[bool](t, tb, "window.isHeld = (url) => url.includes('v1/top') && url.includes('by=asked'); true") // or else the next poll would mend what is shown
	tb.waitUntil(t, "all requests in flight are held", "inFlight === held.length")
	evaluate[bool](t, tb, "window.others = 0; held[0](); true")
	tb.waitUntil(t, "the poll goes on", "others > 0")
	if got := evaluate[string](t, tb, shown); got != "shop/api" {
		t.Errorf("the page shows keys of %q, want those of the rule that was chosen", got)
	}
}
