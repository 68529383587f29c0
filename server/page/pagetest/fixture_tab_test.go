package pagetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// watch runs before the page's own scripts. It records what must not happen, counts the requests
// in flight and those that have ended, and makes the page believe that it is hidden when a test says so.
const watch = `
window.violations = [];
document.addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));
window.inFlight = 0;
window.answered = 0;
const ask = window.fetch;
window.fetch = async (...request) => {
	window.inFlight++;
	// What the page does with an answer, and asks next, it does before this.
	const end = () => setTimeout(() => { window.inFlight--; window.answered++; });
	try {
		const response = await ask(...request);
		const read = response.text.bind(response);
		response.text = () => { const text = read(); text.then(end, end); return text; };
		return response;
	} catch (error) {
		end();
		throw error;
	}
};
window.pretendHidden = false;
Object.defineProperty(document, 'hidden', { get: () => window.pretendHidden });
`

// A tab shows a page, and records what it does.
type tab struct {
	ctx context.Context

	mu       sync.Mutex
	console  []string
	requests []string // URLs
	cookies  []string
}

// openTab opens a tab for a test, without a page yet.
func openTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	tb := &tab{ctx: ctx}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	tb.record(t)
	must(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	tb.resize(t, 1280, 900)
	return tb
}

func (tb *tab) record(t *testing.T) {
	t.Helper()
	must(tb.ctx, t, network.Enable, network.EnableParams{})
	messages := chromedp.Console(tb.ctx)
	requests := chromedp.Events(tb.ctx, network.RequestWillBeSent)
	responses := chromedp.Events(tb.ctx, network.ResponseReceivedExtraInfo)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			tb.add(&tb.console, fmt.Sprint(m))
		}
	}()
	go func() {
		for r, err := range requests {
			if err != nil {
				return
			}
			tb.add(&tb.requests, r.Request.URL)
		}
	}()
	go func() {
		for r, err := range responses {
			if err != nil {
				return
			}
			for name, value := range r.Headers {
				if strings.EqualFold(name, "Set-Cookie") {
					tb.add(&tb.cookies, fmt.Sprint(value))
				}
			}
		}
	}()
}

func (tb *tab) add(list *[]string, text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	*list = append(*list, text)
}

// seen returns a copy of what was recorded.
func (tb *tab) seen(list *[]string) []string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return append([]string(nil), *list...)
}

func (tb *tab) resize(t *testing.T, width, height int64) {
	t.Helper()
	if err := chromedp.Do(tb.ctx, chromedp.EmulateViewport(width, height)); err != nil {
		t.Fatal(err)
	}
}

// prefer sets the color scheme that the system prefers.
func (tb *tab) prefer(t *testing.T, scheme string) {
	t.Helper()
	must(tb.ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// visit opens an address, or changes the part of it behind the #.
func (tb *tab) visit(t *testing.T, address string) {
	t.Helper()
	if err := chromedp.Do(tb.ctx, chromedp.Navigate(address)); err != nil {
		t.Fatal(err)
	}
}

// link returns the address of a view with parameters.
func link(base, view string, parameters ...string) string {
	q := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		q.Set(parameters[i], parameters[i+1])
	}
	return fmt.Sprintf("%s/#/%s?%s", base, view, q.Encode())
}

// evaluate returns the value of an expression, which may be a promise.
func evaluate[T any](t *testing.T, tb *tab, expression string) T {
	t.Helper()
	value, err := tryEvaluate[T](tb, expression)
	if err != nil {
		t.Fatalf("%.300s: %v", expression, err)
	}
	return value
}

func tryEvaluate[T any](tb *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// follow changes the part of the address behind the #, waits until a condition holds, and
// returns the value of an expression, all in one call of the browser.
func follow[T any](t *testing.T, tb *tab, link, condition, expression string) T {
	t.Helper()
	return evaluate[T](t, tb, fmt.Sprintf(`new Promise((resolve) => {
		location.hash = %s;
		const check = () => (%s ? resolve(%s) : setTimeout(check, 5));
		setTimeout(check, 0); // after the event of the changed address
	})`, quote(strings.TrimPrefix(link, "/")), condition, expression))
}

// waitUntil waits until an expression is true.
func (tb *tab) waitUntil(t *testing.T, what, expression string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !tb.holds(t, expression); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain until %s; the page shows:\n%.3000s\nconsole: %q", patience, what, tb.text(t, "body"), tb.seen(&tb.console))
		}
	}
}

// holds reports whether an expression is true. It is not while the page loads again: the browser
// then drops the evaluation that it has begun, or has nowhere to begin it.
func (tb *tab) holds(t *testing.T, expression string) bool {
	t.Helper()
	value, err := tryEvaluate[bool](tb, "Boolean("+expression+")")
	var refused *cdproto.Error
	if errors.As(err, &refused) && refused.Code == loadingCode {
		return false
	}
	if err != nil {
		t.Fatalf("%.300s: %v", expression, err)
	}
	return value
}

// loadingCode is the browser's code for pages that are being replaced.
const loadingCode = -32000

// text returns the text of the first element of a selector.
func (tb *tab) text(t *testing.T, selector string) string {
	t.Helper()
	return evaluate[string](t, tb, fmt.Sprintf("document.querySelector(%s)?.innerText ?? ''", quote(selector)))
}

// texts returns the texts of all elements of a selector.
func (tb *tab) texts(t *testing.T, selector string) []string {
	t.Helper()
	return evaluate[[]string](t, tb, fmt.Sprintf("[...document.querySelectorAll(%s)].map((e) => e.textContent)", quote(selector)))
}

// click clicks where the first element of a selector is. What a user would hit there must be the
// element, a part of it, its drawing or its label. All of that is one step, so that the page cannot move or
// replace the element in between, as it could between two calls of the browser.
func (tb *tab) click(t *testing.T, selector string) {
	t.Helper()
	other := evaluate[string](t, tb, fmt.Sprintf(`(() => {
		const e = document.querySelector(%s);
		e.scrollIntoView({ block: 'center', behavior: 'instant' });
		const box = e.getBoundingClientRect();
		const [clientX, clientY] = [box.left + box.width / 2, box.top + box.height / 2];
		const hit = document.elementFromPoint(clientX, clientY);
		if (!(e.closest('svg') ?? e).contains(hit) && hit?.closest('label')?.control !== e) return hit?.outerHTML ?? 'nothing';
		hit.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true, composed: true, view: window, detail: 1, clientX, clientY }));
		return '';
	})()`, quote(selector)))
	if other != "" {
		t.Fatalf("where %s is, a click hits %.300s", selector, other)
	}
}

// waitForPolls waits until the page has shown so many more answers to requests of a path, and asked again.
func (tb *tab) waitForPolls(t *testing.T, n int, path string) {
	t.Helper()
	count := func() (asked int) {
		for _, u := range tb.seen(&tb.requests) {
			if strings.Contains(u, path) {
				asked++
			}
		}
		return asked
	}
	first := count()
	waitFor(t, "the page asks for "+path+" again", func() bool { return count() > first+n })
}

// freeze makes the page believe that it is hidden, so that it stops to ask the daemon, and waits
// until it has shown the last answer.
func (tb *tab) freeze(t *testing.T) {
	t.Helper()
	evaluate[bool](t, tb, "pretendHidden = true")
	tb.waitUntil(t, "no request is in flight", "window.inFlight === 0")
}

// thaw undoes freeze.
func (tb *tab) thaw(t *testing.T) {
	t.Helper()
	evaluate[bool](t, tb, "(() => { pretendHidden = false; document.dispatchEvent(new Event('visibilitychange')); return true })()")
}

// write puts a text into an input, as if it was typed.
func (tb *tab) write(t *testing.T, selector, text string) {
	t.Helper()
	evaluate[bool](t, tb, fmt.Sprintf("(() => { const e = document.querySelector(%s); e.focus(); e.select(); return true; })()", quote(selector)))
	must(tb.ctx, t, input.InsertText, input.InsertTextParams{Text: text})
}

// press presses a key that writes no text.
func (tb *tab) press(t *testing.T, key string, code int64) {
	t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
		must(tb.ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: key, Code: key, WindowsVirtualKeyCode: code})
	}
}

func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can be encoded
	}
	return string(b)
}
