package adminapi_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
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
		{{Key: "rule", Value: "x"}, {Key: "limit", Value: "y"}, {Key: "units", Value: "z"}, {Key: "reason", Value: ""}},
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

// The inspection of a key has its state under each rule that it can be a key of, and what
// was decided about it.
func TestInspectFindsKeyUnderEachRule(t *testing.T) {
	keys := topkeys.New(nil)
	e := newEngineWithOptions(t, &engine.Options{TopKeys: keys})
	s := newServer(t, e, adminapi.Options{Loopback: true, Observer: observe.New(e, &observe.Options{TopKeys: keys})})
	for range 4 {
		var result engine.Result
		err := e.Decide(t.Context(), "edge", []engine.Descriptor{{Entries: []rules.Entry{{Key: "remote_address", Value: "/login"}}, Cost: 1}}, &result)
		if err != nil {
			t.Fatal(err)
		}
	}
	got := decode[struct {
		States []struct {
			Rule, Key, Mode string
			Decision        struct{ Remaining int }
		}
		Seen []observe.SeenKey
		More bool
	}](t, s, "/v1/inspect?key=/login")
	if len(got.States) != 2 || got.More || got.States[0].Rule != "edge/remote_address" || got.States[0].Decision.Remaining != 0 ||
		got.States[1].Mode != "shadow" || got.States[1].Decision.Remaining != 10 {
		t.Errorf("got %+v, want both rules", got.States)
	}
	if len(got.Seen) != 1 || got.Seen[0].Asked.Count != 4 || got.Seen[0].Denied.Count != 1 || len(got.Seen[0].Last) != 4 {
		t.Errorf("got %+v, want one denial of four", got.Seen)
	}
	got.States = decode[struct {
		States []struct {
			Rule, Key, Mode string
			Decision        struct{ Remaining int }
		}
	}](t, s, "/v1/inspect?domain=edge&remote_address=/login").States
	if len(got.States) != 1 {
		t.Errorf("by entries: got %+v, want one rule", got.States)
	}
}

// Among many rules that a value can be a key of, those come first in which something is known of it.
func TestInspectFindsKeyAmongManyRules(t *testing.T) {
	text := "domain: many\ndescriptors:\n"
	for i := range 600 {
		text += fmt.Sprintf("  - {key: k%03d, limit: 5/1h}\n", i)
	}
	keys := topkeys.New(nil)
	e := newEngineWithOptions(t, &engine.Options{TopKeys: keys})
	set, err := rules.Parse(rules.File{Name: "many.yaml", Text: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
	s := newServer(t, e, adminapi.Options{Loopback: true, Observer: observe.New(e, &observe.Options{TopKeys: keys})})
	var result engine.Result
	if err := e.Decide(t.Context(), "many", []engine.Descriptor{{Entries: []rules.Entry{{Key: "k599", Value: "ada"}}, Cost: 1}}, &result); err != nil {
		t.Fatal(err)
	}
	if _, err := e.TakeRule(t.Context(), e.Rules().Rule("many/k300"), "k300=ada", 1); err != nil { // which no list counts
		t.Fatal(err)
	}
	if w := putJSON(s, `{"rule":"many/k400","key":"ada","limit":"ban","reason":"r"}`); w.Code != 200 {
		t.Fatal(w.Body)
	}
	got := decode[struct {
		States []struct{ Rule string }
		Seen   []observe.SeenKey
		More   bool
	}](t, s, "/v1/inspect?key=ada")
	if len(got.States) != 32 || !got.More || len(got.Seen) != 1 || got.Seen[0].Rule != "many/k599" {
		t.Fatalf("got %d states, more %t, seen %+v", len(got.States), got.More, got.Seen)
	}
	for i, want := range []string{"many/k599", "many/k400", "many/k300", "many/k000", "many/k001"} {
		if got.States[i].Rule != want {
			t.Errorf("state %d is of %s, want %s", i, got.States[i].Rule, want)
		}
	}
}
