// Package adaptertest tests adapters with their real frameworks.
package adaptertest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rulelimit"
)

// Middleware is the middleware that a server under test adapts. The server has these routes:
//
//	GET  /tenants/{tenant}  behind All and Tenant: answers "hello, " and the tenant, with X-Served: yes
//	POST /login             behind Logins: fails with status 401 unless the parameter as is ada
//	GET  /me                behind User, whose key an outer middleware found in the header X-User
//	GET  /tokens            behind Tokens: passes 3 to [httplimit.SetCost]
//	GET  /slot              behind Slots: answers what Held returns
//	GET  /search            behind Rules, which know the path and the same user
type Middleware struct {
	All, Tenant, Logins, User, Tokens, Slots, Rules func(http.Handler) http.Handler

	slots *penstock.Limiter
}

// New returns middleware. The framework's context has the key of User.
func New(t *testing.T, user func(*http.Request) string) *Middleware {
	t.Helper()
	now := time.Now() // stands still, so that nothing refills however long a request takes
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	slots := limiter(t, store, "slots: 1/30s concurrent")
	rules, err := rulelimit.Open(t.Context(), "../internal/adaptertest/testdata/shop.yaml", store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	protect := func(limit string, o *httplimit.Options) func(http.Handler) http.Handler {
		return httplimit.Protect(limiter(t, store, limit), o)
	}
	return &Middleware{
		All:    protect("all: 1000/1h", nil),
		Tenant: protect("tenant: 3/1h", &httplimit.Options{Key: httplimit.PathValue("tenant")}),
		Logins: protect("logins: 2/1h", &httplimit.Options{After: httplimit.OnlyFailures}),
		User:   protect("user: 1/1h", &httplimit.Options{Key: user}),
		Tokens: protect("tokens: 5/1h", &httplimit.Options{After: httplimit.ReportedCost}),
		Slots:  httplimit.Protect(slots, &httplimit.Options{Key: httplimit.Global}),
		Rules: httplimit.Protect(nil, &httplimit.Options{Rules: &httplimit.Rules{
			Limiter: rules, Domain: "shop",
			Descriptors: [][]httplimit.Entry{{{Key: "path", Value: httplimit.Path}}, {{Key: "user", Value: user}}},
		}}),
		slots: slots,
	}
}

func limiter(t *testing.T, store penstock.Store, text string) *penstock.Limiter {
	t.Helper()
	name, text, _ := strings.Cut(text, ": ")
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(store, limit.WithName(name))
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// Held returns how many slots are in use.
func (m *Middleware) Held() string {
	d, err := m.slots.Peek(context.Background(), "global")
	return fmt.Sprintf("%d %v", 1-d.Remaining, err)
}

// Check checks what the server answers.
func (m *Middleware) Check(t *testing.T, url string) {
	t.Helper()
	for _, test := range []struct {
		what, request, user string
		want                []int
	}{
		{"a tenant", "GET /tenants/acme?a=b", "", []int{200, 200, 200, 429}},
		{"another tenant", "GET /tenants/bolt", "", []int{200}},
		{"logins that succeed", "POST /login?as=ada", "", []int{200, 200, 200, 200}},
		{"logins that fail", "POST /login?as=eve", "", []int{401, 401, 429}},
		{"a login after too many failures", "POST /login?as=ada", "", []int{429}},
		{"a user", "GET /me", "ada", []int{200, 429}},
		{"another user", "GET /me", "eve", []int{200}},
		{"three of five tokens at a time", "GET /tokens", "", []int{200, 200, 429}},
		{"a user, by rules", "GET /search?q=x", "ada", []int{200, 200, 429}},
		{"another user, by rules", "GET /search?q=x", "eve", []int{200}},
		{"a slot", "GET /slot", "", []int{200, 200}},
	} {
		var got []int
		var last *http.Response
		for range test.want {
			last = send(t, test.request, url, test.user)
			got = append(got, last.StatusCode)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
		denied := got[len(got)-1] == http.StatusTooManyRequests
		if problem := last.Header.Get("Content-Type") == "application/problem+json"; problem != denied || denied != (last.Header.Get("Retry-After") != "") {
			t.Errorf("%s: the header is %v", test.what, last.Header)
		}
	}
	m.checkServed(t, url)
}

// checkServed checks that limits and handlers write to one response.
func (m *Middleware) checkServed(t *testing.T, url string) {
	t.Helper()
	resp := send(t, "GET /tenants/cafe", url, "")
	body, err := io.ReadAll(resp.Body)
	limits := strings.Join(resp.Header.Values("RateLimit"), ", ")
	if string(body) != "hello, cafe" || resp.Header.Get("X-Served") != "yes" || !strings.Contains(limits, `"all";`) || !strings.Contains(limits, `"tenant";r=2`) {
		t.Errorf("got %q, %v, %v, want the answer of the handler and both limits", body, err, resp.Header)
	}
	for range 4 {
		resp = send(t, "GET /tenants/cafe", url, "")
	}
	if resp.StatusCode != 429 || resp.Header.Get("X-Served") != "" {
		t.Errorf("a denied request was served: %d %v", resp.StatusCode, resp.Header)
	}
	limits = send(t, "GET /search", url, "ida").Header.Get("RateLimit")
	if !strings.Contains(limits, `/search";r=996;`) || !strings.Contains(limits, `"shop/user";r=1`) {
		t.Errorf("by rules: RateLimit is %s, want the limits of both rules", limits)
	}
	resp = send(t, "GET /slot", url, "")
	if body, err := io.ReadAll(resp.Body); string(body) != "1 <nil>" {
		t.Errorf("while the handler runs %s slots are held, %v, want 1", body, err)
	}
}

func send(t *testing.T, request, url, user string) *http.Response {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", user)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}
