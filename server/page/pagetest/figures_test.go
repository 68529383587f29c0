package pagetest_test

import "testing"

func TestLiveShowsLatencyAndRatesOfBansAndUnmatched(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, "--audit-log", t.TempDir()+"/audit.log")
	send(t, "PUT", d.url(t, "admin")+"/v1/overrides", `{"rule":"shop/user","key":"7","limit":"ban","reason":"test"}`, nil)
	tb := openTab(t)
	tb.show(t, d, "live")
	tb.waitUntil(t, "the totals are shown", showing("[data-total=banned]", "0"))
	for range 20 {
		d.take(t, "user", "7")
		d.take(t, "nobody", "7")
	}
	for _, name := range []string{"banned", "unmatched"} {
		tb.waitUntil(t, "the rate is shown: "+name, "/^, [0-9.]+\\/s$/.test(document.querySelector('[data-rate="+name+"]').textContent)")
	}
	tb.waitUntil(t, "the latency is shown", "/^p99 of http, over 2 min$/.test(document.querySelector('[data-figure=latency] .figure-note').textContent)")
}

// The windows of a calendar begin at times of the clock, so the axis shows these.
func TestSimulatorShowsTheClockOfACalendar(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	for limit, want := range map[string]string{"5/day zone=Asia/Shanghai fixed-window": "12:00 18:00 00:00", "5/24h fixed-window": "0 s 6 h 12 h"} {
		tb.show(t, d, "simulator", "limit", limit, "traffic", "edge")
		tb.waitUntil(t, "the axis of "+limit+" is drawn",
			"[...document.querySelectorAll('.lane-axis .tick')].slice(0, 3).map((e) => e.textContent).join(' ') === "+quote(want))
	}
}

func TestAuditResultUnknownIsNotPlain(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "keys")
	evaluate[bool](t, tb, `
		const entries = [{ id: 'x', time: '2026-03-02T09:00:00Z', action: 'override.set', api: 'admin', result: 'unknown' }], next = window.fetch;
		window.fetch = async (url, ...more) => (String(url).includes('v1/audit') ? new Response(JSON.stringify({ entries })) : next(url, ...more));
		true`)
	tb.waitUntil(t, "the result has a color", "document.querySelector('.audit .tag.warn')?.textContent === 'unknown'")
}
