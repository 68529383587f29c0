package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

const permitRules = `domain: edge
descriptors:
- {key: user, limit: 1/30s concurrent, id: request_id}
- {key: path, limit: 5/1h}
`

// Permits of a rule are taken, renewed and released by the entry that names them. A caller that knows
// the ID may release, without a token; but the entry is no way to refund a rate. Proxies'
// auth requests never tell the end of a request, and are refused.
func TestPermitsOfRules(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		e := engine.New(store, &engine.Options{Token: "secret"})
		set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(permitRules)})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		server := newServer(t, e, nil)
		take := func(entries, cost string) string {
			return `{"domain":"edge","descriptors":[{"entries":[` + entries + `],"cost":` + cost + `}]}`
		}
		entry := func(key, value string) string { return `{"key":"` + key + `","value":"` + value + `"}` }
		user, path := entry("user", "ada")+","+entry("request_id", "r"), entry("path", "/")+","+entry("request_id", "r")
		remote := refundCaller{from: "10.0.0.1:4711", host: "penstock:8080"}
		for i, c := range []struct {
			body string
			code int
			want string
		}{
			{take(user+"1", "1"), 400, ""}, // not JSON
			{take(user, "1"), 200, `"granted":1`},
			{take(user, "1"), 200, `"granted":1`},
			{take(entry("user", "ada")+","+entry("request_id", "other"), "1"), 429, `"granted":0`},
			{take(user, "-1"), 200, `"granted":-1`},
			{take(user, "-1"), 200, `"granted":0`},
			{take(entry("user", "ada"), "1"), 400, "request_id"},
			{take(entry("user", "ada"), "-1"), 403, ""},
			{take(path, "3"), 200, `"remaining":2`},
			{take(path, "-3"), 200, ""},
			{take(path, "0"), 200, `"remaining":2`},
		} {
			if w := remote.post(server, "/v1/take", c.body, ""); w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("request %d: %s\ngot %d %s, want %d and %s", i, c.body, w.Code, w.Body, c.code, c.want)
			}
		}
		for _, query := range []string{"domain=edge&user=ada&request_id=x", "key=a&limit=5/30s+concurrent"} {
			w := httptest.NewRecorder()
			server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/auth?"+query, nil))
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "when a request has ended") {
				t.Errorf("/v1/auth?%s: got %d %s, want 400 and the reason", query, w.Code, w.Body)
			}
		}
	})
}

// A descriptor that releases a permit is carried out beside one that is refused, and is not on
// record as refused.
func TestReleaseBesideAForbiddenRefundIsNotOnRecord(t *testing.T) {
	e := engine.New(frozenMemory(), &engine.Options{Token: "secret"})
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(permitRules)})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
	log := newAudit(t, io.Discard)
	body := `{"domain":"edge","descriptors":[` +
		`{"entries":[{"key":"user","value":"ada"},{"key":"request_id","value":"r"}],"isNegativeHits":true},` +
		`{"entries":[{"key":"path","value":"/"}],"isNegativeHits":true}]}`
	remote := refundCaller{from: "10.0.0.1:4711", host: "penstock:8080"}
	w := remote.post(newServer(t, e, &httpapi.Options{Audit: log}), "/json", body, "")
	if want := []string{"POST /json key.refund refused: edge path=/"}; w.Code != 200 || !slices.Equal(summaries(log), want) {
		t.Errorf("got %d %s and %q, want %q", w.Code, w.Body, summaries(log), want)
	}
}

// A request by rules that cannot be decided fails a list, and no other request of it is charged.
func TestTakeEachChargesNothingBesideAnInvalidRequest(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		e := engine.New(store, &engine.Options{Token: "secret"})
		set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(permitRules)})
		if err != nil {
			t.Fatal(err)
		}
		e.SetRules(set)
		server := newServer(t, e, nil)
		remote := refundCaller{from: "10.0.0.1:4711", host: "penstock:8080"}
		const others = `{"key":"k","limit":"9/1h"},{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/"}]}]},`
		const holder = `{"entries":[{"key":"user","value":"ada"},{"key":"request_id","value":"r"}]}`
		for body, pointer := range map[string]string{
			`{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`:                                                       "descriptors",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"x"}]}],"keep_free":-1}`:                                          "keep_free",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"},{"key":"request_id","value":"r"}]}],"cost":9999}`:          "cost",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"},{"key":"request_id","value":"r"}]}],"reset":true}`:         "id",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"unruled"}]},{"entries":[{"key":"path","value":"x"}]}],"keep_free":-1,"id":"x"}`: "keep_free",
			`{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"},{"key":"request_id","value":"r"}],"cost":101}],"cost":1}`:  "cost",
			`{"domain":"edge","descriptors":[` + holder + `,` + holder + `]}`:                                                                    "id",
		} {
			w := remote.post(server, "/v1/take", `{"mode":"each","requests":[`+others+body+`]}`, "")
			if w.Code != 400 || !strings.Contains(w.Body.String(), `"pointer":"#/requests/2/`+pointer+`"`) {
				t.Errorf("%s: got %d %s, want 400 about %s of request 2", body, w.Code, w.Body, pointer)
			}
		}
		peek := strings.NewReplacer(`"9/1h"`, `"9/1h","cost":0`, `"edge"`, `"edge","cost":0`).Replace(strings.TrimSuffix(others, ","))
		w := remote.post(server, "/v1/take", `{"mode":"each","requests":[`+peek+`]}`, "")
		if text := w.Body.String(); !strings.Contains(text, `"remaining":9`) || !strings.Contains(text, `"remaining":5`) {
			t.Errorf("afterwards: got %s, want 9 and 5 remaining", text)
		}
	})
}
