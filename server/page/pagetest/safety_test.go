package pagetest_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// views are all views, each with an expression that is true once it shows data.
var views = map[string]string{
	"live":      `document.querySelector('.view-live')?.dataset.time`,
	"keys":      `document.querySelector('.view-keys')?.dataset.time && document.querySelector('select[name=rule]').length > 3`,
	"overrides": "document.querySelector('.view-overrides')?.dataset.ready",
	"rules":     `document.querySelector('.view-rules')?.dataset.ready && document.querySelector('.explanation').dataset.ready`,
	"simulator": `document.querySelector('.lanes')?.dataset.ready && document.querySelector('.lane')`,
}

var viewNames = []string{"live", "keys", "overrides", "rules", "simulator"}

// show opens a view and waits until it shows data.
func (tb *tab) show(t *testing.T, d *daemon, view string, parameters ...string) {
	t.Helper()
	tb.visit(t, link(d.url(t, "admin"), view, parameters...))
	tb.waitUntil(t, view+" shows data", views[view])
}

func TestPageBreaksNoPolicy(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, args...)
		d.take(t, "user", "42")
		tb := openTab(t)
		for _, view := range viewNames {
			tb.show(t, d, view)
		}
		tb.show(t, d, "keys", "key", "user=42")
		if found := evaluate[[]string](t, tb, "violations"); len(found) > 0 {
			t.Errorf("violations of the content security policy: %q", found)
		}
		if found := tb.seen(&tb.console); len(found) > 0 {
			t.Errorf("on the console: %q", found)
		}
		for _, u := range tb.seen(&tb.requests) {
			if !strings.HasPrefix(u, d.url(t, "admin")+"/") {
				t.Errorf("a request to another site: %s", u)
			}
		}
		if found := tb.seen(&tb.cookies); len(found) > 0 || evaluate[string](t, tb, "document.cookie") != "" {
			t.Errorf("cookies: %q", found)
		}
	})
}

// The policy turns a mistake in the page's scripts into an error.
func TestPageRefusesHTMLFromScripts(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "live")
	for _, code := range []string{
		`document.body.innerHTML = '<b>x</b>'`, `document.body.insertAdjacentHTML('beforeend', '<b>x</b>')`,
		`document.createElement('script').text = '1'`, `trustedTypes.createPolicy('p', {})`,
	} {
		name := evaluate[string](t, tb, "(() => { try { "+code+"; return 'no error' } catch (e) { return e.name } })()")
		if name != "TypeError" {
			t.Errorf("%s: %s, want TypeError", code, name)
		}
	}
}

// Keys are chosen by remote callers. One that is HTML is shown as what it is, in its rank,
// and the totals are those of /metrics.
func TestPageShowsTotalsAndHostileKeys(t *testing.T) {
	const hostile = "<img src=x onerror=window.pwned=1>"
	onEachStore(t, func(t *testing.T, args ...string) {
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, args...)
		tb := openTab(t)
		tb.show(t, d, "live")
		allowed := 0
		for range 150 {
			if d.takeLimit(t, hostile, "50/1h fixed-window") {
				allowed++
			}
		}
		for i := range 150 {
			if d.take(t, "api", string(rune('a'+i%10))) {
				allowed++
			}
		}
		begin := time.Now()
		if allowed != 200 {
			t.Fatalf("%d of 300 requests were allowed, want 200", allowed)
		}
		tb.waitUntil(t, "the totals are shown", `document.querySelector('[data-total=allowed]').textContent === '200' &&
			document.querySelector('[data-total=denied]').textContent === '100'`)
		t.Logf("the totals were shown after %v", time.Since(begin).Round(time.Millisecond))
		for outcome, want := range map[string]int{"allowed": 200, "denied": 100} {
			if got := d.decisions(t, outcome); got != want {
				t.Errorf("/metrics has %d %s, the page %d", got, outcome, want)
			}
		}
		for _, ranking := range []string{"asked", "denied"} {
			tb.show(t, d, "keys", "by", ranking)
			first := "[data-ranking=" + ranking + "] li:first-child "
			tb.waitUntil(t, "the key is shown", "document.querySelector("+quote(first+".key")+")")
			if got := tb.texts(t, first+".key"); got[0] != hostile {
				t.Errorf("first of the %s keys: %q, want %q", ranking, got[0], hostile)
			}
			for by, count := range map[string]string{"asked": "150", "denied": "100"} {
				tb.waitUntil(t, "its count is shown", "document.querySelector("+quote(first+"[data-count="+by+"] b")+").textContent === "+quote(count))
			}
		}
		tb.click(t, "[data-ranking=denied] li:first-child a")
		tb.waitUntil(t, "the key is inspected", "document.querySelector('.state [data-figure=remaining]')?.textContent === '0 of 50 left'")
		if got := tb.texts(t, ".state .key"); !slices.Equal(got, []string{hostile}) {
			t.Errorf("inspected keys %q, want %q", got, hostile)
		}
		if evaluate[bool](t, tb, "'pwned' in window") || evaluate[int](t, tb, "document.images.length") != 0 {
			t.Error("the key was read as HTML")
		}
	})
}

// Off loopback the files are open, and data need the token, which stays in this tab.
func TestPageAsksForTheToken(t *testing.T) {
	const token = "correct-horse-battery-staple"
	onEachStore(t, func(t *testing.T, args ...string) {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, append(args, "--admin", "0.0.0.0:0", "--token-file", file, "--log-level", "debug")...)
		base := offLoopback(t, d.url(t, "admin"))
		for _, path := range []string{"/v1/live", "/v1/top", "/v1/inspect?key=42", "/v1/audit", "/rules", "/v1/keys?rule=shop/user&key=42", "/v1/explain?domain=shop&user=42"} {
			if status := send(t, "GET", base+path, "", nil); status != 401 {
				t.Errorf("%s without the token: %d, want 401", path, status)
			}
		}
		tb := openTab(t)
		tb.visit(t, link(base, "live", "window", "1h"))
		tb.waitUntil(t, "the token is asked for", "document.querySelector('input[name=token]')")
		tb.write(t, "input[name=token]", "wrong")
		tb.click(t, ".unlock button")
		tb.waitUntil(t, "the token is refused", "document.querySelector('.unlock .problem')")
		tb.write(t, "input[name=token]", token)
		tb.click(t, ".unlock button")
		tb.waitUntil(t, "data are shown", views["live"])
		for _, view := range viewNames {
			tb.visit(t, link(base, view))
			tb.waitUntil(t, view+" shows data", views[view])
		}
		if got := evaluate[string](t, tb, "JSON.stringify(localStorage) + document.cookie + location.href"); strings.Contains(got, token) {
			t.Errorf("the token is kept in %s", got)
		}
		for _, u := range tb.seen(&tb.requests) {
			if strings.Contains(u, token) {
				t.Errorf("the token is in the URL %s", u)
			}
		}
		if strings.Contains(d.logged(), token) {
			t.Error("the token is in the log")
		}
		tb.click(t, "#lock")
		tb.waitUntil(t, "the token is asked for again", "document.querySelector('input[name=token]')")
	})
}

// offLoopback returns a URL of this machine by an address that other machines reach, if it
// has one.
func offLoopback(t *testing.T, base string) string {
	t.Helper()
	port := base[strings.LastIndex(base, ":"):]
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
			return "http://" + ip.IP.String() + port
		}
	}
	return "http://127.0.0.1" + port
}

func TestPageDoesNotPollWhileHidden(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "live")
	hide := func(hidden string) {
		evaluate[bool](t, tb, "(() => { pretendHidden = "+hidden+"; document.dispatchEvent(new Event('visibilitychange')); return true })()")
	}
	count := func() int { return len(tb.seen(&tb.requests)) }
	hide("true")
	before := -1
	waitFor(t, "the last poll ends", func() bool {
		last := before
		before = count()
		<-time.After(1500 * time.Millisecond) // longer than the time between two polls
		return last == before
	})
	hide("false")
	waitFor(t, "polling resumes", func() bool { return count() > before+2 })
}

// A page polls and never holds a request open, so it does not delay a shutdown: one that did would
// delay it for the whole grace. Nor do the connections that a browser keeps open between polls: the
// daemon closes them after it has answered what they have sent, and ends without an error, as it
// does without a page.
func TestShutdownDoesNotWaitForPages(t *testing.T) {
	onEachStore(t, func(t *testing.T, args ...string) {
		args = append(args, "--shutdown-grace", "24h", "--shutdown-delay", "0s")
		for _, pages := range []int{0, 5} {
			d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, args...)
			for range pages {
				tb := openTab(t)
				tb.show(t, d, "live")
				first := tb.polls()
				waitFor(t, "the page polls", func() bool { return tb.polls() > first+1 })
			}
			begin := time.Now()
			d.terminate(t)
			t.Logf("with %d pages open the daemon ended after %v", pages, time.Since(begin).Round(time.Millisecond))
			if log := d.logged(); !strings.Contains(log, "msg=stopped") || strings.Contains(log, "level=ERROR") || !d.command.ProcessState.Success() {
				t.Errorf("with %d pages open: %v, and the log:\n%s", pages, d.command.ProcessState, log)
			}
		}
	})
}

// polls returns how often the page has asked for what Live shows.
func (tb *tab) polls() (n int) {
	for _, u := range tb.seen(&tb.requests) {
		if strings.Contains(u, "/v1/live") {
			n++
		}
	}
	return n
}

// A daemon that ends is said to be unreachable, and one that comes back is shown again.
func TestPageSaysThatTheDaemonDoesNotAnswer(t *testing.T) {
	address := "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t)) // which no other process takes meanwhile
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, "--admin", address)
	tb := openTab(t)
	tb.show(t, d, "live")
	d.terminate(t)
	tb.waitUntil(t, "a banner is shown", "document.querySelector('.banner.denied') && document.getElementById('status').dataset.state === 'down'")
	startDaemon(t, map[string]string{"shop.yaml": shopRules}, "--admin", address)
	tb.waitUntil(t, "the banner is gone", "!document.querySelector('.banner') && document.getElementById('status').dataset.state === 'up'")
}
