package httpapi_test

import (
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

// open serves a store, with rules, and returns the address.
func open(t testing.TB, store penstock.Store) string {
	t.Helper()
	return serve(t, newDoor(t, judgeOf(t, store, nil), nil))
}

func TestTakingUntilNothingIsLeft(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		ask := `{"key":"user:42","limit":"2/1s"}`
		post(t, at, ask).want(t, 200,
			`{"allowed":true,"granted":1,"limit":2,"remaining":1,"retry_after":0,"reset_after":0.5,"delay":0,"source":"store"}`)
		post(t, at, ask).want(t, 200,
			`{"allowed":true,"granted":1,"limit":2,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store"}`)
		denied := post(t, at, ask)
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

func TestEveryVerb(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		for _, step := range []struct {
			ask    string
			status int
			answer string
		}{
			// Take three of four.
			{`{"key":"k","limit":"4/1s","cost":3}`, 200, `"granted":3,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// Look.
			{`{"key":"k","limit":"4/1s","cost":0}`, 200, `"granted":0,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// What is left.
			{`{"key":"k","limit":"4/1s","cost":3,"at_most":true}`, 200, `"granted":1,"limit":4,"remaining":0,"retry_after":0,"reset_after":1,"delay":0`},
			// In line, within two seconds.
			{`{"key":"k","limit":"4/1s","max_delay":0.25}`, 200, `"granted":1,"limit":4,"remaining":0,"retry_after":0,"reset_after":1.25,"delay":0.25`},
			{`{"key":"k","limit":"4/1s","max_delay":0.25}`, 429, `"granted":0,"limit":4,"remaining":0,"retry_after":0.25,"reset_after":1.25,"delay":0`},
			// Give back.
			{`{"key":"k","limit":"4/1s","cost":-2}`, 200, `"granted":-2,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
			// Reset.
			{`{"key":"k","limit":"4/1s","cost":-9223372036854775808}`, 200, `"granted":-3,"limit":4,"remaining":4,"retry_after":0,"reset_after":0,"delay":0`},
			// Once, however often it is asked.
			{`{"key":"k","limit":"4/1s","cost":2,"id":"a"}`, 200, `"granted":2,"limit":4,"remaining":2,"retry_after":0,"reset_after":0.5,"delay":0`},
			{`{"key":"k","limit":"4/1s","cost":2,"id":"a"}`, 200, `"granted":2,"limit":4,"remaining":2,"retry_after":0,"reset_after":0.5,"delay":0`},
			// Never.
			{`{"key":"k","limit":"4/1s","cost":5}`, 429, `"granted":0,"limit":4,"remaining":2,"retry_after":null,"reset_after":0.5,"delay":0`},
			// The same key in other words.
			{`{"key_base64":"aw==","limit":"4/1s burst=4","cost":1.0}`, 200, `"granted":1,"limit":4,"remaining":1,"retry_after":0,"reset_after":0.75,"delay":0`},
		} {
			t.Log(step.ask)
			got := post(t, at, step.ask)
			allowed := "true"
			if step.status == http.StatusTooManyRequests {
				allowed = "false"
			}
			got.want(t, step.status, `{"allowed":`+allowed+`,`+step.answer+`,"source":"store"}`)
			if never := strings.Contains(step.answer, "null"); never && got.header.Get("Retry-After") != "" {
				t.Errorf("Retry-After: %s, of a cost that never fits", got.header.Get("Retry-After"))
			}
		}
	})
}

func TestAListIsDecidedAsOne(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		ask := `{"mode":"all","requests":[{"key":"a","limit":"10/1s"},{"key":"b","limit":"1/1s"}]}`
		post(t, at, ask).want(t, 200, `{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":true,"granted":1,"limit":10,"remaining":9,"retry_after":0,"reset_after":0.1,"delay":0,"source":"store"},`+
			`{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":1,"delay":0,"source":"store"}]}`)
		denied := post(t, at, ask)
		denied.want(t, 429, `{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":true,"granted":0,"limit":10,"remaining":9,"retry_after":0,"reset_after":0.1,"delay":0,"source":"store"},`+
			`{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store"}]}`)
		if got := denied.header.Get("Retry-After"); got != "1" {
			t.Errorf("Retry-After: got %q, want 1", got)
		}
	})
}

func TestAListIsDecidedEachByItself(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		ask := `{"mode":"each","requests":[{"key":"a","limit":"1/1s"},` +
			`{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}]}],"cost":5},{"key":"b","limit":"9/1s","cost":2}]}`
		post(t, at, ask)
		second := post(t, at, ask)
		second.want(t, 200, `{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":1,"reset_after":1,"delay":0,"source":"store"},`+
			`{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store",`+
			`"decisions":[{"allowed":false,"granted":0,"limit":5,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store","rule":"edge/tenant"}]},`+
			`{"allowed":true,"granted":2,"limit":9,"remaining":5,"retry_after":0,"reset_after":0.445,"delay":0,"source":"store"}]}`)
		if got := second.header.Get("Retry-After"); got != "" {
			t.Errorf("Retry-After: got %q, where part of it was granted", got)
		}
	})
}

// byRules asks about descriptors such as "tenant=x".
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

func TestByTheRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		const (
			d2 = `"granted":1,"limit":3,"remaining":2,"retry_after":0,"reset_after":20,"delay":0,"source":"store"`
			d1 = `"granted":1,"limit":3,"remaining":1,"retry_after":0,"reset_after":40,"delay":0,"source":"store"`
			d0 = `"granted":1,"limit":3,"remaining":0,"retry_after":0,"reset_after":60,"delay":0,"source":"store"`
		)
		ask := byRules("remote_address=10.0.0.1", "nobody=x", "free=y")
		for _, d := range []string{d2, d1, d0} {
			post(t, at, ask).want(t, 200, `{"allowed":true,`+d+`,"decisions":[{"allowed":true,`+d+`,"rule":"edge/remote_address"},`+
				`{"allowed":true},{"allowed":true,"rule":"edge/free"}]}`)
		}
		denied := post(t, at, ask)
		if denied.status != 429 || denied.header.Get("Retry-After") != "20" ||
			denied.header.Get("Ratelimit") != `"edge/remote_address";r=0;t=20` {
			t.Errorf("the fourth of three: got %+v", denied)
		}
	})
}

func TestWhatNoRuleIsAboutPasses(t *testing.T) {
	at := open(t, stillMemory())
	got := post(t, at, byRules("nobody=x"))
	got.want(t, 200, `{"allowed":true,"decisions":[{"allowed":true}]}`)
	if got.header.Get("Ratelimit") != "" {
		t.Errorf("RateLimit: %s, without a limit", got.header.Get("Ratelimit"))
	}
}

// A rule in shadow says what it would have done, and headers do not tell of it.
func TestShadowIsToldApart(t *testing.T) {
	at := open(t, stillMemory())
	post(t, at, byRules("watched=x"))
	got := post(t, at, byRules("watched=x"))
	got.want(t, 200, `{"allowed":true,"decisions":[{"allowed":true,"granted":0,"limit":1,"remaining":0,"retry_after":60,`+
		`"reset_after":60,"delay":0,"source":"store","rule":"edge/watched","mode":"shadow"}]}`)
	if got.header.Get("Retry-After")+got.header.Get("Ratelimit") != "" {
		t.Errorf("headers tell of a rule in shadow: %v", got.header)
	}
}

// A quota that is over does not deny while another holds, and then a grant has no
// Retry-After.
func TestQuotaIsToldApart(t *testing.T) {
	at := open(t, stillMemory())
	post(t, at, byRules("plan=gold"))
	got := post(t, at, byRules("plan=gold", "tenant=x"))
	if got.status != 429 || !strings.Contains(got.body, `"rule":"edge/plan=gold","mode":"quota"`) {
		t.Errorf("the only quota is over: got %+v", got)
	}
}

func TestRulesOfAListAreDecidedAsOne(t *testing.T) {
	at := open(t, stillMemory())
	one := func(entry, cost string) string {
		return strings.TrimSuffix(byRules(entry), "}") + `,"cost":` + cost + `}`
	}
	ask := `{"mode":"all","requests":[` + one("tenant=x", "1") + `,` + one("remote_address=1", "2") + `]}`
	if got := post(t, at, ask); got.status != 200 {
		t.Fatalf("the first: got %+v", got)
	}
	denied := post(t, at, ask)
	if denied.status != 429 || !strings.Contains(denied.body, `{"allowed":true,"granted":0,"limit":5,"remaining":4`) {
		t.Errorf("one of the two is over, so none is charged: got %+v", denied)
	}
}

func TestHeadersOfAnotherForm(t *testing.T) {
	door := newDoor(t, judgeOf(t, stillMemory(), nil), &httpapi.Options{Form: httplimit.XRateLimit})
	got := send(t, "POST", serve(t, door)+"/v1/take", `{"key":"k","limit":"2/1s"}`, nil) // which the file does not describe
	if got.header.Get("X-Ratelimit-Remaining") != "1" || got.header.Get("Ratelimit") != "" {
		t.Errorf("got %v, want X-RateLimit-Remaining: 1", got.header)
	}
}

func TestADoorThatCannotBe(t *testing.T) {
	if _, err := httpapi.New(nil, nil); err == nil {
		t.Error("without a judge: want an error")
	}
	j := engine.New(penstock.NewMemory(nil), nil)
	if _, err := httpapi.New(j, &httpapi.Options{Form: httplimit.NoHeaders + 1}); err == nil {
		t.Error("with headers of no form: want an error")
	}
}

// Whoever wants to know is told how long decisions took, and not how long requests
// were held.
func TestDecisionsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		door := newDoor(t, judgeOf(t, penstock.NewMemory(nil), nil), &httpapi.Options{
			ObserveLatency: func(d time.Duration) { took = append(took, d) },
		})
		visit(t.Context(), door, "domain=edge&line=k")
		visit(t.Context(), door, "domain=edge&line=k")
		for path, body := range map[string]string{
			"/v1/take": `{"key":"k","limit":"1/s"}`, "/json": `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant"}]}]}`,
		} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			if door.ServeHTTP(w, r); w.Code != 200 {
				t.Errorf("%s: got %d %s, want 200", path, w.Code, w.Body)
			}
		}
		if !slices.Equal(took, make([]time.Duration, 4)) {
			t.Errorf("took %v, want four decisions in no time", took)
		}
	})
}
