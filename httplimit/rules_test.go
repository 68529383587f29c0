package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rulelimit"
)

// byRules returns the options of middleware that decides by rules.
func byRules(t *testing.T, store penstock.Store) *httplimit.Options {
	t.Helper()
	lim, err := rulelimit.Open(t.Context(), "testdata/shop.yaml", store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lim.Close() })
	return &httplimit.Options{Rules: &httplimit.Rules{
		Limiter: lim, Domain: "shop",
		Descriptors: [][]httplimit.Entry{
			{{Key: "user", Value: httplimit.Header("X-User")}},
			{{Key: "address"}},
			{{Key: "session", Value: httplimit.Cookie("session")}},
		},
	}}
}

func TestProtectByRules(t *testing.T) {
	o := byRules(t, standingStill())
	o.Headers = httplimit.XRateLimit
	h := httplimit.Protect(nil, o)(hello)
	w := ask(h, alice, "X-User", "ada")
	if w.Code != 200 || w.Header().Get("X-RateLimit-Limit") != "2" || w.Header().Get("X-RateLimit-Remaining") != "1" {
		t.Errorf("the first request: %d %v, want the numbers of the strictest limit", w.Code, w.Header())
	}
	expect(t, "a user", statuses(h, 2, alice, "X-User", "ada"), 200, 429)
	w = ask(h, alice, "X-User", "ada")
	var problem httplimit.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Type != httplimit.TypeQuotaExceeded ||
		!slices.Equal(problem.ViolatedPolicies, []string{"shop/user"}) || w.Header().Get("Retry-After") == "" {
		t.Errorf("a denial: %s, %v, %v, want a problem with the name of the rule", w.Body, w.Header(), err)
	}
	expect(t, "another user at the address, which denials were not charged to", statuses(h, 3, alice, "X-User", "eve"), 200, 200, 429)
	expect(t, "without a user, by the address alone", statuses(h, 2, alice), 200, 429)
	expect(t, "another address", statuses(h, 1, bob), 200)
	long := strings.Repeat("x", 64<<10)
	expect(t, "a long cookie", statuses(h, 4, bob, "Cookie", "session="+long), 200, 200, 200, 429)
}

func TestProtectByRulesReportsAllLimits(t *testing.T) {
	h := httplimit.Protect(nil, byRules(t, standingStill()))(hello)
	got := ask(h, alice, "X-User", "ada").Header().Get("RateLimit")
	if want := `"shop/user";r=1;t=1800, "shop/address";r=4;t=2880`; got != want {
		t.Errorf("RateLimit: %s, want %s", got, want)
	}
}

func TestProtectByRulesCost(t *testing.T) {
	o := byRules(t, standingStill())
	cost := int64(0)
	o.Cost, o.OnError = func(*http.Request) int64 { return cost }, func(*http.Request, error) {}
	h := httplimit.Protect(nil, o)(hello)
	expect(t, "requests that cost nothing", statuses(h, 9, alice), 200, 200, 200, 200, 200, 200, 200, 200, 200)
	cost = 3
	expect(t, "requests that cost three", statuses(h, 2, alice), 200, 429)
	cost = -1
	expect(t, "a negative cost", statuses(h, 1, alice), 400)
}

func TestProtectByRulesShadow(t *testing.T) {
	o := byRules(t, standingStill())
	var seen []httplimit.Answer
	o.Shadow = func(_ *http.Request, answers []httplimit.Answer) { seen = answers }
	h := httplimit.Protect(nil, o)(hello)
	expect(t, "shadow mode", statuses(h, 3, alice, "X-User", "ada"), 200, 200, 200)
	if i := slices.IndexFunc(seen, func(a httplimit.Answer) bool { return !a.Decision.Allowed }); i < 0 || seen[i].Policy != "shop/user" {
		t.Errorf("the denial in shadow mode: %+v", seen)
	}
}

func TestProtectByRulesUnavailable(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	var reported error
	o := byRules(t, down)
	o.OnError = func(_ *http.Request, err error) { reported = err }
	expect(t, "without Unavailable", statuses(httplimit.Protect(nil, o)(hello), 1, alice), 200)
	if !errors.Is(reported, penstock.ErrUnavailable) {
		t.Errorf("reported %v, want %v", reported, penstock.ErrUnavailable)
	}
	o.Unavailable = httplimit.ServiceUnavailable
	expect(t, "with Unavailable", statuses(httplimit.Protect(nil, o)(hello), 1, alice), 503)
	expect(t, "an unknown address", statuses(httplimit.Protect(nil, o)(hello), 1, "@"), 503)
	if !errors.Is(reported, penstock.ErrBadKey) {
		t.Errorf("an unknown address: reported %v, want %v", reported, penstock.ErrBadKey)
	}
	o.Cost = func(*http.Request) int64 { return 0 }
	expect(t, "a request that costs nothing", statuses(httplimit.Protect(nil, o)(hello), 1, alice), 200)
}

// A request holds the permit of a rule while its handler runs, and releases it however that ends.
func TestProtectByRulesHoldsPermit(t *testing.T) {
	o := byRules(t, penstock.NewMemory(nil))
	o.Rules.Descriptors = [][]httplimit.Entry{{{Key: "path", Value: httplimit.Path}, {Key: "permit", Value: httplimit.PermitID}}}
	var during func()
	h := httplimit.Protect(nil, o)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { during() }))
	get := func(ctx context.Context, path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		return w.Code
	}
	during = func() {
		during = func() {}
		if code := get(t.Context(), "/reports"); code != 429 {
			t.Errorf("a second request at once: %d, want 429", code)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	outer := during
	during = func() { outer(); cancel() }
	if code := get(gone, "/reports"); code != 200 {
		t.Errorf("the first request: %d", code)
	}
	during = func() { panic(http.ErrAbortHandler) }
	func() {
		defer func() { _ = recover() }()
		get(t.Context(), "/reports")
	}()
	during = func() {}
	if code := get(t.Context(), "/reports"); code != 200 {
		t.Errorf("after a canceled request and a panic: %d, want the permit released", code)
	}
}

// A request that a leaky bucket delays is held, and refunded if its client disconnects meanwhile.
func TestProtectByRulesDelays(t *testing.T) {
	o := byRules(t, standingStill())
	o.Rules.Descriptors = [][]httplimit.Entry{{{Key: "path", Value: httplimit.Path}}}
	h := httplimit.Protect(nil, o)(hello)
	get := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/queue", nil))
		return w.Code
	}
	if code := get(t.Context()); code != 200 {
		t.Errorf("the first request: %d", code)
	}
	for range 3 { // would fill the queue if they were not refunded
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if code := get(ctx); code != 503 {
			t.Errorf("a request that disconnects while it is delayed: %d, want 503", code)
		}
		cancel()
	}
}

// A delayed request whose client disconnects returns what it was granted: its permit, but nothing to a quota that had
// nothing left for it.
func TestProtectByRulesDelayedReturnsWhatItWasGranted(t *testing.T) {
	o := byRules(t, standingStill())
	always := func(*http.Request) string { return "x" }
	o.Rules.Descriptors = [][]httplimit.Entry{
		{{Key: "queue", Value: always}},
		{{Key: "slot", Value: always}, {Key: "permit", Value: httplimit.PermitID}},
		{{Key: "plan", Value: always}},
		{{Key: "reserve", Value: always}},
	}
	o.OnError = func(_ *http.Request, err error) { t.Error(err) }
	h := httplimit.Protect(nil, o)(hello)
	for i, want := range []int{200, 503, 503, 503} { // the first is not delayed
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)); w.Code != want {
			t.Errorf("request %d: %d, want %d", i, w.Code, want)
		}
		cancel()
	}
	for key, want := range map[string]int64{"plan": 0, "reserve": 8} {
		a, err := o.Rules.Limiter.(*rulelimit.Limiter).AllowN(t.Context(), 0, "shop", rulelimit.Entries(key, "x"))
		if err != nil || a.Decision.Remaining != want {
			t.Errorf("%s: %d remain, %v, want %d", key, a.Decision.Remaining, err, want)
		}
	}
}

func TestProtectByRulesRefusesLimiterBesideThem(t *testing.T) {
	for name, f := range map[string]func(*httplimit.Options){
		"Key":        func(o *httplimit.Options) { o.Key = httplimit.Global },
		"Additional": func(o *httplimit.Options) { o.Additional = []httplimit.Charge{} },
		"no domain":  func(o *httplimit.Options) { o.Rules.Domain = "" },
		"no rules":   func(o *httplimit.Options) { o.Rules.Descriptors = nil },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("rules with %s were accepted", name)
				}
			}()
			o := byRules(t, standingStill())
			f(o)
			httplimit.Protect(nil, o)
		}()
	}
}

// After settles what each descriptor took, by the response.
func TestProtectByRulesAfter(t *testing.T) {
	o := byRules(t, standingStill())
	taken := int64(1)
	o.Cost, o.After = func(*http.Request) int64 { return taken }, httplimit.OnlyFailures
	send := func(path string) int {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.RemoteAddr = alice
		r.Header.Set("X-User", "ada")
		httplimit.Protect(nil, o)(answering).ServeHTTP(w, r)
		return w.Code
	}
	expect(t, "successes, which are refunded", []int{send("/200"), send("/200"), send("/200"), send("/200")}, 200, 200, 200, 200)
	expect(t, "failures", []int{send("/401"), send("/401"), send("/200")}, 401, 401, 429)
	taken, o.After = 0, httplimit.ResetOnSuccess
	expect(t, "a success that resets, though it takes nothing", []int{send("/200")}, 200)
	o.After = func(r httplimit.Response) int64 { return r.Taken + 3 }
	expect(t, "a cost that is known afterwards", []int{send("/200")}, 200)
	taken = 1
	expect(t, "a user who has nothing left", []int{send("/200")}, 429)
	o.Rules.Descriptors = o.Rules.Descriptors[1:]
	taken, o.After = 2, nil
	expect(t, "the address, which had enough for all of the cost", []int{send("/200"), send("/200")}, 200, 429)
}
