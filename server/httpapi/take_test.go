package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

// serveStore serves a store with the rules of ruleFile, and returns the URL.
func serveStore(t testing.TB, store penstock.Store) string {
	t.Helper()
	return serve(t, newServer(t, newEngine(t, store, nil), nil))
}

func TestTakeDeniesWhenExhausted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		body := `{"key":"user:42","limit":"2/1s"}`
		post(t, base, body).want(t, 200,
			`{"allowed":true,"granted":1,"limit":2,"remaining":1,"retry_after":0,"reset_after":0.5,"delay":0,"source":"store"}`)
		post(t, base, body).want(t, 200,
			`{"allowed":true,"granted":1,"limit":2,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store"}`)
		denied := post(t, base, body)
		denied.want(t, 429,
			`{"allowed":false,"granted":0,"limit":2,"remaining":0,"retry_after":0.5,"reset_after":1,"delay":0,"source":"store"}`)
		for name, want := range map[string]string{
			"Content-Type": "application/json", "Retry-After": "1",
			"Ratelimit": `"default";r=0;t=1`, "Ratelimit-Policy": `"default";q=2;w=1`,
		} {
			if got := denied.header.Get(name); got != want {
				t.Errorf("%s of a denial: got %q, want %q", name, got, want)
			}
		}
	})
}

func TestTakePeekRefundReset(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		for _, step := range []struct {
			request  string
			status   int
			response string
		}{
			// Take three of four.
			{`{"key":"k","limit":"4/1s","cost":3}`, 200, `"granted":3,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// Peek.
			{`{"key":"k","limit":"4/1s","cost":0}`, 200, `"granted":0,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// One at once: taken, renewed, denied, released.
			{`{"key":"held","limit":"1/30s concurrent","id":"a"}`, 200, `"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":30,"delay":0`},
			{`{"key":"held","limit":"1/30s concurrent","id":"a"}`, 200, `"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":30,"delay":0`},
			{`{"key":"held","limit":"1/30s concurrent","id":"b"}`, 429, `"granted":0,"limit":1,"remaining":0,"retry_after":30,"reset_after":30,"delay":0`},
			{`{"key":"held","limit":"1/30s concurrent","id":"a","cost":-1}`, 200, `"granted":-1,"limit":1,"remaining":1,"retry_after":0,"reset_after":0,"delay":0`},
			{`{"key":"held","limit":"1/30s concurrent","id":"a","cost":-1}`, 200, `"granted":0,"limit":1,"remaining":1,"retry_after":0,"reset_after":0,"delay":0`},
			// Take what leaves one.
			{`{"key":"kept","limit":"4/1s","cost":3,"keep_free":1}`, 200, `"granted":3,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			{`{"key":"kept","limit":"4/1s","keep_free":1}`, 429, `"granted":0,"limit":4,"remaining":1,"retry_after":0.25,"reset_after":0.75,"delay":0`},
			// Charge what is not left, up to a debt of four.
			{`{"key":"debt","limit":"4/1s","cost":6,"overdraw":true}`, 200, `"granted":6,"limit":4,"remaining":0,"retry_after":0,"reset_after":1.5,"delay":0`},
			{`{"key":"debt","limit":"4/1s","cost":6,"overdraw":true}`, 200, `"granted":2,"limit":4,"remaining":0,"retry_after":0,"reset_after":2,"delay":0`},
			// Take at most what is left.
			{`{"key":"k","limit":"4/1s","cost":3,"at_most":true}`, 200, `"granted":1,"limit":4,"remaining":0,"retry_after":0,"reset_after":1,"delay":0`},
			// Take with a delay of up to 250 ms.
			{`{"key":"k","limit":"4/1s","max_delay":0.25}`, 200, `"granted":1,"limit":4,"remaining":0,"retry_after":0,"reset_after":1.25,"delay":0.25`},
			{`{"key":"k","limit":"4/1s","max_delay":0.25}`, 429, `"granted":0,"limit":4,"remaining":0,"retry_after":0.25,"reset_after":1.25,"delay":0`},
			// Refund.
			{`{"key":"k","limit":"4/1s","cost":-2}`, 200, `"granted":-2,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// Reset.
			{`{"key":"k","limit":"4/1s","cost":-9223372036854775808}`, 200, `"granted":-3,"limit":4,"remaining":4,"retry_after":0,"reset_after":0,"delay":0`},
			{`{"key":"k","limit":"4/1s","cost":4,"reset":false}`, 200, `"granted":4,"limit":4,"remaining":0,"retry_after":0,"reset_after":1,"delay":0`},
			{`{"key":"k","limit":"4/1s","reset":true}`, 200, `"granted":-4,"limit":4,"remaining":4,"retry_after":0,"reset_after":0,"delay":0`},
			// Take with an ID: retries are charged once.
			{`{"key":"k","limit":"4/1s","cost":2,"id":"a"}`, 200, `"granted":2,"limit":4,"remaining":2,"retry_after":0,"reset_after":0.5,"delay":0`},
			{`{"key":"k","limit":"4/1s","cost":2,"id":"a"}`, 200, `"granted":2,"limit":4,"remaining":2,"retry_after":0,"reset_after":0.5,"delay":0`},
			// The same key and limit, written differently.
			{`{"key_base64":"aw==","limit":"4/1s burst=4","cost":1.0}`, 200, `"granted":1,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
		} {
			t.Log(step.request)
			got := post(t, base, step.request)
			allowed := "true"
			if step.status == http.StatusTooManyRequests {
				allowed = "false"
			}
			got.want(t, step.status, `{"allowed":`+allowed+`,`+step.response+`,"source":"store"}`)
		}
	})
}

// By rules, an ID, at_most, keep_free and max_delay mean what they mean under a limit.
func TestTakeByRulesOnTerms(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		for _, step := range []struct {
			request string
			status  int
			granted int
		}{
			{`{"cost":2,"id":"a",` + byRules("tenant=1")[1:], 200, 2},
			{`{"cost":2,"id":"a",` + byRules("tenant=1")[1:], 200, 2},
			{`{"cost":2,"keep_free":2,` + byRules("tenant=1")[1:], 429, 0},
			{`{"cost":9,"at_most":true,"keep_free":1,` + byRules("tenant=1", "team=2")[1:], 200, 2},
			{`{"cost":1,` + byRules("tenant=1")[1:], 200, 1},
			{`{"cost":9,"at_most":true,` + byRules("tenant=1", "team=2")[1:], 429, 0},
			{byRules("queue=1"), 200, 1},
			{`{"max_delay":60,` + byRules("queue=1")[1:], 429, 0},
		} {
			got := post(t, base, step.request)
			if want := fmt.Sprintf(`"granted":%d,`, step.granted); got.status != step.status || !strings.Contains(got.rawBody, want) {
				t.Errorf("%s: got %d %s, want %d with %s", step.request, got.status, got.rawBody, step.status, want)
			}
		}
		if got := post(t, base, `{"cost":98,`+byRules("team=2")[1:]); got.status != 200 {
			t.Errorf("got %d %s, want 98 of 100 to be left", got.status, got.rawBody)
		}
	})
}

// A cost above what the limit ever grants is denied without Retry-After, and the
// response says why.
func TestTakeSaysThatCostNeverFits(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		const never = `"limit":4,"remaining":4,"retry_after":null,"reset_after":0,"delay":0,"source":"store"`
		for request, detail := range map[string]string{
			`{"key":"k","limit":"4/1s","cost":5}`: "costs 5, and the limit never grants more than 4",
			`{"key":"k","limit":"0/1s"}`:          "costs 1, and the limit never grants more than 0",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}],"cost":6}]}`:                       "costs 6, and the limit never grants more than 5",
			`{"mode":"all","requests":[{"key":"k","limit":"9/1s"},{"key":"k","limit":"4/1s","cost":5}]}`:                  "costs 5, and the limit never grants more than 4",
			`{"mode":"all","requests":[{"key":"k","limit":"4/1s","cost":3},{"key":"k","limit":"4/1s","cost":2}]}`:         "costs more in total than 4, and the limit never grants more",
			`{"mode":"each","requests":[{"key":"k","limit":"4/1s","cost":5}]}`:                                            "",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"watched","value":"x"}],"cost":2}]}`:                      "",
			`{"mode":"all","requests":[{"domain":"edge","descriptors":[{"entries":[{"key":"tenant"}]}],"cost":2000000}]}`: "costs 2000000, and the limit never grants more than 5",
		} {
			got := post(t, base, request)
			var body struct{ Detail string }
			if err := json.Unmarshal([]byte(got.body), &body); err != nil || body.Detail != detail {
				t.Errorf("%s: got %s, %v, want the detail %q", request, got.body, err, detail)
			}
			if after := got.header.Get("Retry-After"); after != "" {
				t.Errorf("%s: Retry-After: %s, want none", request, after)
			}
		}
		post(t, base, `{"key":"k","limit":"4/1s","cost":5}`).want(t, 429,
			`{"allowed":false,"granted":0,`+never+`,"detail":"costs 5, and the limit never grants more than 4"}`)
		got := auth(t, base, "limit=4/1s&key=k&cost=5")
		if want := `"detail":"costs 5, and the limit never grants more than 4"`; got.status != 429 || !strings.Contains(got.body, want) {
			t.Errorf("/v1/auth: got %d %s, want %s", got.status, got.body, want)
		}
	})
}

func TestTakeListAllChargesAllOrNone(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		body := `{"mode":"all","requests":[{"key":"a","limit":"10/1s"},{"key":"b","limit":"1/1s"}]}`
		post(t, base, body).want(t, 200, `{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":true,"granted":1,"limit":10,"remaining":9,"retry_after":0,"reset_after":0.1,"delay":0,"source":"store"},`+
			`{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store"}]}`)
		denied := post(t, base, body)
		denied.want(t, 429, `{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":true,"granted":0,"limit":10,"remaining":9,"retry_after":0,"reset_after":0.1,"delay":0,"source":"store"},`+
			`{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store"}]}`)
		if got := denied.header.Get("Retry-After"); got != "1" {
			t.Errorf("Retry-After: got %q, want 1", got)
		}
	})
}

func TestTakeListEachDecidesIndependently(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		body := `{"mode":"each","requests":[{"key":"a","limit":"1/1s"},` +
			`{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}]}],"cost":5},{"key":"b","limit":"9/1s","cost":2}]}`
		post(t, base, body)
		second := post(t, base, body)
		second.want(t, 200, `{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store","rule":"edge/tenant",`+
			`"decisions":[{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store"},`+
			`{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store","rule":"edge/tenant",`+
			`"decisions":[{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store","rule":"edge/tenant"}]},`+
			`{"allowed":true,"granted":2,"limit":9,"remaining":5,"retry_after":0,"reset_after":0.445,"delay":0,"source":"store"}]}`)
		if got := second.header.Get("Retry-After"); got != "" {
			t.Errorf("Retry-After: got %q, want none in mode each", got)
		}
	})
}

// A list with an invalid request is rejected before any of its requests is charged, also if
// only a store would notice.
func TestTakeListEachChargesNothingOfAnInvalidList(t *testing.T) {
	base := serveStore(t, frozenMemory())
	tooMuch := strings.Replace(byRules("tenant=x", "tenant=x"), `"domain"`, `"cost":9223372036854775807,"domain"`, 1)
	got := post(t, base, `{"mode":"each","requests":[{"key":"a","limit":"3/1h"},`+tooMuch+`]}`)
	if p := got.problem(t); got.status != 400 || p.Type != httpapi.ProblemBadCost || p.Pointer != "#/requests/1/descriptors" {
		t.Errorf("got %+v, want 400 at #/requests/1/descriptors", got)
	}
	if got := post(t, base, `{"key":"a","limit":"3/1h","cost":0}`); !strings.Contains(got.body, `"remaining":3`) {
		t.Errorf("after the rejected list: got %s, want nothing charged", got.body)
	}
}

// byRules returns the body of a request by rules, with a descriptor for each entry
// such as "tenant=x".
func byRules(entries ...string) string {
	var b strings.Builder
	b.WriteString(`{"domain":"edge","descriptors":[`)
	for i, entry := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		key, value, _ := strings.Cut(entry, "=")
		b.WriteString(`{"entries":[{"key":"` + key + `","value":"` + value + `"}]}`)
	}
	return b.String() + `]}`
}

func TestTakeByRules(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		const (
			d2 = `"granted":1,"limit":3,"remaining":2,"retry_after":0,"reset_after":20,"delay":0,"source":"store"`
			d1 = `"granted":1,"limit":3,"remaining":1,"retry_after":0,"reset_after":40,"delay":0,"source":"store"`
			d0 = `"granted":1,"limit":3,"remaining":0,"retry_after":0,"reset_after":60,"delay":0,"source":"store"`
		)
		body := byRules("remote_address=10.0.0.1", "unruled=x", "free=y")
		for _, d := range []string{d2, d1, d0} {
			post(t, base, body).want(t, 200, `{"allowed":true,`+d+`,"rule":"edge/remote_address","decisions":[{"allowed":true,`+d+`,"rule":"edge/remote_address"},`+
				`{"allowed":true},{"allowed":true,"rule":"edge/free"}]}`)
		}
		denied := post(t, base, body)
		if denied.status != 429 || denied.header.Get("Retry-After") != "20" ||
			denied.header.Get("Ratelimit") != `"edge/remote_address";r=0;t=20` {
			t.Errorf("fourth request: got %+v, want 429 with Retry-After: 20", denied)
		}
	})
}

func TestTakeWithoutMatchingRuleIsAllowed(t *testing.T) {
	base := serveStore(t, frozenMemory())
	got := post(t, base, byRules("unruled=x"))
	got.want(t, 200, `{"allowed":true,"decisions":[{"allowed":true}]}`)
	if got.header.Get("Ratelimit") != "" {
		t.Errorf("RateLimit: got %s, want none without a limit", got.header.Get("Ratelimit"))
	}
}

// The body reports what a shadow rule would have decided; headers do not.
func TestTakeReportsShadowRules(t *testing.T) {
	base := serveStore(t, frozenMemory())
	post(t, base, byRules("watched=x"))
	got := post(t, base, byRules("watched=x"))
	got.want(t, 200, `{"allowed":true,"decisions":[{"allowed":true,"granted":0,"limit":1,"remaining":0,"retry_after":60,`+
		`"reset_after":60,"delay":0,"source":"store","rule":"edge/watched","mode":"shadow"}]}`)
	if got.header.Get("Retry-After")+got.header.Get("Ratelimit") != "" {
		t.Errorf("got headers of a shadow rule: %v", got.header)
	}
}

func TestTakeReportsQuotaRules(t *testing.T) {
	base := serveStore(t, frozenMemory())
	post(t, base, byRules("plan=gold"))
	got := post(t, base, byRules("plan=gold", "tenant=x"))
	if got.status != 429 || !strings.Contains(got.body, `"rule":"edge/plan=gold","mode":"quota"`) {
		t.Errorf("quota exceeded: got %+v, want 429 and mode quota", got)
	}
}

func TestTakeListAllByRulesChargesAllOrNone(t *testing.T) {
	base := serveStore(t, frozenMemory())
	one := func(entry, cost string) string {
		return strings.TrimSuffix(byRules(entry), "}") + `,"cost":` + cost + `}`
	}
	body := `{"mode":"all","requests":[` + one("tenant=x", "1") + `,` + one("remote_address=1", "2") + `]}`
	if got := post(t, base, body); got.status != 200 {
		t.Fatalf("first request: got %+v, want 200", got)
	}
	denied := post(t, base, body)
	if denied.status != 429 || !strings.Contains(denied.body, `{"allowed":true,"granted":0,"limit":5,"remaining":4`) {
		t.Errorf("second request: got %+v, want 429 and no charge", denied)
	}
}

func TestServerHeadersSelectsForm(t *testing.T) {
	server := newServer(t, newEngine(t, frozenMemory(), nil), &httpapi.Options{Headers: httplimit.XRateLimit})
	got := send(t, "POST", serve(t, server)+"/v1/take", `{"key":"k","limit":"2/1s"}`, nil) // openapi.yaml does not describe these headers
	if got.header.Get("X-Ratelimit-Remaining") != "1" || got.header.Get("Ratelimit") != "" {
		t.Errorf("got %v, want X-RateLimit-Remaining: 1", got.header)
	}
}

func TestNewRejectsBadArguments(t *testing.T) {
	if _, err := httpapi.New(nil, nil); err == nil {
		t.Error("without an engine: want an error")
	}
	e := engine.New(penstock.NewMemory(nil), nil)
	if _, err := httpapi.New(e, &httpapi.Options{Headers: httplimit.NoHeaders + 1}); err == nil {
		t.Error("with unknown headers: want an error")
	}
}

// ObserveLatency gets the duration of decisions, without the time of holding.
func TestObserveLatencyExcludesHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var latencies []time.Duration
		server := newServer(t, newEngine(t, penstock.NewMemory(nil), nil), &httpapi.Options{
			ObserveLatency: func(_ context.Context, d time.Duration) { latencies = append(latencies, d) },
		})
		authDirectly(t.Context(), server, "domain=edge&line=k")
		authDirectly(t.Context(), server, "domain=edge&line=k")
		for path, body := range map[string]string{
			"/v1/take": `{"key":"k","limit":"1/s"}`, "/json": `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant"}]}]}`,
		} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			if server.ServeHTTP(w, r); w.Code != 200 {
				t.Errorf("%s: got %d %s, want 200", path, w.Code, w.Body)
			}
		}
		if !slices.Equal(latencies, make([]time.Duration, 4)) {
			t.Errorf("got the latencies %v, want four times 0", latencies)
		}
	})
}

// Beside a denial by the deny cache, nothing is known of other limits, and nothing is said of them.
func TestTakeDeniedByDenyCacheInventsNoNumbers(t *testing.T) {
	base := serveStore(t, penstock.WithDenyCache(frozenMemory(), nil))
	for name, body := range map[string]string{
		"limits": `{"mode":"all","requests":[{"key":"k","limit":"60/1h"},{"key":"k","limit":"5/1h","cost":5}]}`,
		"rules":  byRules("team=9", "remote_address=10.0.0.9"),
	} {
		var last response
		for range 6 {
			last = post(t, base, body)
		}
		var d struct {
			Allowed   bool
			Source    string
			Decisions []map[string]any
		}
		if err := json.Unmarshal([]byte(last.body), &d); err != nil || d.Allowed || d.Source != "deny-cache" {
			t.Fatalf("%s: got %s (%v), want a denial by the deny cache", name, last.body, err)
		}
		if other := d.Decisions[0]; other["allowed"] != true || other["remaining"] != nil || other["source"] != nil || d.Decisions[1]["remaining"] == nil {
			t.Errorf("%s: got %s, want numbers of the denial alone", name, last.body)
		}
		if got := last.header.Get("Ratelimit"); strings.Count(got, ";r=") != 1 {
			t.Errorf("%s: the header is %q, want the denial alone", name, got)
		}
	}
}

// Every decision that can never be another says why, with the units that it would have to keep free.
func TestTakeSaysWhatIsKeptFree(t *testing.T) {
	base := serveStore(t, frozenMemory())
	const detail = `"detail":"costs 8 and keeps 3 free, and the limit never grants more than 10"`
	one := `{"key":"k","limit":"10/1h","cost":8,"keep_free":3}`
	for body, want := range map[string]int{one: 1, `{"mode":"all","requests":[` + one + `]}`: 2, `{"mode":"each","requests":[` + one + `]}`: 1} {
		if got := post(t, base, body); strings.Count(got.body, detail) != want {
			t.Errorf("%s: got %s, want %d times %s", body, got.body, want, detail)
		}
	}
}
