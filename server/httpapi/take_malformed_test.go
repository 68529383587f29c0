package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/httpapi"
)

// problem returns the problem document of a response.
func (r response) problem(t testing.TB) httplimit.Problem {
	t.Helper()
	var p httplimit.Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if kind := r.header.Get("Content-Type"); kind != "application/problem+json" || p.Status != r.status || p.Title == "" {
		t.Errorf("want a problem of status %d with a title, got %+v", r.status, r)
	}
	return p
}

// repeat returns n copies of an element, separated by commas.
func repeat(n int, element string) string {
	return strings.TrimSuffix(strings.Repeat(element+",", n), ",")
}

const (
	malformed = httpapi.ProblemMalformed
	badKey    = httpapi.ProblemBadKey
	badLimit  = httpapi.ProblemBadLimit
	badCost   = httpapi.ProblemBadCost
	entry     = `{"key":"a","value":"b"}`
	byEdge    = `"domain":"edge","descriptors":[{"entries":[` + entry + `]}]`
)

var tooLongKey = strings.Repeat("k", 4097)

// malformedBodies are invalid bodies with the problem that they cause.
var malformedBodies = []struct{ body, kind, pointer, detail string }{
	{` `, malformed, "", "got the end, want an object"},
	{`null`, malformed, "", "want an object"},
	{`[]`, malformed, "", "want an object"},
	{`"x"`, malformed, "", "want an object"},
	{`{`, malformed, "", "got the end, want a name"},
	{`{}`, malformed, "#/key", "want key and limit, or domain and descriptors"},
	{`{"key":"a"`, malformed, "", "want a comma or the end of the object"},
	{`{"key":"a",}`, malformed, "", "want a name"},
	{`{'key':'a'}`, malformed, "", "want a name in quotes"},
	{`{"key":"a","limit":"1/s"} x`, malformed, "", "want the end"},
	{`{"key":"a","limit":"1/s"}{"key":"a","limit":"1/s"}`, malformed, "", "want the end"},
	{"{\"key\":\"a\x00\",\"limit\":\"1/s\"}", malformed, "#/key", "no control character"},
	{"{\"key\":\"a\nb\",\"limit\":\"1/s\"}", malformed, "#/key", "no control character"},
	{"{\"key\":\"\xff\",\"limit\":\"1/s\"}", malformed, "", "want UTF-8"},
	{`{"key":"\ud800","limit":"1/s"}`, malformed, "#/key", "other half of a surrogate pair"},
	{`{"key":"\ud800\u0041","limit":"1/s"}`, malformed, "#/key", "other half of a surrogate pair"},
	{`{"key":"\ufffd\\ufffd\uD800","limit":"1/s"}`, malformed, "#/key", "surrogate pair"},
	{`{"key":"\udc00","limit":"1/s"}`, malformed, "#/key", "surrogate pair"},
	{`{"key":"\x41","limit":"1/s"}`, malformed, "#/key", "want a valid escape in a string"},
	{`{"key":"\u12","limit":"1/s"}`, malformed, "#/key", "want a valid escape in a string"},
	{`{"key":"\u+123","limit":"1/s"}`, malformed, "#/key", "want a valid escape in a string"},
	{`{"key":"a\`, malformed, "#/key", "want a closing quote"},
	{`{"key":"a`, malformed, "#/key", "want a closing quote"},
	{`{"key":7,"limit":"1/s"}`, malformed, "#/key", "want a string"},
	{`{"key":null,"limit":"1/s"}`, malformed, "#/key", "want a string"},
	{`{"key":"","limit":"1/s"}`, badKey, "#/key", "must not be empty"},
	{`{"key":"` + tooLongKey + `","limit":"1/s"}`, badKey, "#/key", "4097 bytes long"},
	{`{"key_base64":"","limit":"1/s"}`, badKey, "#/key_base64", "must not be empty"},
	{`{"key_base64":"a","limit":"1/s"}`, badKey, "#/key_base64", "want base64"},
	{`{"key_base64":"YQ","limit":"1/s"}`, badKey, "#/key_base64", "want base64"},
	{`{"key_base64":"YR==","limit":"1/s"}`, badKey, "#/key_base64", "want base64"},
	{`{"key_base64":"` + strings.Repeat("YWFh", 1366) + `","limit":"1/s"}`, badKey, "#/key_base64", "4098 bytes long"},
	{`{"key":"a","key_base64":"YQ==","limit":"1/s"}`, malformed, "#/key_base64", "not both"},
	{`{"key":"a"}`, malformed, "#/limit", "want a limit"},
	{`{"limit":"1/s"}`, malformed, "#/key", "want key and limit"},
	{`{"key":"a","limit":10}`, malformed, "#/limit", "want a string"},
	{`{"key":"a","limit":"10"}`, badLimit, "#/limit", "want a count and a period first"},
	{`{"key":"a","limit":"10/s burts=3"}`, badLimit, "#/limit", "did you mean burst=?"},
	{`{"key":"a","limit":"1/s","Cost":2}`, malformed, "#/Cost", `unknown field "Cost"`},
	{`{"key":"a","limit":"1/s","x/y~":2}`, malformed, "#/x~1y~0", "unknown field"},
	{`{"key":"a","limit":"1/s","` + strings.Repeat("x", 5000) + `":2}`, malformed, "#/" + strings.Repeat("x", 80), "unknown field"},
	{`{"key":"a","limit":"1/s","key":"b"}`, malformed, "#/key", `duplicate field "key"`},
	{`{"key":"a","limit":"1/s","cost":1,"cost":0}`, malformed, "#/cost", `duplicate field "cost"`},
	{`{"key":"a","limit":"1/s","cost":"1"}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":true}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":1.5}`, malformed, "#/cost", "want a whole number that fits into 64 bits"},
	{`{"key":"a","limit":"1/s","cost":01}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":+1}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":-}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":1.}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":1e}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":NaN}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":9223372036854775808}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":-9223372036854775809}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":1e400}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":1e18}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":` + strings.Repeat("9", 5000) + `}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","reset":1}`, malformed, "#/reset", "want true or false"},
	{`{"key":"a","limit":"1/s","reset":true,"cost":1}`, malformed, "#/reset", "cannot be combined with cost"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s","reset":true,"cost":1}]}`, malformed, "#/requests/0/reset", "cannot be combined with cost"},
	{`{"reset":true,"mode":"each","requests":[{"key":"a","limit":"1/s"}]}`, malformed, "#/reset", "inside one of the requests"},
	{`{"key":"a","limit":"1/s","at_most":1}`, malformed, "#/at_most", "want true or false"},
	{`{"key":"a","limit":"1/s","at_most":truer}`, malformed, "", "want a comma"},
	{`{"key":"a","limit":"1/s","at_most":true,"cost":-1}`, badCost, "#/at_most", "cannot be combined"},
	{`{"key":"a","limit":"1/s","max_delay":-1}`, badCost, "#/max_delay", "must not be negative"},
	{`{"key":"a","limit":"1/s","max_delay":"1s"}`, malformed, "#/max_delay", "want a number"},
	{`{"key":"a","limit":"1/s","max_delay":1e99}`, malformed, "#/max_delay", "want a number of seconds"},
	{`{"key":"a","limit":"1/s","max_delay":99999999999}`, malformed, "#/max_delay", "want a number of seconds"},
	{`{"key":"a","limit":"1/s","id":"` + tooLongKey + `"}`, badKey, "#/id", "4097 bytes long"},
	{`{"key":"a","limit":"1/s","id":"x","cost":-9223372036854775808}`, badCost, "#/id", "cannot be combined"},
	{`{"key":"a",` + byEdge + `}`, malformed, "#/key", "cannot be combined with domain"},
	{`{"hold":1,` + byEdge + `}`, malformed, "#/hold", "cannot be combined with domain"},
	{`{"at_most":true,"cost":-1,` + byRules("team=1")[1:], badCost, "#/at_most", "cannot be combined with a refund"},
	{`{"keep_free":-1,` + byRules("tenant=1")[1:], badCost, "#/keep_free", "must not be negative"},
	{`{"max_delay":-1,` + byRules("line=1")[1:], badCost, "#/max_delay", "must not be negative"},
	{`{"at_most":true,` + byRules("plan=gold", "tenant=1")[1:], malformed, "#/descriptors", "granted in part"},
	{`{"mode":"all","requests":[{"at_most":true,` + byEdge + `}]}`, badCost, "#/requests/0/at_most", "all-or-nothing"},
	{`{"mode":"all","requests":[{"keep_free":1,` + byEdge + `},{` + byEdge + `}]}`, badCost, "#/requests/1/keep_free", "the same keep_free"},
	{`{"mode":"all","requests":[{"id":"a",` + byEdge + `},{"id":"b",` + byEdge + `}]}`, badCost, "#/requests/1/id", "the same id"},
	{`{"domain":"edge"}`, malformed, "#/descriptors", "want at least one descriptor"},
	{`{"domain":"edge","descriptors":[]}`, malformed, "#/descriptors", "want at least one descriptor"},
	{`{"domain":"","descriptors":[{"entries":[` + entry + `]}]}`, malformed, "#/domain", "want a domain"},
	{`{"descriptors":[{"entries":[` + entry + `]}]}`, malformed, "#/domain", "want a domain"},
	{`{"domain":"edge","descriptors":{}}`, malformed, "#/descriptors", "want an array"},
	{`{"domain":"edge","descriptors":[{}]}`, malformed, "#/descriptors/0/entries", "want at least one entry"},
	{`{"domain":"edge","descriptors":[{"entries":[{}]}]}`, malformed, "#/descriptors/0/entries/0/key", "missing or empty"},
	{`{"domain":"edge","descriptors":[{"entries":[{"key":"a","key":"b"}]}]}`, malformed, "#/descriptors/0/entries/0/key", "duplicate field"},
	{`{"domain":"edge","descriptors":[{"entries":[{"key":"a","cost":1}]}]}`, malformed, "#/descriptors/0/entries/0/cost", `unknown field "cost", want key, value`},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `],"cost":"x"}]}`, malformed, "#/descriptors/0/cost", "want a number"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `],"limit":"1/s"}]}`, malformed, "#/descriptors/0/limit", "unknown field"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `]},{"entries":[` + repeat(17, entry) + `]}]}`, malformed, "#/descriptors/1/entries/16", "at most 16"},
	{`{"domain":"edge","descriptors":[` + repeat(65, `{"entries":[`+entry+`]}`) + `]}`, malformed, "#/descriptors/64", "at most 64"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `,{"key":"a","value":"` + tooLongKey + `"}]}]}`, badKey, "#/descriptors/0/entries/1", "4100 bytes long"},
	{`{"mode":"each"}`, malformed, "#/requests", "want at least one request"},
	{`{"mode":"any","requests":[]}`, malformed, "#/mode", `want "each" or "all"`},
	{`{"requests":[{"key":"a","limit":"1/s"}]}`, malformed, "#/mode", `want "each" or "all"`},
	{`{"mode":"each","requests":[]}`, malformed, "#/requests", "want at least one request"},
	{`{"mode":"each","cost":2,"requests":[{"key":"a","limit":"1/s"}]}`, malformed, "#/cost", "must be inside one of the requests"},
	{`{"key":"a","limit":"1/s","keep_free":"20%"}`, malformed, "#/keep_free", "want a number"},
	{`{"key":"a","limit":"1/s","keep_free":-1}`, badCost, "#/keep_free", "must not be negative"},
	{`{"key":"a","limit":"1/s","new_id":true}`, badCost, "#/new_id", "requires a concurrent limit"},
	{`{"key":"a","limit":"1/s concurrent"}`, badCost, "#/id", "is required by a concurrent limit"},
	{`{"key":"a","limit":"1/s","overdraw":1}`, malformed, "#/overdraw", "want true or false"},
	{`{"key":"a","limit":"1/s","overdraw":true,"cost":-1}`, badCost, "#/overdraw", "requires a cost above zero"},
	{`{"key":"a","limit":"1/s","overdraw":true,"at_most":true}`, badCost, "#/overdraw", "overdraw cannot be combined with at_most"},
	{`{"key":"a","limit":"1/s","overdraw":true,"max_delay":1}`, badCost, "#/overdraw", "overdraw cannot be combined with max_delay"},
	{`{"key":"a","limit":"1/s sliding-log","overdraw":true}`, badCost, "#/overdraw", "has no place for units beyond its count"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"b"}]}`, malformed, "#/requests/1/limit", "want a limit"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"b","limit":"x"}]}`, badLimit, "#/requests/1/limit", "want a count"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","at_most":true,"cost":-1}]}`, badCost, "#/requests/1/at_most", "cannot be combined"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"mode":"all","requests":[]}]}`, malformed, "#/requests/1/mode", "unknown field"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","id":"x"}]}`, badCost, "#/requests", "all-or-nothing"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","cost":-1}]}`, badCost, "#/requests/1/cost", "all-or-nothing"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","reset":true}]}`, badCost, "#/requests/1/reset", "reset cannot be used"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{` + byEdge + `}]}`, malformed, "#/requests/1", "cannot mix requests with a limit and requests by rules"},
	{`{"mode":"all","requests":[{` + byEdge + `},{` + strings.Replace(byEdge, "edge", "core", 1) + `}]}`, malformed, "#/requests/1/domain", "wants the same domain in all requests"},
	{`{"mode":"all","requests":[` + repeat(2, `{"key":"a","limit":"1/s","cost":9223372036854775807}`) + `]}`, badCost, "#/requests", "cost"},
	{`{"mode":"each","requests":[` + repeat(65, `{"key":"a","limit":"1/s"}`) + `]}`, malformed, "#/requests/64", "at most 64"},
	{strings.Repeat(`{"requests":[`, 2000), malformed, "#/requests/0/requests", "unknown field"},
}

// The response to an invalid body names the field and the problem. Nothing is
// charged.
func TestTakeRejectsMalformedBodies(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for _, c := range malformedBodies {
		got := post(t, base, c.body)
		p := got.problem(t)
		if got.status != http.StatusBadRequest || p.Type != c.kind || p.Pointer != c.pointer || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%.200s\ngot  %d %+v\nwant 400 %s at %q: %q", c.body, got.status, p, c.kind, c.pointer, c.detail)
		}
	}
	post(t, base, `{"key":"a","limit":"1/s","cost":0}`).want(t, 200,
		`{"allowed":true,"granted":0,"limit":1,"remaining":1,"retry_after":0,"reset_after":0,"delay":0,"source":"store"}`)
}

// Unusual but valid JSON is accepted.
func TestTakeAcceptsUnusualBodies(t *testing.T) {
	base := serveStore(t, frozenMemory())
	for i, body := range []string{
		"\t\r\n { \"key\" : \"%s\" , \"limit\" : \"5/1s\" } \n",
		`{"k\u0065y":"%s","limit":"5\/1s"}`,
		`{"cost":1e0,"limit":"5/1s","key":"%s"}`,
		`{"key":"%s","limit":"5/1s","cost":10e-1,"max_delay":0.0}`,
		`{"key":"%s","limit":"  5/1s  token-bucket ","at_most":false}`,
		`{"key":"%s","limit":"5/1s","max_delay":1E-2}`,
	} {
		key := fmt.Sprintf("k%d \\u00e4\\ud83d\\ude00\\n\\\"", i)
		post(t, base, fmt.Sprintf(body, key)).want(t, 200,
			`{"allowed":true,"granted":1,"limit":5,"remaining":4,"retry_after":0,"reset_after":0.2,"delay":0,"source":"store"}`)
		plain := fmt.Sprintf("k%d ä😀\\n\\\"", i)
		if got := post(t, base, fmt.Sprintf(`{"key":"%s","limit":"5/1s","cost":-0}`, plain)); !strings.Contains(got.body, `"remaining":4`) {
			t.Errorf("%s: the same key without escapes: got %+v", body, got)
		}
	}
}

func TestServerRejectsWrongPathMethodAndType(t *testing.T) {
	base := serveStore(t, frozenMemory())
	good := `{"key":"a","limit":"1/s"}`
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	for _, c := range []struct {
		method, path, body string
		header             http.Header
		status             int
		kind               string
		allow              string
	}{
		{"GET", "/v1/take", "", nil, 405, "", "POST"},
		{"PUT", "/v1/take", good, nil, 405, "", "POST"},
		{"DELETE", "/openapi.yaml", "", nil, 405, "", "GET, HEAD"},
		{"POST", "/healthcheck", "", nil, 405, "", "GET, HEAD"},
		{"GET", "/", "", nil, 404, "", ""},
		{"POST", "/v1/take/", good, nil, 404, "", ""},
		{"POST", "/v1//take", good, nil, 404, "", ""},
		{"POST", "/v1/take", good, header("Content-Type", "text/plain"), 415, httpapi.ProblemNotJSON, ""},
		{"POST", "/v1/take", good, header("Content-Type", "application/x-www-form-urlencoded"), 415, httpapi.ProblemNotJSON, ""},
		{"POST", "/v1/take", good, header("Content-Type", "application/json; charset=latin1"), 415, httpapi.ProblemNotJSON, ""},
		{"POST", "/v1/take", good, header("Content-Type", ";"), 415, httpapi.ProblemNotJSON, ""},
		{"POST", "/v1/take", strings.Repeat(" ", 64<<10) + good, nil, 413, httpapi.ProblemTooLarge, ""},
	} {
		got := do(t, c.method, base+c.path, c.body, c.header)
		p := got.problem(t)
		if got.status != c.status || p.Type != c.kind || got.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %+v, want %d %s, allowing %q", c.method, c.path, got, c.status, c.kind, c.allow)
		}
	}
	got := do(t, "POST", base+"/v1/take", good, header("Content-Type", "application/json; charset=utf-8"))
	if got.status != 200 || !strings.Contains(got.body, `"granted":1`) {
		t.Errorf("charset=utf-8: got %+v, want 200: rejected requests must not charge", got)
	}
}

// Every problem type is the URL of its documentation.
func TestProblemTypesAreDocumentationURLs(t *testing.T) {
	for name, kind := range map[string]string{
		"ProblemMalformed": httpapi.ProblemMalformed, "ProblemBadLimit": httpapi.ProblemBadLimit,
		"ProblemBadKey": httpapi.ProblemBadKey, "ProblemBadCost": httpapi.ProblemBadCost,
		"ProblemForbidden": httpapi.ProblemForbidden, "ProblemTooLarge": httpapi.ProblemTooLarge,
		"ProblemNotJSON": httpapi.ProblemNotJSON, "ProblemUnavailable": httpapi.ProblemUnavailable,
		"ProblemNoRules": httpapi.ProblemNoRules, "ProblemLimitRefused": httpapi.ProblemLimitRefused,
		"ProblemUnknownID": httpapi.ProblemUnknownID, "ProblemBusy": httpapi.ProblemBusy,
	} {
		if want := "https://pkg.go.dev/github.com/penstock-io/penstock/server/httpapi#" + name; kind != want {
			t.Errorf("%s is %s, want %s", name, kind, want)
		}
	}
}
