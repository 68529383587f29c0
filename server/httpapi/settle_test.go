package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/httpapi"
)

// What was taken by rules under an ID is settled under all of them, each to its own amount.
func TestSettleByRules(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		send := func(path, body string) response { return do(t, http.MethodPost, base+path, body, nil) }
		const (
			descriptors = `"domain":"edge","descriptors":[{"entries":[{"key":"team","value":"9"}],"cost":30},{"entries":[{"key":"day","value":"9"}]}]`
			team        = `{"allowed":true,"granted":30,"limit":100,"remaining":70,"retry_after":0,"reset_after":18,"delay":0,"source":"store","rule":"edge/team"}`
		)
		for range 2 {
			send("/v1/take", `{"id":"x","cost":50,`+descriptors+`}`).want(t, 200,
				`{"allowed":true,"granted":30,"limit":100,"remaining":70,"retry_after":0,"reset_after":18,"delay":0,"source":"store","rule":"edge/team","decisions":[`+
					team+`,{"allowed":true,"granted":50,"limit":1000,"remaining":950,"retry_after":0,"reset_after":4320,"delay":0,"source":"store","rule":"edge/day"}]}`)
		}
		settled := `{"allowed":true,"granted":30,"limit":100,"remaining":70,"retry_after":0,"reset_after":18,"delay":0,"source":"store","rule":"edge/team","decisions":[` +
			team + `,{"allowed":true,"granted":10,"limit":1000,"remaining":990,"retry_after":0,"reset_after":864,"delay":0,"source":"store","rule":"edge/day"}]}`
		for range 2 {
			send("/v1/settle", `{"id":"x","cost":10,`+descriptors+`}`).want(t, 200, settled)
		}
		if got := send("/v1/settle", `{"id":"y","cost":10,`+descriptors+`}`); got.status != http.StatusNotFound {
			t.Errorf("an unknown ID: got %+v, want 404", got)
		}
		if got := send("/v1/settle", `{"id":"x",`+descriptors+`}`); got.status != http.StatusBadRequest {
			t.Errorf("a descriptor without a cost: got %+v, want 400", got)
		}
		one := func(entry string) string { return `{"id":"x","cost":7,` + byRules(entry)[1:] }
		if got := send("/v1/settle", `{"mode":"all","requests":[`+one("team=9")+`,`+one("day=9")+`]}`); got.status != 200 {
			t.Errorf("a list: got %+v, want 200", got)
		}
		peek := send("/v1/take", `{"cost":0,`+byRules("team=9", "day=9")[1:])
		peek.want(t, 200, `{"allowed":true,"granted":0,"limit":100,"remaining":93,"retry_after":0,"reset_after":4.2,"delay":0,"source":"store","rule":"edge/team","decisions":[`+
			`{"allowed":true,"granted":0,"limit":100,"remaining":93,"retry_after":0,"reset_after":4.2,"delay":0,"source":"store","rule":"edge/team"},`+
			`{"allowed":true,"granted":0,"limit":1000,"remaining":993,"retry_after":0,"reset_after":604.8,"delay":0,"source":"store","rule":"edge/day"}]}`)
	})
}

// A caller from another machine settles without a token, and cannot turn an ID into a
// refund of what others took.
func TestSettleByRulesNeedsNoToken(t *testing.T) {
	server := newServer(t, newEngine(t, frozenMemory(), nil), nil)
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/v1/take", `{"id":"x","cost":50,` + byRules("team=9")[1:], 200},
		{"/v1/settle", `{"id":"x","cost":5,` + byRules("team=9")[1:], 200},
		{"/v1/take", `{"id":"x","cost":-5,` + byRules("team=9")[1:], 403},
		{"/v1/settle", `{"id":"x","cost":-5,` + byRules("team=9")[1:], 400},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", c.path, strings.NewReader(c.body))
		r.RemoteAddr = remoteAddr
		r.Header.Set("Content-Type", "application/json")
		if server.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s %s: got %d %s, want %d", c.path, c.body, w.Code, w.Body, c.want)
		}
	}
}

// A settlement is a path and no field, so the response to an invalid one names no field alone.
func TestSettleSaysWhatCannotBeSettled(t *testing.T) {
	base := serveStore(t, frozenMemory())
	const combined = "a settlement cannot be combined with at_most, overdraw or max_delay"
	for _, c := range []struct{ limit, extra, detail string }{
		{"5/30s concurrent", ``, "a settlement requires a limit over time: permits are released, not settled"},
		{"5/30s", `,"at_most":true`, combined},
		{"5/30s", `,"overdraw":true`, combined},
		{"5/30s", `,"max_delay":1`, combined},
	} {
		one := `{"key":"a","id":"x","cost":1,"limit":"` + c.limit + `"` + c.extra + `}`
		for body, pointer := range map[string]string{one: "", `{"mode":"each","requests":[` + one + `]}`: "#/requests/0"} {
			got := do(t, "POST", base+"/v1/settle", body, nil)
			if p := got.problem(t); got.status != http.StatusBadRequest || p.Type != httpapi.ProblemBadCost || p.Pointer != pointer || p.Detail != c.detail {
				t.Errorf("%s: got %d %+v, want 400 at %q: %q", body, got.status, p, pointer, c.detail)
			}
		}
	}
}
