package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func limiter(t *testing.T, s penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	name, limit, named := strings.Cut(text, ": ")
	if !named {
		name, limit = "", text
	}
	lim, err := penstock.New(s, mustLimit(t, limit).WithName(name))
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

func inMemory(t *testing.T, text string) *penstock.Limiter {
	t.Helper()
	return limiter(t, penstock.NewMemory(nil), text)
}

// standingStill is a store whose clock does not move, so that times do not depend
// on how fast this machine is.
func standingStill() penstock.Store {
	now := time.Now()
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })

// ask sends a request from an address, with header fields in pairs.
func ask(h http.Handler, from string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = from
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// statuses returns what several requests from one address are answered.
func statuses(h http.Handler, n int, from string, header ...string) (codes []int) {
	for range n {
		codes = append(codes, ask(h, from, header...).Code)
	}
	return codes
}

func expect(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

const (
	alice = "203.0.113.1:1000"
	bob   = "203.0.113.2:1000"
)

func TestProtectDeniesOverLimit(t *testing.T) {
	server := httptest.NewServer(httplimit.Protect(limiter(t, standingStill(), "2/1h"), nil)(hello))
	defer server.Close()
	for _, want := range []struct {
		status int
		header string
		body   string
	}{
		{200, `RateLimit: "default";r=1;t=1800`, "hello"},
		{200, `RateLimit: "default";r=0;t=1800`, "hello"},
		{429, `Retry-After: 1800`, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Quota Exceeded","status":429,"violated-policies":["default"]}` + "\n"},
	} {
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(want.header, ": ")
		if resp.StatusCode != want.status || resp.Header.Get(name) != value || string(body) != want.body {
			t.Errorf("%d %v %q, want %+v", resp.StatusCode, resp.Header, body, want)
		}
		if got := resp.Header.Get("RateLimit-Policy"); got != `"default";q=2;w=3600` {
			t.Errorf("policy %q", got)
		}
	}
}

func TestProtectCountsClientsSeparately(t *testing.T) {
	h := httplimit.Protect(inMemory(t, "2/1h"), nil)(hello)
	expect(t, "alice", statuses(h, 3, alice), 200, 200, 429)
	expect(t, "alice from another port", statuses(h, 1, "203.0.113.1:2000"), 429)
	expect(t, "bob", statuses(h, 3, bob), 200, 200, 429)
	expect(t, "a network of IPv6", statuses(h, 1, "[2001:db8::1]:1"), 200)
	expect(t, "another host of it", statuses(h, 2, "[2001:db8::2]:1"), 200, 429)
	expect(t, "the next network", statuses(h, 1, "[2001:db8:0:1::1]:1"), 200)
}

func TestProtectAllowsAfterRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := httplimit.Protect(inMemory(t, "2/10s"), nil)(hello)
		statuses(h, 2, alice)
		w := ask(h, alice)
		if got := w.Header().Get("Retry-After"); w.Code != 429 || got != "5" {
			t.Fatalf("%d, Retry-After %q", w.Code, got)
		}
		time.Sleep(5 * time.Second)
		expect(t, "after Retry-After", statuses(h, 2, alice), 200, 429)
	})
}

// A client that is not behind a trusted proxy cannot choose its address.
func TestProtectIgnoresSpoofedAddresses(t *testing.T) {
	names := []string{"X-Forwarded-For", "X-Real-IP", "Forwarded", "True-Client-IP", "CF-Connecting-IP"}
	behind := &httplimit.Options{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for i, o := range []*httplimit.Options{nil, behind} {
		h := httplimit.Protect(inMemory(t, "5/1h"), o)(hello)
		allowed := 0
		for n := range 100 {
			if ask(h, alice, names[n%len(names)], fmt.Sprintf("198.51.100.%d", n)).Code == 200 {
				allowed++
			}
		}
		if allowed != 5 {
			t.Errorf("options %d: %d of 5 admitted under made-up addresses", i, allowed)
		}
	}
}

func TestProtectTrustsNamedProxies(t *testing.T) {
	o := &httplimit.Options{Proxies: httplimit.PrivateNetworks()}
	h := httplimit.Protect(inMemory(t, "2/1h"), o)(hello)
	const proxy, header = "10.0.0.1:1", "X-Forwarded-For"
	expect(t, "alice", statuses(h, 2, proxy, header, "203.0.113.1"), 200, 200)
	expect(t, "alice with a forged address of bob", statuses(h, 1, proxy, header, "203.0.113.2, 203.0.113.1"), 429)
	expect(t, "alice, in two lines", statuses(h, 1, proxy, header, "203.0.113.2", header, "203.0.113.1:99"), 429)
	expect(t, "bob", statuses(h, 2, proxy, header, "203.0.113.2"), 200, 200)

	o.AddressHeader = "cf-connecting-ip"
	h = httplimit.Protect(inMemory(t, "2/1h"), o)(hello)
	expect(t, "by another header", statuses(h, 3, proxy, "CF-Connecting-IP", "203.0.113.1", header, "203.0.113.9"), 200, 200, 429)
	expect(t, "bob, by another header", statuses(h, 1, proxy, "CF-Connecting-IP", "203.0.113.2"), 200)
}

// Keys can be made of addresses and something else.
func TestClientIP(t *testing.T) {
	clientIP := httplimit.ClientIP(&httplimit.Options{Proxies: httplimit.PrivateNetworks()})
	o := &httplimit.Options{Key: func(r *http.Request) string { return clientIP(r) + " " + r.Header.Get("X-User") }}
	h := httplimit.Protect(inMemory(t, "1/1h"), o)(hello)
	const proxy = "10.0.0.1:1"
	expect(t, "alice", statuses(h, 2, proxy, "X-Forwarded-For", "203.0.113.1", "X-User", "alice"), 200, 429)
	expect(t, "bob, from there", statuses(h, 1, proxy, "X-Forwarded-For", "203.0.113.1", "X-User", "bob"), 200)
	expect(t, "alice, from elsewhere", statuses(h, 1, proxy, "X-Forwarded-For", "203.0.113.2", "X-User", "alice"), 200)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "[2001:db8::1]:1"
	if got := httplimit.ClientIP(nil)(r); got != "2001:db8::/64" {
		t.Errorf("without options: %q", got)
	}
}

func TestProtectGroupsIPv6ByPrefix(t *testing.T) {
	h := httplimit.Protect(inMemory(t, "1/1h"), &httplimit.Options{IPv6Prefix: 48})(hello)
	expect(t, "one site", statuses(h, 1, "[2001:db8:1:1::1]:1"), 200)
	expect(t, "the same site", statuses(h, 1, "[2001:db8:1:ffff::1]:1"), 429)
	expect(t, "another site", statuses(h, 1, "[2001:db8:2:1::1]:1"), 200)
}

// Requests that cannot be told apart are not thrown together.
func TestProtectUnknownClientIsUndecided(t *testing.T) {
	var seen []error
	o := &httplimit.Options{OnError: func(_ *http.Request, err error) { seen = append(seen, err) }}
	lim := inMemory(t, "1/1h")
	h := httplimit.Protect(lim, o)(hello)
	peers := []string{"", "@", "@", "unknown", strings.Repeat("1", 1<<16)}
	for _, peer := range peers {
		expect(t, peer[:min(len(peer), 10)], statuses(h, 1, peer), 200)
	}
	if len(seen) != len(peers) || !errors.Is(seen[0], penstock.ErrBadKey) {
		t.Errorf("reported %v", seen)
	}
	h = httplimit.Protect(lim, &httplimit.Options{Unavailable: httplimit.ServiceUnavailable, Key: httplimit.Header("X-API-Key")})(hello)
	expect(t, "where failures are refused", statuses(h, 1, "@"), 503)
	expect(t, "with a key", statuses(h, 2, "@", "X-API-Key", "k"), 200, 429)
	free := func(*http.Request) int64 { return 0 }
	h = httplimit.Protect(lim, &httplimit.Options{
		Unavailable: httplimit.ServiceUnavailable, Cost: free, Additional: []httplimit.Charge{{Limiter: lim}},
	})(hello)
	expect(t, "with a cost after a charge that is free", statuses(h, 1, "@"), 503)
}

func TestProtectUsesKeyFunctions(t *testing.T) {
	byKey := &httplimit.Options{Key: httplimit.Header("x-api-key")}
	h := httplimit.Protect(inMemory(t, "2/1h"), byKey)(hello)
	expect(t, "a key", statuses(h, 3, alice, "X-API-Key", "k1"), 200, 200, 429)
	expect(t, "the key from elsewhere", statuses(h, 1, bob, "X-API-Key", "k1"), 429)
	expect(t, "another key", statuses(h, 1, alice, "X-API-Key", "k2"), 200)
	expect(t, "no key", statuses(h, 3, alice), 200, 200, 429)
	expect(t, "an empty key", statuses(h, 1, alice, "X-API-Key", ""), 429)
	expect(t, "no key, from elsewhere", statuses(h, 1, bob), 200)
	expect(t, "a key that poses as an address", statuses(h, 1, alice, "X-API-Key", "203.0.113.2"), 200)
	expect(t, "whom it posed as", statuses(h, 2, bob), 200, 429)
	long := strings.Repeat("k", 1<<20)
	expect(t, "a huge key", statuses(h, 3, alice, "X-API-Key", long), 200, 200, 429)
	expect(t, "another huge key", statuses(h, 1, alice, "X-API-Key", long+"2"), 200)

	h = httplimit.Protect(inMemory(t, "1/1h"), &httplimit.Options{Key: httplimit.Cookie("session")})(hello)
	expect(t, "a cookie", statuses(h, 2, alice, "Cookie", "session=s1"), 200, 429)
	expect(t, "another cookie", statuses(h, 1, alice, "Cookie", "theme=dark; session=s2"), 200)
	expect(t, "no cookie", statuses(h, 2, alice, "Cookie", "theme=dark"), 200, 429)

	h = httplimit.Protect(inMemory(t, "2/1h"), &httplimit.Options{Key: httplimit.Global})(hello)
	expect(t, "alice of all", statuses(h, 1, alice), 200)
	expect(t, "bob of all", statuses(h, 2, bob), 200, 429)
}

func TestPathValueIsKey(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/tenants/{tenant}/", httplimit.Protect(inMemory(t, "1/1h"), &httplimit.Options{Key: httplimit.PathValue("tenant")})(hello))
	get := func(path, from string) int {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.RemoteAddr = from
		mux.ServeHTTP(w, r)
		return w.Code
	}
	expect(t, "tenants", []int{get("/tenants/a/x", alice), get("/tenants/a/y", bob), get("/tenants/b/x", alice)}, 200, 429, 200)
	expect(t, "a tenant that poses as bob's address", []int{get("/tenants/%00203.0.113.2/", alice), get("/tenants/%00/", bob)}, 200, 200)
}

func TestProtectUsesCost(t *testing.T) {
	o := &httplimit.Options{Cost: func(r *http.Request) int64 { return r.ContentLength }}
	h := httplimit.Protect(inMemory(t, "10/1h"), o)(hello)
	post := func(n int64) int {
		r, w := httptest.NewRequest(http.MethodPost, "/", nil), httptest.NewRecorder()
		r.ContentLength = n
		h.ServeHTTP(w, r)
		return w.Code
	}
	expect(t, "by length", []int{post(6), post(5), post(4), post(1), post(0), post(1000)}, 200, 429, 200, 429, 200, 429)
}

// A request that makes its cost negative neither undoes limits nor passes by them,
// whatever is done when stores fail.
func TestProtectRejectsNegativeCosts(t *testing.T) {
	store := penstock.NewMemory(nil)
	lim, other := limiter(t, store, "10/1h"), limiter(t, store, "other: 10/1h")
	served := 0
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	for _, also := range [][]httplimit.Charge{nil, {{Limiter: other, Key: httplimit.Global}}} {
		var seen error
		h := httplimit.Protect(lim, &httplimit.Options{
			Key: httplimit.Global, Additional: also,
			Cost: func(r *http.Request) int64 {
				n, _ := strconv.ParseInt(r.Header.Get("X-Cost"), 10, 64)
				return n
			},
			Unavailable: func(http.ResponseWriter, *http.Request, error) { t.Error("taken for a store that failed") },
			OnError:     func(_ *http.Request, err error) { seen = err },
		})(count)
		expect(t, "an honest request", statuses(h, 1, alice, "X-Cost", "3"), 200)
		for _, cost := range []string{"-1", "-1000", "-9223372036854775808"} {
			seen = nil
			w := ask(h, alice, "X-Cost", cost)
			if w.Code != 400 || !strings.Contains(w.Body.String(), "must not be negative") || !errors.Is(seen, penstock.ErrBadCost) {
				t.Errorf("a cost of %s: %d %s, reported %v", cost, w.Code, w.Body, seen)
			}
		}
		expect(t, "a cost that is too large", statuses(h, 1, alice, "X-Cost", "9223372036854775807"), 429)
	}
	if d, err := lim.Peek(t.Context(), "global"); err != nil || d.Remaining != 4 || served != 2 {
		t.Errorf("%v, %v after %d requests, want 4 to remain after 2", d, err, served)
	}
}

func TestProtectSkip(t *testing.T) {
	o := &httplimit.Options{Skip: func(r *http.Request) bool { return r.Header.Get("X-Probe") != "" }}
	h := httplimit.Protect(inMemory(t, "1/1h"), o)(hello)
	expect(t, "skipped", statuses(h, 3, alice, "X-Probe", "1"), 200, 200, 200)
	expect(t, "not skipped", statuses(h, 2, alice), 200, 429)
	if w := ask(h, alice, "X-Probe", "1"); len(w.Header()) != 1 {
		t.Errorf("a skipped request is told %v", w.Header())
	}
}

func TestProtectSeveralLimitsAllOrNothing(t *testing.T) {
	store := penstock.NewMemory(nil)
	perUser, forAll := limiter(t, store, "user: 2/1h"), limiter(t, store, "all: 5/1h")
	h := httplimit.Protect(limiter(t, store, "ip: 3/1h"), &httplimit.Options{Additional: []httplimit.Charge{
		{Limiter: perUser, Key: httplimit.Header("X-User")},
		{Limiter: forAll, Key: httplimit.Global},
	}})(hello)
	expect(t, "one user", statuses(h, 4, alice, "X-User", "u1"), 200, 200, 429, 429)
	w := ask(h, alice, "X-User", "u1")
	want := `"ip";q=3;w=3600, "user";q=2;w=3600, "all";q=5;w=3600`
	if got := w.Header().Get("RateLimit-Policy"); got != want {
		t.Errorf("policies %s, want %s", got, want)
	}
	if got := violated(t, w); !slices.Equal(got, []string{"user"}) {
		t.Errorf("violated %q", got)
	}
	expect(t, "another, whom those denials cost nothing", statuses(h, 2, alice, "X-User", "u2"), 200, 429)
	if got := violated(t, ask(h, alice, "X-User", "u1")); !slices.Equal(got, []string{"ip", "user"}) {
		t.Errorf("violated %q", got)
	}
	expect(t, "global", statuses(h, 3, bob, "X-User", "u3"), 200, 200, 429)
}

func violated(t *testing.T, w *httptest.ResponseRecorder) []string {
	t.Helper()
	var p httplimit.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p.ViolatedPolicies
}

// A shield of this process's own before the store that all share.
func TestProtectSeveralStoresRefundOnDenial(t *testing.T) {
	near, far := standingStill(), standingStill()
	shared := limiter(t, far, "tenant: 2/1h")
	h := httplimit.Protect(limiter(t, near, "3/1h"), &httplimit.Options{Additional: []httplimit.Charge{
		{Limiter: shared, Key: httplimit.Global}, {Limiter: limiter(t, near, "10/1h"), Key: httplimit.Global},
	}})(hello)
	expect(t, "alice", statuses(h, 4, alice), 200, 200, 429, 429)
	w := ask(h, alice)
	if got, want := w.Header().Get("RateLimit"), `"tenant";r=0;t=1800`; got != want {
		t.Errorf("denied by %s, want %s", got, want)
	}
	if got, want := w.Header().Get("RateLimit-Policy"), `"3/1h";q=3;w=3600, "10/1h";q=10;w=3600, "tenant";q=2;w=3600`; got != want {
		t.Errorf("policies %s, want %s", got, want)
	}
	if err := shared.Reset(t.Context(), "global"); err != nil {
		t.Fatal(err)
	}
	expect(t, "what the denials gave back", statuses(h, 2, alice), 200, 429)
}

// A leaky bucket does not refuse at once: it holds.
func TestProtectHoldsLeakyBucketRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/1s leaky-bucket burst=3")
		h := httplimit.Protect(lim, nil)(hello)
		start := time.Now()
		expect(t, "one after the other", statuses(h, 3, alice), 200, 200, 200)
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("three requests took %v", got)
		}
		time.Sleep(time.Hour)
		statuses(h, 1, alice)
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		r, w := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), httptest.NewRecorder()
		r.RemoteAddr = alice
		h.ServeHTTP(w, r)
		if w.Code != 503 {
			t.Errorf("a request that is held no longer was answered %d", w.Code)
		}
		if d, err := lim.Peek(t.Context(), "203.0.113.1"); err != nil || d.Remaining != 2 {
			t.Errorf("the units were not refunded: %v, %v", d, err)
		}
	})
}

func TestProtectShadowDeniesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		o := &httplimit.Options{
			Shadow: func(r *http.Request, answers []httplimit.Answer) {
				seen = append(seen, fmt.Sprint(r.URL.Path, answers[0].Policy, answers[0].Decision.RetryAfter))
			},
			Instead: func(http.ResponseWriter, *http.Request, []httplimit.Answer) { t.Error("denied in shadow") },
			After:   httplimit.OnlyFailures,
		}
		fails := false
		h := httplimit.Protect(inMemory(t, "new: 2/1h"), o)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if fails {
				w.WriteHeader(401)
			}
		}))
		expect(t, "successes", statuses(h, 3, alice), 200, 200, 200)
		fails = true
		expect(t, "failures", statuses(h, 3, alice), 401, 401, 401)
		if want := []string{"/new30m0s"}; !slices.Equal(seen, want) {
			t.Errorf("told of %q, want %q", seen, want)
		}
		if w := ask(h, alice); len(w.Header()) != 0 {
			t.Errorf("the client was told %v", w.Header())
		}
		h = httplimit.Protect(inMemory(t, "1/1h leaky-bucket burst=9"), o)(hello)
		start := time.Now()
		expect(t, "a leaky bucket", statuses(h, 2, alice), 200, 200)
		if time.Since(start) != 0 {
			t.Error("held in shadow")
		}
	})
}

func TestProtectAnswersInstead(t *testing.T) {
	o := &httplimit.Options{Instead: func(w http.ResponseWriter, _ *http.Request, answers []httplimit.Answer) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprint(w, answers[0].Policy, " ", answers[0].Limit, " ", answers[0].Decision.Remaining)
	}, Headers: httplimit.XRateLimit}
	h := httplimit.Protect(limiter(t, standingStill(), "posts: 1/1h"), o)(hello)
	ask(h, alice)
	w := ask(h, alice)
	if w.Code != 503 || w.Body.String() != "posts 1/1h name=posts 0" || w.Header().Get("Retry-After") != "3600" || w.Header().Get("X-RateLimit-Limit") != "1" {
		t.Errorf("answered %d %q %v", w.Code, w.Body, w.Header())
	}
}

// An unnamed limit has a name in header fields.
func TestProtectNamesUnnamedLimits(t *testing.T) {
	var seen []string
	watch := func(_ *http.Request, answers []httplimit.Answer) {
		for _, a := range answers {
			seen = append(seen, a.Policy)
		}
	}
	store := penstock.NewMemory(nil)
	none := limiter(t, store, "0/1h")
	ask(httplimit.Protect(none, &httplimit.Options{Shadow: watch})(hello), alice)
	ask(httplimit.Protect(none, &httplimit.Options{Shadow: watch, Additional: []httplimit.Charge{{Limiter: limiter(t, store, "0/1m")}}})(hello), alice)
	if want := []string{"default", "0/1h", "0/1m"}; !slices.Equal(seen, want) {
		t.Errorf("told of %q, want %q", seen, want)
	}
}

func TestProtectStoreFailure(t *testing.T) {
	lost := fmt.Errorf("remote: %w", penstock.ErrUnavailable)
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) { return penstock.Decision{}, lost })
	lim := limiter(t, broken, "1/1h")
	var seen error
	watch := func(_ *http.Request, err error) { seen = err }

	expect(t, "by default", statuses(httplimit.Protect(lim, nil)(hello), 3, alice), 200, 200, 200)
	w := ask(httplimit.Protect(lim, &httplimit.Options{OnError: watch})(hello), alice)
	if w.Code != 200 || !errors.Is(seen, lost) || w.Header().Get("RateLimit") != "" {
		t.Errorf("passing: %d, reported %v, told %v", w.Code, seen, w.Header())
	}
	w = ask(httplimit.Protect(lim, &httplimit.Options{OnError: watch, Unavailable: httplimit.ServiceUnavailable})(hello), alice)
	if w.Code != 503 || !strings.Contains(w.Body.String(), httplimit.TypeReducedCapacity) {
		t.Errorf("refused: %d %s", w.Code, w.Body)
	}
	own := func(w http.ResponseWriter, _ *http.Request, err error) { http.Error(w, err.Error(), http.StatusTeapot) }
	w = ask(httplimit.Protect(lim, &httplimit.Options{Unavailable: own})(hello), alice)
	if w.Code != http.StatusTeapot || !strings.Contains(w.Body.String(), "remote") {
		t.Errorf("answered otherwise: %d %s", w.Code, w.Body)
	}
	free := &httplimit.Options{Unavailable: httplimit.ServiceUnavailable, Cost: func(*http.Request) int64 { return 0 }}
	expect(t, "what costs nothing", statuses(httplimit.Protect(lim, free)(hello), 1, alice), 200)
	shadow := &httplimit.Options{Unavailable: httplimit.ServiceUnavailable, Shadow: func(*http.Request, []httplimit.Answer) {}}
	expect(t, "in shadow", statuses(httplimit.Protect(lim, shadow)(hello), 1, alice), 200)
}

// A crowd for which the store is too slow does not pass, even though an outage would let it.
func TestProtectBusyStoreLetsNobodyPass(t *testing.T) {
	busy := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, fmt.Errorf("remote: %w: %w", penstock.ErrBusy, context.DeadlineExceeded)
	})
	lim := limiter(t, busy, "1/1h")
	expect(t, "by default", statuses(httplimit.Protect(lim, nil)(hello), 2, alice), 503, 503)
	own := func(w http.ResponseWriter, _ *http.Request, err error) { http.Error(w, err.Error(), http.StatusTeapot) }
	expect(t, "otherwise", statuses(httplimit.Protect(lim, &httplimit.Options{Unavailable: own})(hello), 1, alice), http.StatusTeapot)
	free := &httplimit.Options{Cost: func(*http.Request) int64 { return 0 }}
	expect(t, "what costs nothing", statuses(httplimit.Protect(lim, free)(hello), 1, alice), 200)
	shadow := &httplimit.Options{Shadow: func(*http.Request, []httplimit.Answer) {}}
	expect(t, "in shadow", statuses(httplimit.Protect(lim, shadow)(hello), 1, alice), 200)
}

// A memory limit holds while the shared store is down: requests that pass are
// charged to it, denied ones are not.
func TestProtectMemoryLimitHoldsWhileOtherStoreIsDown(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	behind := func(shield *penstock.Limiter, o httplimit.Options) http.Handler {
		o.Additional = []httplimit.Charge{{Limiter: shield, After: httplimit.OnlyFailures}}
		return httplimit.Protect(limiter(t, broken, "9/1h"), &o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Fail") != "" {
				w.WriteHeader(http.StatusNotFound)
			}
		}))
	}
	shield := inMemory(t, "2/1h")
	expect(t, "those that After makes free", statuses(behind(shield, httplimit.Options{}), 3, alice), 200, 200, 200)
	refusing := behind(shield, httplimit.Options{Unavailable: httplimit.ServiceUnavailable})
	expect(t, "refused", statuses(refusing, 3, alice, "X-Fail", "1"), 503, 503, 503)
	expect(t, "passing", statuses(behind(shield, httplimit.Options{}), 3, alice, "X-Fail", "1"), 404, 404, 429)
	expect(t, "refused by the shield", statuses(refusing, 1, alice), 429)
}

// A request that was denied stays denied if what another store had granted cannot
// be refunded.
func TestProtectDenialStandsIfRefundFails(t *testing.T) {
	lost := fmt.Errorf("remote: %w", penstock.ErrUnavailable)
	memory := penstock.NewMemory(nil)
	keeping := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if r.Cost < 0 {
			return penstock.Decision{}, lost
		}
		return memory.Take(ctx, r)
	})
	var seen error
	h := httplimit.Protect(limiter(t, keeping, "10/1h"), &httplimit.Options{
		Additional: []httplimit.Charge{{Limiter: limiter(t, penstock.StoreFunc(penstock.NewMemory(nil).Take), "1/1h")}},
		OnError:    func(_ *http.Request, err error) { seen = err },
	})(hello)
	expect(t, "one too many", statuses(h, 2, alice), 200, 429)
	if !errors.Is(seen, lost) {
		t.Errorf("reported %v, want %v", seen, lost)
	}
}

// A request that is cancelled at once is not served for free, although the remote
// store does not decide about it.
func TestProtectCancelledRequestsDoNotBypassLimits(t *testing.T) {
	memory := penstock.NewMemory(nil)
	far := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if err := ctx.Err(); err != nil {
			return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err)
		}
		return memory.Take(ctx, r)
	})
	served := 0
	h := httplimit.Protect(limiter(t, far, "1/1h"), nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 10 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil))
	}
	if served != 0 {
		t.Errorf("%d requests were served and not charged", served)
	}
}
