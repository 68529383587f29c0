package adminapi_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/rules"
)

// decode sends a request and decodes the response.
func decode[T any](t *testing.T, s *adminapi.Server, target string) (v T) {
	t.Helper()
	w := send(s, "GET", target)
	if w.Code != 200 {
		t.Fatalf("%s: got %d %s, want 200", target, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s: %v in %s", target, err, w.Body)
	}
	return v
}

func TestExplainAnswersAsTheCommand(t *testing.T) {
	e := newEngine(t)
	s := newServer(t, e, adminapi.Options{Loopback: true})
	for _, entries := range [][]rules.Entry{
		{{Key: "remote_address", Value: "203.0.113.9"}},
		{{Key: "path", Value: "/login"}},
		{{Key: "path", Value: "/other"}},
		{{Key: "vip", Value: ""}},
		{{Key: "rule", Value: "x"}, {Key: "limit", Value: "y"}, {Key: "units", Value: "z"}},
		{{Key: "remote_address", Value: "a&b=c|d%"}, {Key: "more", Value: "\xff"}},
	} {
		want := e.Rules().Explain("edge", entries)
		query := url.Values{"domain": {"edge"}}.Encode()
		for _, e := range entries {
			query += "&" + url.QueryEscape(e.Key) + "=" + url.QueryEscape(e.Value)
		}
		byKey := url.Values{"domain": {"edge"}, "key": {string(rules.AppendKey(nil, entries))}}.Encode()
		for _, query := range []string{query, byKey} {
			got := decode[adminapi.Explanation](t, s, "/v1/explain?"+query)
			if got.Text != strings.ToValidUTF8(want.String(), "�") || (got.Rule == nil) != (want.Rule == nil) {
				t.Errorf("%s: got %+v, want %s", query, got, want)
			}
		}
	}
}

func TestObserveParametersAreChecked(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for target, want := range map[string]string{
		"/v1/live?window=3m":                          "want 2m, 1h, 1d",
		"/v1/live?sort=size":                          "want decisions",
		"/v1/live?scope=cluster":                      "want daemon, all",
		"/v1/live?rules=1001":                         "from 0 to 1000",
		"/v1/live?rules=1&rules=2":                    "duplicate parameter",
		"/v1/live?filter=" + strings.Repeat("x", 201): "at most 200 bytes",
		"/v1/live?since=1":                            "unknown parameter",
		"/v1/top?by=cost":                             "want asked, denied",
		"/v1/top?n=0":                                 "from 1 to 500",
		"/v1/top?n=501":                               "from 1 to 500",
		"/v1/explain":                                 "domain",
		"/v1/explain?domain=edge":                     "want entries",
		"/v1/explain?domain=edge&key=a=b&c=d":         "either a key or entries",
		"/v1/inspect":                                 "want a key",
		"/v1/inspect?a=b":                             "want a key",
		"/v1/inspect?rule=a&limit=b&key=c":            "want one of",
		"/v1/inspect?key=1&units=3":                   "with POST",
	} {
		if w := send(s, "GET", target); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d %s, want 400 with %q", target, w.Code, w.Body, want)
		}
	}
}
