package adminapi_test

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

// What a caller sends by mistake in a place where no action has a parameter, such as its token, is neither on record nor
// in the log or the answer.
func TestRefusedActionsKeepUnknownParametersSecret(t *testing.T) {
	const secret = "S3cr3tOfACaller"
	queries := []string{
		"token=" + secret, "reason=r&token=" + secret, "domain=edge&token=" + secret, "domain=edge&reason=r&token=" + secret, "domain=nowhere&token=" + secret + "&reason=r",
		"domain=edge&remote_address=203.0.113.9&token=" + secret + "&reason=r", "domain=edge&token=" + secret + "&tenant=x&reason=r",
		"rule=edge/tenant&key=tenant=x&reason=r&token=" + secret, "limit=5/1m&key=k&reason=r&token=" + secret, "limit=5/1m&key=k&access_token=" + secret + "%zz",
		"token=%zz" + secret, "settle=a&units=1&domain=edge&token=" + secret, "limit=5/1m&key=k&reason=r&units=" + secret, "rule=edge/tenant&format=" + secret, "n=" + secret, "keys=" + secret,
	}
	bodies := []struct{ kind, text string }{
		{},
		{"application/json", `{"token":"` + secret + `"}`},
		{"application/json", `{"rule":"edge/tenant","key":"tenant=x","token":"` + secret + `"}`},
		{"application/json", `"` + secret + `"`},
		{"application/json", secret},
		{"application/json", `{"strikes":"` + secret + `"}`},
		{"application/json", `{"overrides":["` + secret + `"]}`},
		{"text/csv", secret + "\n"},
		{"text/csv", "rule,key,limit," + secret + "\n"},
		{"text/csv", `rule,key,limit` + "\n" + secret},
		{"text/csv", `rule,key,limit` + "\n" + `a"` + secret + `,b,c`},
	}
	routes := []string{"POST /v1/keys", "DELETE /v1/keys", "PUT /v1/overrides", "DELETE /v1/overrides", "PUT /v1/candidates", "DELETE /v1/candidates"}
	if len(routes) != adminapi.NumberOfActions() {
		t.Fatalf("%d routes, want all %d actions", len(routes), adminapi.NumberOfActions())
	}
	for _, readOnly := range []bool{false, true} {
		for _, header := range []string{"", "Bearer wrong", "Bearer right"} {
			var record, log bytes.Buffer
			recorded := 0
			e := newEngineWithOptions(t, &engine.Options{Token: "right"})
			s := newServer(t, e, adminapi.Options{Audit: newAudit(t, &record), Log: slog.New(slog.NewTextHandler(&log, nil)), ReadOnly: readOnly})
			for _, route := range routes {
				for _, query := range queries {
					for _, body := range bodies {
						method, path, _ := strings.Cut(route, " ")
						r := httptest.NewRequest(method, "http://localhost"+path+"?"+query, strings.NewReader(body.text))
						r.RemoteAddr = "127.0.0.1:4711"
						r.Header.Set("Content-Type", body.kind)
						r.Header.Set("Authorization", header)
						w := httptest.NewRecorder()
						s.ServeHTTP(w, r)
						if w.Code < 400 {
							t.Errorf("%s?%s: got %d, want a refusal", route, query, w.Code)
						}
						for where, text := range map[string]string{"the audit log": record.String(), "the log": log.String(), "the answer": w.Body.String()} {
							if strings.Contains(text, secret) {
								t.Errorf("%s?%s with %q: %s has %.300s", route, query, body, where, text[max(strings.Index(text, secret)-200, 0):])
							}
						}
						recorded += record.Len()
						record.Reset()
						log.Reset()
					}
				}
			}
			if recorded == 0 {
				t.Errorf("read-only %t, token %q: nothing is on record", readOnly, header)
			}
		}
	}
}
