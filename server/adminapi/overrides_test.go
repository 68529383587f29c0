package adminapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
)

const overridesURL = "/v1/overrides"

// put sends a body to /v1/overrides.
func put(s http.Handler, query, contentType, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, "http://localhost"+overridesURL+query, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:4711"
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func putJSON(s http.Handler, body string) *httptest.ResponseRecorder {
	return put(s, "", "application/json", body)
}

type overrideList struct {
	Overrides []map[string]any
	Durable   bool
}

func listOverrides(t *testing.T, s http.Handler, query string) overrideList {
	t.Helper()
	var list overrideList
	if w := send(s, "GET", overridesURL+query); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &list) != nil {
		t.Fatalf("GET %s: %d %s", query, w.Code, w.Body)
	}
	return list
}

func TestOverridesAreSetListedAndDeleted(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		var log bytes.Buffer
		auditLog, err := audit.New(audit.Options{Out: &log, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, e, adminapi.Options{Loopback: true, Audit: auditLog})
		w := putJSON(s, `{"rule":"edge/remote_address","key":"203.0.113.9","limit":"9/1m fixed-window align=clock","for":"1h","reason":"trial"}`)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"durable": false`) || !strings.Contains(w.Body.String(), "lost when it ends") {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
		decide := func() engine.Status {
			var result engine.Result
			ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "203.0.113.9"}}, Cost: 1}}
			if err := e.Decide(t.Context(), "edge", ds, &result); err != nil {
				t.Fatal(err)
			}
			return result.Statuses[0]
		}
		if d := decide().Decision; d.Limit != 9 || d.Remaining != 8 {
			t.Errorf("got %v", d)
		}
		got := listOverrides(t, s, "?rule=edge/remote_address&key=203.0.113.9").Overrides
		if len(got) != 1 || got[0]["key"] != "remote_address=203.0.113.9" || got[0]["reason"] != "trial" || got[0]["until"] == nil || got[0]["last_used"] == nil {
			t.Errorf("got %v", got)
		}
		// /v1/keys shows what applies to the key.
		if body := send(s, "GET", "/v1/keys?domain=edge&remote_address=203.0.113.9").Body.String(); !strings.Contains(body, `"limit": "9/1m fixed-window`) ||
			!strings.Contains(body, `"reason": "trial"`) || !strings.Contains(body, `"remaining": 8`) {
			t.Errorf("got %s", body)
		}
		if w := putJSON(s, `{"rule":"edge/remote_address","key":"203.0.113.0/24","limit":"ban","reason":"abuse"}`); w.Code != 200 {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
		if w := send(s, "DELETE", overridesURL+"?rule=edge/remote_address&key=203.0.113.9&reason=over"); w.Code != 200 {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
		if s := decide(); !s.OverLimit || s.Decision.Limit != 3 {
			t.Errorf("got %+v, want the ban of the network", s)
		}
		if body := send(s, "GET", "/v1/keys?domain=edge&remote_address=203.0.113.9").Body.String(); !strings.Contains(body, `"would_allow": false`) ||
			!strings.Contains(body, `"retry_after": null`) {
			t.Errorf("got %s", body)
		}
		for _, want := range []string{
			`"action":"override.set".*"reason":"trial","result":"done"`,
			`"action":"override.delete".*"before":{"limit":"9/1m fixed-window align=clock","expires":.*"reason":"over","result":"done"`,
		} {
			if !containsInOrder(log.String(), strings.Split(want, ".*")) {
				t.Errorf("the audit log has no %s:\n%s", want, log.String())
			}
		}
	})
}

func containsInOrder(text string, parts []string) bool {
	for _, p := range parts {
		_, rest, ok := strings.Cut(text, p)
		if !ok {
			return false
		}
		text = rest
	}
	return true
}

func TestOverridesAreImportedAllOrNone(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	var table strings.Builder
	table.WriteString("rule,key,limit\n")
	for i := range 10_000 {
		fmt.Fprintf(&table, "edge/remote_address,10.1.%d.%d,600/1m\n", i/250, i%250)
	}
	if w := put(s, "?reason=plans", "text/csv", table.String()+"edge/remote_address,x,ban\n"); w.Code != 400 || !strings.Contains(w.Body.String(), "at most 10000") {
		t.Errorf("one too many: got %d %s", w.Code, w.Body)
	}
	if w := put(s, "?reason=plans", "text/csv", strings.Replace(table.String(), "10.1.39.249,600/1m", "10.1.39.249,many", 1)); w.Code != 400 ||
		!strings.Contains(w.Body.String(), "override 10000: limit:") {
		t.Errorf("the last is wrong: got %d %s", w.Code, w.Body)
	}
	if n := len(listOverrides(t, s, "").Overrides); n != 0 {
		t.Fatalf("%d overrides were set", n)
	}
	if w := put(s, "?reason=plans", "text/csv; charset=utf-8", table.String()); w.Code != 200 || !strings.Contains(w.Body.String(), `"set": 10000`) {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	exported := send(s, "GET", overridesURL+"?format=csv")
	if exported.Header().Get("Content-Type") != "text/csv; charset=utf-8" || strings.Count(exported.Body.String(), "\n") != 10_001 {
		t.Errorf("got %v, %d lines", exported.Header(), strings.Count(exported.Body.String(), "\n"))
	}
	if testing.Short() {
		return // a run without the race detector has the rest
	}
	other := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	if w := put(other, "", "text/csv", exported.Body.String()); w.Code != 200 {
		t.Errorf("an export cannot be imported: %d %s", w.Code, w.Body)
	}
	if w := putJSON(other, send(s, "GET", overridesURL).Body.String()); w.Code != 200 {
		t.Errorf("a list cannot be sent back: %d %s", w.Code, w.Body)
	}
}

func TestOverridesRejectsBadRequests(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	const good = `"rule":"edge/remote_address","key":"1","limit":"ban","reason":"r"`
	bad := map[string]string{
		``:                     "want JSON such as",
		`[]`:                   "]}: got array",
		`{"rule":7}`:           "rule: got number",
		`{` + good + `}{}`:     "want one JSON object",
		`{` + good + `,"x":1}`: "unknown field",
		`{"overrides":[]}`:     "at least one",
		`{"overrides":[{` + good + `}],` + good + `}`:                                                         "not both",
		`{"overrides":[{` + good + `},{` + good + `}]}`:                                                       "override 2: \\\"remote_address=1\\\" of rule edge/remote_address is also override 1",
		`{"rule":"edge/remote_adress","key":"1","limit":"ban","reason":"r"}`:                                  "did you mean edge/remote_address?",
		`{"rule":"edge/remote_address","key":"","limit":"ban","reason":"r"}`:                                  "is empty",
		`{"rule":"edge/remote_address","key":"a=b","limit":"ban","reason":"r"}`:                               "not a key of rule",
		`{"rule":"edge/remote_address","key":"a=b*","limit":"ban","reason":"r"}`:                              "beginning of keys",
		`{"rule":"edge/remote_address","key":"1","limit":"ban"}`:                                              "want a reason",
		`{"rule":"edge/remote_address","key":"1","reason":"r"}`:                                               "want a limit",
		`{"rule":"edge/remote_address","key":"1","limit":"-5/1m","reason":"r"}`:                               "bad limit",
		`{"rule":"edge/vip","key":"1","limit":"5/1m","reason":"r"}`:                                           "only be banned",
		`{` + good + `,"for":"-1h"}`:                                                                          "want a duration",
		`{` + good + `,"for":"1h","until":"2030-01-01T00:00:00Z"}`:                                            "not both",
		`{` + good + `,"until":"soon"}`:                                                                       "want a time",
		`{` + good + `,"until":"9999-01-01T00:00:00Z"}`:                                                       "want a year",
		`{"rule":"edge/remote_address","key":"` + strings.Repeat("x", 2000) + `","limit":"ban","reason":"r"}`: "at most 1024",
		`{"rule":"edge/remote_address","key":"1","limit":"ban","reason":"` + strings.Repeat("x", 300) + `"}`:  "at most 256",
	}
	if !testing.Short() { // the race detector takes seconds for it
		bad[`{"rule":"`+strings.Repeat(" ", 17<<20)+`"}`] = "too large"
	}
	for body, want := range bad {
		if w := putJSON(s, body); w.Code < 400 || w.Code >= 500 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.90s: got %d %s, want %q", body, w.Code, w.Body, want)
		}
	}
	for table, want := range map[string]string{
		"":                      "want a table in CSV",
		"rule,key\na,b\n":       "no column limit",
		"rule,key,limit,rule":   "at most once",
		"rule,key,limit,extra":  `column 4 of the table: want each of rule, key, limit, until, reason, strikes, last_used, for at most once`,
		"rule,key,limit\na,b\n": "wrong number of fields",
		"rule,key,limit\n":      "at least one",
	} {
		if w := put(s, "", "text/csv", table); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q: got %d %s, want %q", table, w.Code, w.Body, want)
		}
	}
	if w := send(s, "DELETE", overridesURL+"?rule=edge/remote_adress&key=1&reason=r"); !strings.Contains(w.Body.String(), "did you mean edge/remote_address?") {
		t.Errorf("a misspelt rule: got %s", w.Body)
	}
	for query, status := range map[string]int{
		"?rule=edge/remote_address&key=1&reason=r": 404, "?rule=gone&key=k&reason=r": 404, "?rule=edge/remote_address&key=1": 400,
		"?rule=edge/remote_address&reason=r": 400, "?x=1": 400, "?rule=a&rule=b": 400,
	} {
		if w := send(s, "DELETE", overridesURL+query); w.Code != status {
			t.Errorf("DELETE %s: got %d %s, want %d", query, w.Code, w.Body, status)
		}
	}
	if n := len(listOverrides(t, s, "").Overrides); n != 0 {
		t.Errorf("%d overrides were set", n)
	}
	for _, query := range []string{"?format=xml", "?key=1"} {
		if w := send(s, "GET", overridesURL+query); w.Code != 400 {
			t.Errorf("GET %s: got %d %s, want 400", query, w.Code, w.Body)
		}
	}
}

// An override of a rule that is no longer loaded can still be deleted.
func TestOverrideOfALostRuleIsDeleted(t *testing.T) {
	e := newEngine(t)
	s := newServer(t, e, adminapi.Options{Loopback: true})
	if w := putJSON(s, `{"rule":"edge/remote_address","key":"10.0.0.0/8","limit":"ban","reason":"r"}`); w.Code != 200 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	set, err := rules.Parse(rules.File{Name: "other.yaml", Text: []byte("domain: other\ndescriptors: [{key: k, limit: 1/1m}]\n")})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
	if w := send(s, "DELETE", overridesURL+"?rule=edge/remote_address&key=remote_address%3D10.0.0.0/8&reason=r"); w.Code != 200 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// A ban of one key that looks like a network is found by that name, unless the network has one.
func TestOverrideOfAKeyThatLooksLikeANetwork(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for _, key := range []string{`10.0.0.0\\/8`, "10.0.0.0/8"} {
		if w := putJSON(s, `{"rule":"edge/remote_address","key":"`+key+`","limit":"ban","reason":"r"}`); w.Code != 200 {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	for _, want := range []string{"remote_address=10.0.0.0/8", `remote_address=10.0.0.0\/8`} {
		const query = "?rule=edge/remote_address&key=10.0.0.0/8"
		if got := listOverrides(t, s, query).Overrides; len(got) != 1 || got[0]["key"] != want {
			t.Errorf("got %v, want %s", got, want)
		}
		if w := send(s, "DELETE", overridesURL+query+"&reason=r"); w.Code != 200 {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	}
	if n := len(listOverrides(t, s, "").Overrides); n != 0 {
		t.Errorf("%d overrides are left", n)
	}
}

func TestOverridesWithoutActionsAreShownOnly(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true, ReadOnly: true})
	if w := putJSON(s, `{}`); w.Code != 403 {
		t.Errorf("PUT: got %d", w.Code)
	}
	if w := send(s, "DELETE", overridesURL+"?rule=a&key=b&reason=c"); w.Code != 403 {
		t.Errorf("DELETE: got %d", w.Code)
	}
	listOverrides(t, s, "")
}

// A descriptor that only keeps units of the one above free has that one's keys and overrides.
func TestOverridesOfAKeyThatTwoRulesCount(t *testing.T) {
	e := newEngine(t)
	set, err := rules.Parse(rules.File{Name: "api.yaml", Text: []byte(`
domain: api
descriptors:
  - key: tenant
    limit: 1000/1m
    descriptors: [{key: priority, value: batch, keep_free: 20%}]
`)})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
	s := newServer(t, e, adminapi.Options{Loopback: true})
	const body = `{"rule":"%s","key":"%s","limit":"ban","reason":"x"}`
	for _, key := range []string{"acme", "ac*"} {
		w := putJSON(s, fmt.Sprintf(body, "api/tenant/priority=batch", key))
		if w.Code != 400 || !strings.Contains(w.Body.String(), "override those of api/tenant") {
			t.Errorf("%s of the rule below: got %d %s", key, w.Code, w.Body)
		}
	}
	if w := putJSON(s, fmt.Sprintf(body, "api/tenant", "acme")); w.Code != 200 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	for _, rule := range []string{"api/tenant&key=acme", "api/tenant/priority=batch&key=acme"} {
		if w := send(s, "GET", "/v1/keys?rule="+rule); w.Code != 200 || !strings.Contains(w.Body.String(), `"would_allow": false`) {
			t.Errorf("%s: got %d %s, want a ban", rule, w.Code, w.Body)
		}
	}
}

// A refused change is on record with the override at fault.
func TestRefusedOverrideIsOnRecordWithItsTarget(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true, Audit: newAudit(t, io.Discard)})
	good := `{"rule":"edge/remote_address","key":"1","limit":"ban","reason":"r"}`
	for bad, want := range map[string]string{
		`{"rule":"edge/remote_address","key":"203.0.113.9","limit":"none","reason":"let ada in"}`: "key:203.0.113.9 rule:edge/remote_address",
		`{"rule":"gone","key":"2","limit":"ban","reason":"let ada in"}`:                           "key:2 rule:gone",
	} {
		if w := putJSON(s, `{"overrides":[`+good+`,`+bad+`]}`); w.Code != 400 && w.Code != 404 {
			t.Errorf("%s: got %d %s", bad, w.Code, w.Body)
		}
		last := getAudit(t, s)[0]
		if got := fmt.Sprint(last["target"]); last["result"] != "refused" || last["reason"] != "let ada in" || !strings.Contains(got, want) {
			t.Errorf("%s: got %v, want the target %s", bad, last, want)
		}
	}
}

func TestOverridesAreFilteredAndCounted(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for i := range 5 {
		body := fmt.Sprintf(`{"rule":"edge/remote_address","key":"10.0.0.%d","limit":"ban","reason":"Ticket %d"}`, i, i/3)
		if w := putJSON(s, body); w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	for query, want := range map[string]string{"?n=2": "2 of 5", "?filter=ticket+1": "2 of 2", "?filter=BAN&n=1": "1 of 5", "?filter=none": "0 of 0"} {
		got := decode[struct {
			Overrides []any
			Total     int
			Actions   bool
		}](t, s, overridesURL+query)
		if text := fmt.Sprintf("%d of %d", len(got.Overrides), got.Total); text != want || !got.Actions {
			t.Errorf("%s: got %s, want %s", query, text, want)
		}
	}
}
