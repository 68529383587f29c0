package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/httpapi"
)

// A problem is the body of an answer that is no decision.
type problem struct {
	Type, Title, Detail, Pointer, Parameter string
	Status                                  int
}

// problem returns the problem of an answer.
func (a answer) problem(t testing.TB) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("%v: %+v", err, a)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" || p.Status != a.status || p.Title == "" {
		t.Errorf("want a problem of status %d with a title, got %+v", a.status, a)
	}
	return p
}

// many repeats one element of an array.
func many(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }

const (
	malformed = httpapi.ProblemMalformed
	badKey    = httpapi.ProblemBadKey
	badLimit  = httpapi.ProblemBadLimit
	badCost   = httpapi.ProblemBadCost
	entry     = `{"key":"a","value":"b"}`
	by        = `"domain":"edge","descriptors":[{"entries":[` + entry + `]}]`
)

var long = strings.Repeat("k", 4097)

// malformedBodies have no meaning, and this is what is said of them.
var malformedBodies = []struct{ body, kind, pointer, detail string }{
	{` `, malformed, "", "the end: want an object"},
	{`null`, malformed, "", "want an object"},
	{`[]`, malformed, "", "want an object"},
	{`"x"`, malformed, "", "want an object"},
	{`{`, malformed, "", "the end: want a name"},
	{`{}`, malformed, "#/key", "want key and limit, or domain and descriptors"},
	{`{"key":"a"`, malformed, "", "want a comma or the end of the object"},
	{`{"key":"a",}`, malformed, "", "want a name"},
	{`{'key':'a'}`, malformed, "", "want a name in quotes"},
	{`{"key":"a","limit":"1/s"} x`, malformed, "", "want nothing after the object"},
	{`{"key":"a","limit":"1/s"}{"key":"a","limit":"1/s"}`, malformed, "", "want nothing after the object"},
	{"{\"key\":\"a\x00\",\"limit\":\"1/s\"}", malformed, "#/key", "no control character"},
	{"{\"key\":\"a\nb\",\"limit\":\"1/s\"}", malformed, "#/key", "no control character"},
	{"{\"key\":\"\xff\",\"limit\":\"1/s\"}", malformed, "", "want UTF-8"},
	{`{"key":"\ud800","limit":"1/s"}`, malformed, "#/key", "other half of a surrogate pair"},
	{`{"key":"\ud800\u0041","limit":"1/s"}`, malformed, "#/key", "two halves of a surrogate pair"},
	{`{"key":"\udc00","limit":"1/s"}`, malformed, "#/key", "surrogate pair"},
	{`{"key":"\x41","limit":"1/s"}`, malformed, "#/key", "want an escape"},
	{`{"key":"\u12","limit":"1/s"}`, malformed, "#/key", "four hexadecimal digits"},
	{`{"key":"\u+123","limit":"1/s"}`, malformed, "#/key", "four hexadecimal digits"},
	{`{"key":"a\`, malformed, "#/key", "want a closing quote"},
	{`{"key":"a`, malformed, "#/key", "want a closing quote"},
	{`{"key":7,"limit":"1/s"}`, malformed, "#/key", "want a string"},
	{`{"key":null,"limit":"1/s"}`, malformed, "#/key", "want a string"},
	{`{"key":"","limit":"1/s"}`, badKey, "#/key", "is empty"},
	{`{"key":"` + long + `","limit":"1/s"}`, badKey, "#/key", "4097 bytes long"},
	{`{"key_base64":"","limit":"1/s"}`, badKey, "#/key_base64", "is empty"},
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
	{`{"key":"a","limit":"1/s","Cost":2}`, malformed, "#/Cost", `"Cost" is not known here`},
	{`{"key":"a","limit":"1/s","x/y~":2}`, malformed, "#/x~1y~0", "is not known here"},
	{`{"key":"a","limit":"1/s","` + strings.Repeat("x", 5000) + `":2}`, malformed, "#/" + strings.Repeat("x", 80), "is not known here"},
	{`{"key":"a","limit":"1/s","key":"b"}`, malformed, "#/key", `"key" is there twice`},
	{`{"key":"a","limit":"1/s","cost":1,"cost":0}`, malformed, "#/cost", `"cost" is there twice`},
	{`{"key":"a","limit":"1/s","cost":"1"}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":true}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":1.5}`, malformed, "#/cost", "want a whole number of 64 bits"},
	{`{"key":"a","limit":"1/s","cost":01}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":+1}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":-}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":1.}`, malformed, "#/cost", "want a digit after the point"},
	{`{"key":"a","limit":"1/s","cost":1e}`, malformed, "#/cost", "want a digit in the exponent"},
	{`{"key":"a","limit":"1/s","cost":NaN}`, malformed, "#/cost", "want a number"},
	{`{"key":"a","limit":"1/s","cost":9223372036854775808}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":-9223372036854775809}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":1e400}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":1e18}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","cost":` + strings.Repeat("9", 5000) + `}`, malformed, "#/cost", "64 bits"},
	{`{"key":"a","limit":"1/s","at_most":1}`, malformed, "#/at_most", "want true or false"},
	{`{"key":"a","limit":"1/s","at_most":truer}`, malformed, "", "want a comma"},
	{`{"key":"a","limit":"1/s","at_most":true,"cost":-1}`, badCost, "#/at_most", "has no meaning"},
	{`{"key":"a","limit":"1/s","max_delay":-1}`, badCost, "#/max_delay", "must not be negative"},
	{`{"key":"a","limit":"1/s","max_delay":"1s"}`, malformed, "#/max_delay", "want a number"},
	{`{"key":"a","limit":"1/s","max_delay":1e99}`, malformed, "#/max_delay", "want a number of seconds"},
	{`{"key":"a","limit":"1/s","max_delay":99999999999}`, malformed, "#/max_delay", "want a number of seconds"},
	{`{"key":"a","limit":"1/s","id":"` + long + `"}`, badKey, "#/id", "4097 bytes long"},
	{`{"key":"a","limit":"1/s","id":"x","cost":-9223372036854775808}`, badCost, "#/id", "has no meaning"},
	{`{"key":"a",` + by + `}`, malformed, "#/key", "does not go together with domain"},
	{`{"id":"a",` + by + `}`, malformed, "#/id", "does not go together with domain"},
	{`{"domain":"edge"}`, malformed, "#/descriptors", "want at least one descriptor"},
	{`{"domain":"edge","descriptors":[]}`, malformed, "#/descriptors", "want at least one descriptor"},
	{`{"domain":"","descriptors":[{"entries":[` + entry + `]}]}`, malformed, "#/domain", "want a domain"},
	{`{"descriptors":[{"entries":[` + entry + `]}]}`, malformed, "#/domain", "want a domain"},
	{`{"domain":"edge","descriptors":{}}`, malformed, "#/descriptors", "want an array"},
	{`{"domain":"edge","descriptors":[{}]}`, malformed, "#/descriptors/0/entries", "want at least one entry"},
	{`{"domain":"edge","descriptors":[{"entries":[{}]}]}`, malformed, "#/descriptors/0/entries/0/key", "missing or empty"},
	{`{"domain":"edge","descriptors":[{"entries":[{"key":"a","key":"b"}]}]}`, malformed, "#/descriptors/0/entries/0/key", "twice"},
	{`{"domain":"edge","descriptors":[{"entries":[{"key":"a","cost":1}]}]}`, malformed, "#/descriptors/0/entries/0/cost", "not known"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `],"cost":"x"}]}`, malformed, "#/descriptors/0/cost", "want a number"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `],"limit":"1/s"}]}`, malformed, "#/descriptors/0/limit", "not known"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `]},{"entries":[` + many(17, entry) + `]}]}`, malformed, "#/descriptors/1/entries/16", "at most 16"},
	{`{"domain":"edge","descriptors":[` + many(65, `{"entries":[`+entry+`]}`) + `]}`, malformed, "#/descriptors/64", "at most 64"},
	{`{"domain":"edge","descriptors":[{"entries":[` + entry + `,{"key":"a","value":"` + long + `"}]}]}`, badKey, "#/descriptors/0/entries/1", "4100 bytes long"},
	{`{"mode":"each"}`, malformed, "#/requests", "want at least one request"},
	{`{"mode":"any","requests":[]}`, malformed, "#/mode", `want "each" or "all"`},
	{`{"requests":[{"key":"a","limit":"1/s"}]}`, malformed, "#/mode", `want "each" or "all"`},
	{`{"mode":"each","requests":[]}`, malformed, "#/requests", "want at least one request"},
	{`{"mode":"each","cost":2,"requests":[{"key":"a","limit":"1/s"}]}`, malformed, "#/cost", "belongs into one of the requests"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"b"}]}`, malformed, "#/requests/1/limit", "want a limit"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"b","limit":"x"}]}`, badLimit, "#/requests/1/limit", "want a count"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","at_most":true,"cost":-1}]}`, badCost, "#/requests/1/at_most", "no meaning"},
	{`{"mode":"each","requests":[{"key":"a","limit":"1/s"},{"mode":"all","requests":[]}]}`, malformed, "#/requests/1/mode", "not known"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","id":"x"}]}`, badCost, "#/requests/1/id", "all are taken or none"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"a","limit":"1/s","cost":-1}]}`, badCost, "#/requests/1/cost", "all are taken or none"},
	{`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{` + by + `}]}`, malformed, "#/requests/1", "cannot be decided as one"},
	{`{"mode":"all","requests":[{` + by + `},{` + strings.Replace(by, "edge", "core", 1) + `}]}`, malformed, "#/requests/1/domain", "cannot be decided as one"},
	{`{"mode":"all","requests":[` + many(2, `{"key":"a","limit":"1/s","cost":9223372036854775807}`) + `]}`, badCost, "#/requests", "cost"},
	{`{"mode":"each","requests":[` + many(65, `{"key":"a","limit":"1/s"}`) + `]}`, malformed, "#/requests/64", "at most 64"},
	{strings.Repeat(`{"requests":[`, 2000), malformed, "#/requests/0/requests", "not known"},
}

// Every body that has no meaning is answered with what is wrong and where, and
// charges nothing.
func TestMalformedBodies(t *testing.T) {
	at := open(t, stillMemory())
	for _, c := range malformedBodies {
		got := post(t, at, c.body)
		p := got.problem(t)
		if got.status != http.StatusBadRequest || p.Type != c.kind || p.Pointer != c.pointer || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%.200s\ngot  %d %+v\nwant 400 %s about %q: %q", c.body, got.status, p, c.kind, c.pointer, c.detail)
		}
	}
	post(t, at, `{"key":"a","limit":"1/s","cost":0}`).want(t, 200,
		`{"allowed":true,"granted":0,"limit":1,"remaining":1,"retry_after":0,"reset_after":0,"delay":0,"source":"store"}`)
}

// What is unusual but right is read as it is meant.
func TestUnusualBodies(t *testing.T) {
	at := open(t, stillMemory())
	for i, body := range []string{
		"\t\r\n { \"key\" : \"%s\" , \"limit\" : \"5/1s\" } \n",
		`{"k\u0065y":"%s","limit":"5\/1s"}`,
		`{"cost":1e0,"limit":"5/1s","key":"%s"}`,
		`{"key":"%s","limit":"5/1s","cost":10e-1,"max_delay":0.0}`,
		`{"key":"%s","limit":"  5/1s  token-bucket ","at_most":false}`,
		`{"key":"%s","limit":"5/1s","max_delay":1E-2}`,
	} {
		key := fmt.Sprintf("k%d \\u00e4\\ud83d\\ude00\\n\\\"", i)
		post(t, at, fmt.Sprintf(body, key)).want(t, 200,
			`{"allowed":true,"granted":1,"limit":5,"remaining":4,"retry_after":0,"reset_after":0.2,"delay":0,"source":"store"}`)
		plain := fmt.Sprintf("k%d ä😀\\n\\\"", i)
		if got := post(t, at, fmt.Sprintf(`{"key":"%s","limit":"5/1s","cost":-0}`, plain)); !strings.Contains(got.body, `"remaining":4`) {
			t.Errorf("%s: the same key without escapes: got %+v", body, got)
		}
	}
}

func TestWhatIsNotATake(t *testing.T) {
	at := open(t, stillMemory())
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
		got := do(t, c.method, at+c.path, c.body, c.header)
		p := got.problem(t)
		if got.status != c.status || p.Type != c.kind || got.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %+v, want %d %s, allowing %q", c.method, c.path, got, c.status, c.kind, c.allow)
		}
	}
	got := do(t, "POST", at+"/v1/take", good, header("Content-Type", "application/json; charset=utf-8"))
	if got.status != 200 || !strings.Contains(got.body, `"granted":1`) {
		t.Errorf("the only unit: got %+v, want that nothing was charged before", got)
	}
}

// Every type of problem is the address of its own documentation.
func TestProblemTypesArePlacesToRead(t *testing.T) {
	for name, kind := range map[string]string{
		"ProblemMalformed": httpapi.ProblemMalformed, "ProblemBadLimit": httpapi.ProblemBadLimit,
		"ProblemBadKey": httpapi.ProblemBadKey, "ProblemBadCost": httpapi.ProblemBadCost,
		"ProblemForbidden": httpapi.ProblemForbidden, "ProblemTooLarge": httpapi.ProblemTooLarge,
		"ProblemNotJSON": httpapi.ProblemNotJSON, "ProblemUnavailable": httpapi.ProblemUnavailable,
		"ProblemNoRules": httpapi.ProblemNoRules,
	} {
		if want := "https://pkg.go.dev/github.com/penstock-io/penstock/server/httpapi#" + name; kind != want {
			t.Errorf("%s is %s, want %s", name, kind, want)
		}
	}
}
