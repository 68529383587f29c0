package httpapi_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/requestlimits"
)

func remote() http.Header { return http.Header{"X-Forwarded-For": {"192.0.2.1"}} }

func withToken() http.Header {
	h := remote()
	h.Set("Authorization", "Bearer secret")
	return h
}

// A remote caller may not bring a limit over a ceiling. The problem names the setting, the
// ceiling and the exemption, nothing is charged, and callers with the right to refund are
// exempt.
func TestTakeRefusesLimitsOverCeilings(t *testing.T) {
	const period, bytes = "744h0m0s (--request-limits-max-period)", "4096 (--request-limits-max-key-bytes)"
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, &engine.Options{Token: "secret"})
		base := serve(t, newServer(t, e, nil))
		for _, c := range []struct{ limit, want string }{
			{"1/366d", period},
			{"1/32d fixed-window", period},
			{"1/year fixed-window zone=UTC", period},
			{"1/1d burst=32", period},
			{"1/1s burst=3000000", period},
			{"10000/24d sliding-log", bytes},
			{"1000/1h rolling-window buckets=1000", bytes},
		} {
			body := `{"key":"k","limit":"` + c.limit + `","cost":1}`
			auth := base + "/v1/auth?key=k&limit=" + url.QueryEscape(c.limit)
			for _, got := range []response{
				do(t, "POST", base+"/v1/take", body, remote()), do(t, "GET", auth, "", remote()),
			} {
				p := got.problem(t)
				if got.status != http.StatusForbidden || p.Type != httpapi.ProblemLimitRefused ||
					!strings.Contains(p.Detail, c.want) || !strings.Contains(p.Detail, "exempt are callers with the token") {
					t.Errorf("%s: got %+v, want 403 that contains %q", c.limit, got, c.want)
				}
			}
			if got := do(t, "POST", base+"/v1/take", body, withToken()); got.status != 200 || !strings.Contains(got.body, `"granted":1`) {
				t.Errorf("%s with the token: got %+v, want 200: refusals must not charge", c.limit, got)
			}
		}
		for _, limit := range []string{"1/31d", "7/31d", "10/month fixed-window zone=UTC", "300/24d sliding-log", "100/1h rolling-window buckets=100"} {
			if got := do(t, "POST", base+"/v1/take", `{"key":"r","limit":"`+limit+`"}`, remote()); got.status != 200 {
				t.Errorf("%s: got %+v, want 200: it is below the ceilings", limit, got)
			}
		}
		if refused := e.RequestLimits().Refused(); refused[requestlimits.ReasonPeriod] != 10 || refused[requestlimits.ReasonKeyBytes] != 4 {
			t.Errorf("counted %v, want 10 by the period and 4 by the bytes", refused)
		}
	})
}

// One refused limit refuses the whole list, as an invalid one does, and is pointed at.
func TestTakeRefusesListsWithLimitsOverCeilings(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serve(t, newServer(t, newEngine(t, store, nil), nil))
		const list = `"requests":[{"key":"a","limit":"1/1h"},{"key":"b","limit":"1/1h"},{"key":"c","limit":"1/366d"}]}`
		for _, mode := range []string{"each", "all"} {
			got := do(t, "POST", base+"/v1/take", `{"mode":"`+mode+`",`+list, remote())
			if p := got.problem(t); got.status != http.StatusForbidden || p.Pointer != "#/requests/2/limit" {
				t.Errorf("%s: got %+v, want 403 about #/requests/2/limit", mode, got)
			}
		}
		if got := post(t, base, `{"key":"a","limit":"1/1h"}`); got.status != 200 {
			t.Errorf("got %+v, want 200: the lists must not charge", got)
		}
	})
}

func TestTakeRefusesAllLimitsByMode(t *testing.T) {
	const body = `{"key":"k","limit":"100/1s"}`
	for _, c := range []struct {
		mode          requestlimits.Mode
		remote, local int
		want          string
	}{
		{requestlimits.On, 200, 200, ""},
		{requestlimits.Local, 403, 200, "--request-limits local"},
		{requestlimits.Off, 403, 403, "--request-limits off"},
	} {
		e := newEngine(t, frozenMemory(), &engine.Options{RequestLimits: requestlimits.Options{Mode: c.mode}})
		base := serve(t, newServer(t, e, nil))
		for name, call := range map[string]func(http.Header) response{
			"/v1/take": func(h http.Header) response { return do(t, "POST", base+"/v1/take", body, h) },
			"/v1/auth": func(h http.Header) response { return do(t, "GET", base+"/v1/auth?key=k&limit=100/1s", "", h) },
			"/json": func(h http.Header) response {
				return do(t, "POST", base+"/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"requests_per_unit":9,"unit":"HOUR"}}]}`, h)
			},
		} {
			got := call(remote())
			if got.status != c.remote || name != "/json" && !strings.Contains(got.body, c.want) {
				t.Errorf("%s in mode %d, remote: got %+v, want %d with %q", name, c.mode, got, c.remote, c.want)
			}
			if got := call(nil); got.status != c.local {
				t.Errorf("%s in mode %d, local: got %+v, want %d", name, c.mode, got, c.local)
			}
		}
		if got := do(t, "POST", base+"/v1/take", byRules("tenant=x"), remote()); got.status != 200 {
			t.Errorf("by rules in mode %d: got %+v, want 200", c.mode, got)
		}
	}
}

// When limits in requests have left their share in the store, new keys are refused, and keys
// that are there, peeks and rules are not.
func TestTakeRefusesNewKeysOverStoreBytes(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		now := noon
		e := newEngine(t, store, &engine.Options{RequestLimits: requestlimits.Options{
			MaxStoreBytes: 1000, Now: func() time.Time { return now },
		}})
		base := serve(t, newServer(t, e, nil))
		take := func(key string, h http.Header) int {
			return do(t, "POST", base+"/v1/take", `{"key":"`+key+`","limit":"5/1m"}`, h).status
		}
		if a, b, c, again := take("a", remote()), take("b", remote()), take("c", remote()), take("a", remote()); a != 200 || b != 200 || c != 403 || again != 200 {
			t.Fatalf("got %d %d %d, and a again %d; want 200 200 403 200", a, b, c, again)
		}
		got := do(t, "POST", base+"/v1/take", `{"mode":"all","requests":[{"key":"a","limit":"5/1m"},{"key":"d","limit":"5/1m"}]}`, remote())
		if p := got.problem(t); got.status != 403 || p.Pointer != "#/requests/1/limit" || !strings.Contains(p.Detail, "--request-limits-max-redis-bytes") {
			t.Errorf("got %+v, want 403 about #/requests/1/limit", got)
		}
		got = do(t, "POST", base+"/v1/take", `{"mode":"each","requests":[{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"y"}]}]},{"key":"d","limit":"5/1m"}]}`, remote())
		if p := got.problem(t); got.status != 403 || p.Pointer != "#/requests/1/limit" {
			t.Errorf("got %+v, want 403 about #/requests/1/limit", got)
		}
		for name, got := range map[string]response{
			"peek":  do(t, "POST", base+"/v1/take", `{"key":"e","limit":"5/1m","cost":0}`, remote()),
			"local": do(t, "POST", base+"/v1/take", `{"key":"f","limit":"5/1m"}`, nil),
			"rule":  do(t, "POST", base+"/v1/take", byRules("tenant=z"), remote()),
		} {
			if got.status != 200 {
				t.Errorf("%s: got %+v, want 200", name, got)
			}
		}
		now = now.Add(3 * time.Minute)
		if got := take("c", remote()); got != 200 {
			t.Errorf("after the others expired: got %d, want 200", got)
		}
	})
}
