package pagetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fill makes a daemon with something to see in every view.
func fill(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules}, args...)
	for i := range 40 {
		d.take(t, "user", fmt.Sprint(i%4))
		d.take(t, "tenant", "acme")
		d.takeLimit(t, strings.Repeat("long-", 40)+"<b>", "10/1h")
	}
	d.call(t, "PUT", "/v1/candidates?rule=shop/user&limit=2/1h&reason=r", nil)
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=1", nil)
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=1&reason=a-long-reason-without-any-space-"+strings.Repeat("x", 100), nil)
	for _, override := range []string{
		`{"rule":"shop/user","key":"1","limit":"ban","for":"1h","reason":"a-long-reason-without-any-space-` + strings.Repeat("x", 100) + `"}`,
		`{"rule":"shop/api","key":"` + strings.Repeat("long-", 40) + `","limit":"600/1m","reason":"r"}`,
	} {
		send(t, "PUT", d.url(t, "admin")+"/v1/overrides", override, nil)
	}
	return d
}

// parametersOf show as much of a view as possible.
var parametersOf = map[string][]string{
	"keys":      {"key", "user=1"},
	"rules":     {"domain", "shop", "entries", "path=/login\nremote_address=203.0.113.9"},
	"simulator": {"limit", "10/1s burst=5", "traffic", "own", "arrivals", "0x20, 0.5x9"},
}

// showFull opens a view with everything that can be unfolded.
func (tb *tab) showFull(t *testing.T, d *daemon, view string) {
	t.Helper()
	tb.show(t, d, view, parametersOf[view]...)
	if view == "keys" || view == "overrides" {
		tb.waitUntil(t, "everything is shown", "document.querySelector('.overrides tbody tr') || document.querySelector('.state') && document.querySelector('.audit tbody tr') && document.querySelector('.ranking li')")
		evaluate[bool](t, tb, "(() => { for (const d of document.querySelectorAll('details')) d.open = true; return true })()")
	}
}

// showParts shows, one after the other, what no view shows at first: a question, and a log in the simulator.
func (tb *tab) showParts(t *testing.T, d *daemon, check func(part string)) {
	t.Helper()
	tb.show(t, d, "overrides")
	tb.ask(t, ".overrides button[name=change]")
	tb.click(t, "dialog button[name=yes]") // without a reason, which is a problem
	check("the question")
	tb.click(t, "dialog button[name=no]")
	tb.show(t, d, "simulator", "limit", "120/1m")
	tb.drop(t, "access.log", scraperLog())
	tb.waitForLog(t, "limit=120%2F1m&by=remote_address")
	check("the log")
}

// Focusable elements by their description. The browser visits only one radio button of a
// group by Tab, and the others by arrow keys.
const describeFocusable = `(() => {
	const describe = (e) => e.type === 'radio' ? 'radio ' + e.name : [e.tagName, e.className.baseVal ?? e.className, e.name ?? '', e.textContent.slice(0, 30), e.getAttribute('href') ?? '', e.getAttribute('aria-label') ?? ''].join(' ');
	window.describe = describe;
	return [...new Set([...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter((e) => e.checkVisibility()).map(describe))];
})()`

func TestEverythingIsReachableByTab(t *testing.T) {
	d := fill(t)
	tb := openTab(t)
	for _, view := range viewNames {
		tb.showFull(t, d, view)
		tb.freeze(t) // new rows would move what is visited
		evaluate[bool](t, tb, "(() => { document.activeElement.blur(); return true })()")
		wanted := evaluate[[]string](t, tb, describeFocusable)
		if len(wanted) < 8 {
			t.Errorf("%s: only %d controls: %q", view, len(wanted), wanted)
		}
		var visited []string
		for range 2*len(wanted) + 20 {
			tb.press(t, "Tab", 9)
			visited = append(visited, evaluate[string](t, tb, "describe(document.activeElement)"))
		}
		for _, w := range wanted {
			if !slices.Contains(visited, w) {
				t.Errorf("%s: Tab does not reach %q", view, w)
			}
		}
		tb.thaw(t)
	}
}

// outside returns the elements that reach beyond the right edge of the screen.
const outside = `[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 0.5 && getComputedStyle(e).clipPath === 'none')
	.map((e) => e.tagName + '.' + (e.className.baseVal ?? e.className) + ' ' + Math.round(e.getBoundingClientRect().right)).slice(0, 8)`

func TestNothingScrollsSideways(t *testing.T) {
	d := fill(t)
	tb := openTab(t)
	for _, width := range []int64{360, 800, 1280} {
		tb.resize(t, width, 780)
		for _, view := range viewNames {
			tb.showFull(t, d, view)
			if got := evaluate[int64](t, tb, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("%s at %d px is %d px wide: %q", view, width, got, evaluate[[]string](t, tb, outside))
			}
		}
		tb.showParts(t, d, func(part string) {
			if got := evaluate[[]string](t, tb, outside); len(got) > 0 {
				t.Errorf("%s at %d px is too wide: %q", part, width, got)
			}
		})
	}
}

// Figures of many digits stay in their column, and header and content have one edge on any screen.
func TestWideScreensAreAligned(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	for _, width := range []int64{1280, 2560} {
		tb.resize(t, width, 900)
		tb.show(t, d, "simulator", "limit", "600/1h sliding-log", "traffic", "retry-storm")
		tb.waitUntil(t, "the storm is shown", "document.querySelector('.bound')")
		edges := evaluate[[]int](t, tb, "['.brand', '.view'].map((s) => Math.round(document.querySelector(s).getBoundingClientRect().left))")
		if edges[0] != edges[1] {
			t.Errorf("at %d px the header begins at %d, the content at %d", width, edges[0], edges[1])
		}
		if got := evaluate[[]int](t, tb, "[...new Set([...document.querySelectorAll('.lane-figures dd')].map((e) => Math.round(e.getBoundingClientRect().right)))]"); len(got) != 1 {
			t.Errorf("at %d px figures end at %d, want one edge", width, got)
		}
		if got := evaluate[int](t, tb, "document.querySelector('.lanes').scrollWidth - document.querySelector('.lanes').clientWidth"); got > 0 {
			t.Errorf("at %d px lanes are %d px wider than their card", width, got)
		}
	}
}

// contrasts returns each text whose contrast with its background is below 4.5.
const contrasts = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
	const numbers = (color) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
		return [r, g, b, a / 255];
	};
	const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
	const luminance = (c) => c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const background = (e) => {
		const layers = [];
		for (let n = e; n; n = n.parentElement) layers.push(numbers(getComputedStyle(n).backgroundColor));
		return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
	};
	const found = [];
	let measured = 0;
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement;
		if (walker.currentNode.data.trim() === '' || !e.checkVisibility({ visibilityProperty: true })) continue;
		const style = getComputedStyle(e);
		const back = background(e);
		const front = over(numbers(e.namespaceURI.endsWith('svg') ? style.fill : style.color), back);
		const [high, low] = [luminance(front), luminance(back)].sort((a, b) => b - a);
		const ratio = (high + 0.05) / (low + 0.05);
		measured++;
		if (ratio < 4.5) found.push(ratio.toFixed(2) + ' ' + e.tagName + '.' + e.className + ' ' + walker.currentNode.data.slice(0, 40));
	}
	if (measured < 20) found.push('only ' + measured + ' texts');
	return [...new Set(found)];
})()`

func TestTextHasContrast(t *testing.T) {
	d := fill(t)
	tb := openTab(t)
	for _, scheme := range []string{"light", "dark"} {
		tb.prefer(t, scheme)
		for _, view := range viewNames {
			tb.showFull(t, d, view)
			if found := evaluate[[]string](t, tb, contrasts); len(found) > 0 {
				t.Errorf("%s, %s: contrast below 4.5:\n%s", view, scheme, strings.Join(found, "\n"))
			}
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		tb.prefer(t, scheme)
		tb.showParts(t, d, func(part string) {
			if found := evaluate[[]string](t, tb, contrasts); len(found) > 0 {
				t.Errorf("%s, %s: contrast below 4.5:\n%s", part, scheme, strings.Join(found, "\n"))
			}
		})
	}
	// Banners and other states that a healthy daemon does not show.
	tb.show(t, d, "live")
	evaluate[bool](t, tb, `(() => {
		for (const kind of ['warn', 'denied', 'accent', 'shadow']) {
			const tag = document.createElement('span');
			tag.className = 'tag ' + kind;
			tag.textContent = kind;
			const banner = document.createElement('div');
			banner.className = 'banner ' + kind;
			banner.textContent = kind;
			document.querySelector('.card').append(tag, banner);
		}
		return true;
	})()`)
	for _, scheme := range []string{"light", "dark"} {
		tb.prefer(t, scheme)
		if found := evaluate[[]string](t, tb, contrasts); len(found) > 0 {
			t.Errorf("%s: contrast below 4.5:\n%s", scheme, strings.Join(found, "\n"))
		}
	}
}

func TestThemeFollowsTheSystemAndTheSwitch(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.prefer(t, "dark")
	tb.show(t, d, "live")
	ground := func() string { return evaluate[string](t, tb, "getComputedStyle(document.body).backgroundColor") }
	dark := ground()
	tb.prefer(t, "light")
	light := ground()
	if dark == light {
		t.Errorf("both themes have the ground %s", dark)
	}
	for _, want := range []string{light, dark, light} { // light, dark, and the system's, which is light
		tb.click(t, "#theme")
		if got := ground(); got != want {
			t.Errorf("with the theme %s the ground is %s, want %s", tb.text(t, "#theme"), got, want)
		}
	}
	tb.click(t, "#theme")
	tb.click(t, "#theme")
	tb.visit(t, d.url(t, "admin")+"/?again#/live")
	tb.waitUntil(t, "the page is shown again", views["live"])
	if got := ground(); got != dark {
		t.Errorf("the choice is forgotten: %s, want %s", got, dark)
	}
}
