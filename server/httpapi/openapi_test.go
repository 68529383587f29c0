package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/internal/openapitest"
)

// withSource returns a store whose decisions have the source.
func withSource(source penstock.Source) penstock.Store {
	store := frozenMemory()
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		d, err := store.Take(ctx, r)
		d.Source = source
		return d, err
	})
}

// A spec is openapi.yaml.
type spec struct{ *openapitest.Spec }

func readSpec() (*spec, error) {
	s, err := openapitest.Read("openapi.yaml")
	if err == nil {
		s.Status = describedStatus
	}
	return &spec{s}, err
}

// describedStatus returns the status of an exchange as in the file, where a denial with the
// status of the parameter deny is 429.
func describedStatus(e *openapitest.Exchange) string {
	if e.Path == "/v1/auth" && strings.Contains(e.Query, "deny="+strconv.Itoa(e.Status)) {
		return "429"
	}
	return strconv.Itoa(e.Status)
}

// sharedSpec returns the file, read once.
var sharedSpec = sync.OnceValues(readSpec)

func newExchange(method, path, query, body string, sent http.Header, got response) *openapitest.Exchange {
	return &openapitest.Exchange{
		Method: method, Path: path, Query: query, Body: body, RequestHeader: sent,
		Status: got.status, Header: got.header, Response: got.rawBody,
	}
}

// checkAgainstSpec fails the test if an exchange violates openapi.yaml.
func checkAgainstSpec(t testing.TB, e *openapitest.Exchange) {
	t.Helper()
	s, err := sharedSpec()
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range s.Check(e) {
		t.Errorf("%s %s?%s %.200s: %d %.400s\nviolates openapi.yaml: %s", e.Method, e.Path, e.Query, e.Body, e.Status, e.Response, violation)
	}
}

// Every path, method, status, field and parameter of openapi.yaml occurs in some
// exchange, and every exchange is valid by it.
func TestOpenAPIDescribesAllExchanges(t *testing.T) {
	s, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	send := s.sender(t)
	server := newServer(t, newEngine(t, frozenMemory(), nil), nil)
	noStore, noRules := newServer(t, newEngine(t, unavailableStore, nil), nil), newServer(t, engine.New(frozenMemory(), nil), nil)
	sendTakes(t, send, server)
	send(newServer(t, newEngine(t, busyStore, nil), nil), localAddr, "POST", "/v1/take", byRules("tenant=1"))
	for _, unable := range []http.Handler{noStore, noRules} {
		send(unable, localAddr, "POST", "/v1/take", byRules("tenant=1"))
		send(unable, localAddr, "POST", "/v1/settle", `{"key":"s","limit":"9/1m","id":"x","cost":3}`)
		send(unable, localAddr, "GET", "/v1/auth?domain=edge&tenant=1", "")
	}
	sendAuthRequests(send, server)
	sendEnvoy(t, send)
	sendInvalid(send, server, noStore, noRules)
	sendRefunds(t, send)
	send(server, localAddr, "GET", "/healthcheck", "")
	notReady := newServer(t, engine.New(frozenMemory(), nil), &httpapi.Options{Ready: func() error { return errors.New("no") }})
	send(notReady, localAddr, "GET", "/healthcheck", "")
	send(server, localAddr, "GET", "/openapi.yaml", "")
	send(server, localAddr, "GET", "/elsewhere", "")
	for _, place := range s.Uncovered() {
		t.Errorf("openapi.yaml describes %s, which no exchange has covered", place)
	}
}

const localAddr, remoteAddr = "127.0.0.1:4711", "10.0.0.1:4711"

// A sendFunc sends a request from an address and checks the exchange against
// openapi.yaml. The headers are names and values in turn.
type sendFunc func(server http.Handler, addr, method, target, body string, header ...string)

func (s *spec) sender(t *testing.T) sendFunc {
	return func(server http.Handler, addr, method, target, body string, header ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
		r.RemoteAddr = addr
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		server.ServeHTTP(w, r)
		got := response{w.Code, w.Result().Header, strings.TrimSpace(w.Body.String()), w.Body.String()}
		e := newExchange(method, r.URL.Path, r.URL.RawQuery, body, r.Header, got)
		for _, violation := range s.Check(e) {
			t.Errorf("%s %s %s: %d %s\nviolates openapi.yaml: %s", method, target, body, got.status, got.body, violation)
		}
	}
}

// sendTakes sends requests to /v1/take that cause all its responses.
func sendTakes(t *testing.T, send sendFunc, server http.Handler) {
	t.Helper()
	take := func(body string) { send(server, localAddr, "POST", "/v1/take", body) }
	for range 2 {
		take(`{"key":"k","limit":"1/1m","cost":1,"at_most":true,"max_delay":0}`)
		take(`{"key":"k","limit":"1/1m","overdraw":true}`)
		take(`{"key":"k","limit":"1/1m concurrent","id":"a","new_id":true}`)
		take(`{"key":"k","limit":"10/1m","keep_free":9}`)
		take(`{"key_base64":"/w==","limit":"1/1m","id":"x"}`)
		take(byRules("remote_address=1", "watched=2", "plan=gold", "unruled=3"))
		take(`{"at_most":true,"keep_free":1,"max_delay":1,` + byRules("line=1")[1:])
	}
	take(`{"domain":"edge","cost":2,"descriptors":[{"entries":[{"key":"tenant"}],"cost":1}]}`)
	take(`{"key":"k","limit":"1/1m","reset":true}`)
	take(`{"domain":"edge","reset":true,"descriptors":[{"entries":[{"key":"tenant"}]}]}`)
	take(`{"mode":"each","requests":[{"key":"k","limit":"1/1m","cost":-1},` + byRules("tenant=1") + `]}`)
	take(`{"mode":"all","requests":[{"key":"k","limit":"1/1m","cost":2}]}`)
	take(`{"key":"i","limit":"1/1m","id":"x"}`)
	take(`{"mode":"all","requests":[{"key":"i","limit":"1/1m","id":"x"},{"key":"j","limit":"1/1m","id":"x"}]}`)
	settle := func(body string) { send(server, localAddr, "POST", "/v1/settle", body) }
	take(`{"key":"s","limit":"9/1m","id":"x","hold":90,"cost":5}`)
	settle(`{"key":"s","limit":"9/1m","id":"x","cost":3}`)
	settle(`{"key":"s","limit":"9/1m","id":"unknown","cost":3}`)
	team := `{"domain":"edge","descriptors":[{"entries":[{"key":"team"}]}],"id":"x","cost":3}`
	take(team)
	settle(team)
	settle(`{"key":"s","limit":"9/1m","id":"x"}`)
	settle(strings.Repeat(" ", 64<<10+1))
	send(server, remoteAddr, "POST", "/v1/settle", `{"key":"s","limit":"1/366d","id":"x","cost":1}`)
	send(server, localAddr, "GET", "/v1/settle", "")
	send(server, localAddr, "POST", "/v1/settle", `{}`, "Content-Type", "text/plain")
	take(`{"key":"","limit":"1/1m"}`)
	take(`{"key":"k","limit":"x"}`)
	take(`{"key":"k","limit":"1/1m","max_delay":-1}`)
	take(`{"key":"k"}`)
	take(strings.Repeat(" ", 64<<10+1))
	send(server, remoteAddr, "POST", "/v1/take", `{"key":"k","limit":"1/1m","cost":-1}`)
	send(server, remoteAddr, "POST", "/v1/take", `{"key":"k","limit":"1/366d"}`)
	send(server, localAddr, "GET", "/v1/take", "")
	send(server, localAddr, "POST", "/v1/take", `{}`, "Content-Type", "text/plain")
	for _, source := range []penstock.Source{penstock.SourceLease, penstock.SourceDenyCache, penstock.SourceFallback, penstock.SourceOverride} {
		send(newServer(t, engine.New(withSource(source), nil), nil), localAddr, "POST", "/v1/take", `{"key":"k","limit":"1/1m","cost":2}`)
	}
}

// sendRefunds sends refunds with a reason, to servers with and without an audit log that
// can be written.
func sendRefunds(t *testing.T, send sendFunc) {
	t.Helper()
	const reason = "Penstock-Reason"
	for _, out := range []io.Writer{io.Discard, brokenWriter{}} {
		server := newServer(t, newEngine(t, frozenMemory(), nil), &httpapi.Options{Audit: newAudit(t, out)})
		send(server, localAddr, "POST", "/v1/take", `{"key":"k","limit":"1/1m","cost":-1}`, reason, "ticket 7")
		send(server, localAddr, "POST", "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"t"}],"hitsAddend":1,"isNegativeHits":true}]}`, reason, "ticket 7")
	}
}

// sendAuthRequests sends requests to /v1/auth that cause all its responses.
func sendAuthRequests(send sendFunc, server http.Handler) {
	for _, query := range []string{"limit=1/1m&key=v&cost=1&max_delay=0.5&deny=403", "domain=edge&remote_address=9&cost=3", "domain=edge&tenant=8&and&remote_address=8", "domain=edge&list=gate"} {
		send(server, localAddr, "GET", "/v1/auth?"+query, "")
		send(server, localAddr, "GET", "/v1/auth?"+query, "")
		send(server, localAddr, "PUT", "/v1/auth?"+strings.Replace(query, "&deny=403", "", 1), "")
	}
	send(server, localAddr, "GET", "/v1/auth?limit=1/1m", "")
}

// sendInvalid sends to every path everything that some path rejects, to check that
// openapi.yaml describes all rejections.
func sendInvalid(send sendFunc, servers ...http.Handler) {
	lower := `9/1h name=cl.throttle`
	queries := []string{"", "?limit=" + url.QueryEscape(lower) + "&key=k", "?" + strings.Repeat("a=b&", 99), "?domain=edge&tenant=t", "?domain=x&a=b&deny=418"}
	bodies := []string{
		"", "{", `{"key":"k","limit":"` + lower + `"}`, strings.Repeat(" ", 64<<10+1), byRules("tenant=t"),
		`{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"t"}],"hitsAddend":1,"isNegativeHits":true}]}`,
	}
	for _, route := range httpapi.Endpoints() {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			for _, query := range queries {
				for _, body := range bodies {
					for _, server := range servers {
						send(server, remoteAddr, method, route.Path+query, body)
						send(server, remoteAddr, method, route.Path+query, body, "Content-Type", "text/plain", "Origin", "https://evil.example")
					}
				}
			}
		}
	}
}

// openapi.yaml has the same paths, methods, parameters, fields and problem types as
// the code.
func TestOpenAPIMatchesCode(t *testing.T) {
	s, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string, file, code []string) {
		t.Helper()
		slices.Sort(file)
		slices.Sort(code)
		if !slices.Equal(slices.Compact(file), slices.Compact(code)) {
			t.Errorf("%s: openapi.yaml has %q, the code has %q", what, file, code)
		}
	}
	var paths []string
	for _, r := range httpapi.Endpoints() {
		paths = append(paths, r.Path)
		methods := s.Names(openapitest.Below("/paths", r.Path))
		if r.Methods == nil { // any method: the file describes the usual one
			same("methods of "+r.Path, make([]string, len(methods)), make([]string, 1))
			continue
		}
		same("methods of "+r.Path, methods, lower(r.Methods, http.MethodHead))
	}
	same("paths", s.Names("/paths"), paths)
	same("parameters of /v1/auth", s.Parameters("/paths/~1v1~1auth/get"), httpapi.Parameters())
	for place, fields := range httpapi.Fields() {
		same("fields of "+place, s.fields(place), fields)
	}
	s.compareMessage(t, "/components/schemas/RateLimitRequest", (&pb.RateLimitRequest{}).ProtoReflect().Descriptor())
	types, _ := s.At("/components/schemas/Problem/properties/type/enum")
	var kinds []string
	for _, kind := range types.([]any) {
		kinds = append(kinds, kind.(string))
	}
	same("problem types", kinds, append(problemTypes(t), httplimit.TypeQuotaExceeded))
}

// lower returns the methods in lower case, as in the file, without one of them.
func lower(methods []string, without string) (all []string) {
	for _, m := range methods {
		if m != without {
			all = append(all, strings.ToLower(m))
		}
	}
	return all
}

// fields returns the properties of a schema, or of all alternatives of its oneOf.
func (s *spec) fields(place string) []string {
	node, at := s.At(place)
	all := s.Names(at + "/properties")
	alternatives, _ := node.(map[string]any)["oneOf"].([]any)
	for i := range alternatives {
		all = append(all, s.fields(fmt.Sprintf("%s/oneOf/%d", at, i))...)
	}
	return all
}

// compareMessage fails the test unless a schema has the fields of a protobuf
// message, recursively. Messages of google.protobuf are plain values in JSON.
func (s *spec) compareMessage(t *testing.T, place string, m protoreflect.MessageDescriptor) {
	t.Helper()
	var fields []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		fields = append(fields, f.JSONName())
		if f.Message() == nil || strings.HasPrefix(string(f.Message().FullName()), "google.protobuf.") {
			continue
		}
		at := openapitest.Below(place+"/properties", f.JSONName())
		if f.IsList() {
			at += "/items"
		}
		s.compareMessage(t, at, f.Message())
	}
	slices.Sort(fields)
	if got := s.Names(place + "/properties"); !slices.Equal(got, fields) {
		t.Errorf("%s has %q, %s has %q", place, got, m.FullName(), fields)
	}
}

// problemTypes returns the problem types that the package exports.
func problemTypes(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Problem") {
			all = append(all, strings.TrimSuffix(httpapi.ProblemMalformed, "ProblemMalformed")+v.Names[0].Name)
		}
		return true
	})
	return all
}

// sendEnvoy sends requests to /json that cause all its responses.
func sendEnvoy(t *testing.T, send sendFunc) {
	t.Helper()
	var file strings.Builder
	file.WriteString("domain: d\ndescriptors:\n")
	for _, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		fmt.Fprintf(&file, "  - key: %s\n    metadata: {a: b}\n    rate_limit: {unit: %s, requests_per_unit: 1, name: n%s}\n", unit, unit, unit)
	}
	set, err := rules.Parse(rules.File{Name: "units.yaml", Text: []byte(file.String())})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(frozenMemory(), nil)
	e.SetRules(set)
	server := newServerForEnvoy(t, e, nil, rls.ServiceOptions{Headers: true, DynamicMetadata: true})
	entries := func(key string) string { return `"entries":[{"key":"` + key + `","value":"v"}]` }
	for _, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		send(server, localAddr, "POST", "/json", `{"domain":"d","descriptors":[{`+entries(unit)+`}]}`)
	}
	send(server, localAddr, "POST", "/json", `{"domain":"d","hitsAddend":1,"descriptors":[{`+entries("day")+`}]}`)
	for _, unit := range []string{"SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"} {
		limit := `"limit":{"requestsPerUnit":9,"unit":"` + unit + `"}`
		if unit == "HOUR" {
			limit = strings.TrimSuffix(limit, "}") + `,"unitMultiplier":2}`
		}
		send(server, localAddr, "POST", "/json", `{"domain":"d","descriptors":[{`+entries("x")+`,`+limit+`}]}`)
	}
	refund := `{"domain":"d","descriptors":[{` + entries("day") + `,"hitsAddend":1,"isNegativeHits":true}]}`
	send(server, localAddr, "POST", "/json", refund)
	send(server, remoteAddr, "POST", "/json", refund)
	// Of several descriptors, a refund that is not permitted fails alone.
	send(server, remoteAddr, "POST", "/json", strings.Replace(refund, `[{`, `[{`+entries("x")+`},{`, 1))
	largest := `{"entries":[` + strings.Repeat(`{"key":"k"},`, 127) + `{"key":"k"}]}`
	send(server, localAddr, "POST", "/json", `{"domain":"d","descriptors":[`+largest+strings.Repeat(`,{`+entries("x")+`}`, 255)+`]}`)
	send(server, localAddr, "POST", "/json", `{`)
	send(server, localAddr, "POST", "/json", strings.Repeat(" ", 64<<10+1))
}

// The examples of openapi.yaml are accepted.
func TestOpenAPIExamples(t *testing.T) {
	s, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	base := serveStore(t, frozenMemory())
	examples, _ := s.At("/paths/~1v1~1take/post/requestBody/content/application~1json/examples")
	if len(examples.(map[string]any)) == 0 {
		t.Fatal("openapi.yaml has no examples")
	}
	for name, example := range examples.(map[string]any) {
		body := jsonOf(t, example.(map[string]any)["value"])
		if got := post(t, base, body); got.status != 200 {
			t.Errorf("%s: %s: got %+v, want 200", name, body, got)
		}
	}
	limits, _ := s.At("/components/schemas/Limit/examples")
	for _, limit := range limits.([]any) {
		if got := post(t, base, jsonOf(t, map[string]any{"key": "k", "limit": limit})); got.status != 200 {
			t.Errorf("%s: got %+v, want 200", limit, got)
		}
	}
}
