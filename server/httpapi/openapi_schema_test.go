package httpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A spec is openapi.yaml, and the places in it that exchanges have covered.
type spec struct {
	root map[string]any

	mu      sync.Mutex
	covered map[string]bool // such as "/paths/~1json/post/responses/200"
}

// sharedSpec returns the file, read once.
var sharedSpec = sync.OnceValues(func() (*spec, error) { return readSpec("openapi.yaml") })

func readSpec(name string) (*spec, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &spec{covered: map[string]bool{}}
	return s, yaml.Unmarshal(text, &s.root)
}

// at returns the node at a place, and its place after following references.
func (s *spec) at(place string) (any, string) {
	var node any = s.root
	for part := range strings.SplitSeq(strings.TrimPrefix(place, "/"), "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch parent := node.(type) {
		case map[string]any:
			node = parent[part]
		case []any:
			i, _ := strconv.Atoi(part)
			node = parent[i]
		default:
			return nil, place
		}
	}
	if object, ok := node.(map[string]any); ok {
		if ref, ok := object["$ref"].(string); ok {
			return s.at(strings.TrimPrefix(ref, "#"))
		}
	}
	return node, place
}

// below returns the place of a child, with its name escaped.
func below(place, name string) string {
	return place + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func (s *spec) cover(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.covered[place] = true
}

// A schemaCheck validates a value. It knows the keywords of JSON Schema that the
// file uses, and fails on any other.
type schemaCheck struct {
	spec       *spec
	violations []string
	covered    []string
}

// validate returns how a value violates the schema at a place. Places count as
// covered only if the value is valid.
func (s *spec) validate(place string, v any) []string {
	c := &schemaCheck{spec: s}
	c.value(place, "", v)
	if len(c.violations) == 0 {
		for _, place := range c.covered {
			s.cover(place)
		}
	}
	return c.violations
}

func (c *schemaCheck) bad(where, format string, args ...any) {
	c.violations = append(c.violations, fmt.Sprintf("%s: %s", where, fmt.Sprintf(format, args...)))
}

func (c *schemaCheck) value(place, where string, v any) {
	node, place := c.spec.at(place)
	schema, ok := node.(map[string]any)
	if !ok {
		c.bad(where, "no schema at %s", place)
		return
	}
	c.covered = append(c.covered, place)
	for keyword, want := range schema {
		switch keyword {
		case "description", "default", "examples", "format", "contentEncoding":
		case "type":
			c.kind(where, want, v)
		case "enum":
			c.oneOfValues(place, where, want.([]any), v)
		case "const":
			if v != want {
				c.bad(where, "%v, want %v", v, want)
			}
		case "oneOf":
			c.exactlyOne(place, where, want.([]any), v)
		case "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems":
			c.bound(keyword, where, want, v)
		case "items":
			list, _ := v.([]any)
			for i, element := range list {
				c.value(below(place, "items"), fmt.Sprintf("%s[%d]", where, i), element)
			}
		case "required", "properties", "additionalProperties", "dependentRequired":
			c.object(keyword, place, where, want, v)
		default:
			c.bad(where, "%s: unknown keyword %s", place, keyword)
		}
	}
}

func (c *schemaCheck) kind(where string, want, v any) {
	kinds, ok := want.([]any)
	if !ok {
		kinds = []any{want}
	}
	if !slices.ContainsFunc(kinds, func(kind any) bool { return isKind(kind.(string), v) }) {
		c.bad(where, "%v is a %T, want %v", v, v, want)
	}
}

func isKind(kind string, v any) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	case json.Number:
		f, err := v.Float64()
		return kind == "number" || kind == "integer" && err == nil && f == float64(int64(f))
	}
	return false
}

func (c *schemaCheck) oneOfValues(place, where string, want []any, v any) {
	i := slices.Index(want, v)
	if i < 0 {
		c.bad(where, "%v, want one of %v", v, want)
		return
	}
	c.covered = append(c.covered, fmt.Sprintf("%s/enum/%d", place, i))
}

func (c *schemaCheck) exactlyOne(place, where string, schemas []any, v any) {
	var fits []*schemaCheck
	var reasons []string
	for i := range schemas {
		one := &schemaCheck{spec: c.spec}
		one.value(fmt.Sprintf("%s/oneOf/%d", place, i), where, v)
		if len(one.violations) == 0 {
			fits = append(fits, one)
		}
		reasons = append(reasons, one.violations...)
	}
	if len(fits) != 1 {
		c.bad(where, "fits %d of %d schemas: %s", len(fits), len(schemas), strings.Join(reasons, "; "))
		return
	}
	c.covered = append(c.covered, fits[0].covered...)
}

func (c *schemaCheck) bound(keyword, where string, want, v any) {
	most, err := strconv.ParseFloat(fmt.Sprint(want), 64)
	if err != nil {
		c.bad(where, "%s: %v", keyword, err)
		return
	}
	var size float64
	switch v := v.(type) {
	case string:
		size = float64(utf8.RuneCountInString(v))
	case []any:
		size = float64(len(v))
	case json.Number:
		size, _ = v.Float64()
	default:
		return
	}
	if strings.HasPrefix(keyword, "min") && size < most || strings.HasPrefix(keyword, "max") && size > most {
		c.bad(where, "%.40v: want %s %v", v, keyword, want)
	}
}

func (c *schemaCheck) object(keyword, place, where string, want, v any) {
	object, ok := v.(map[string]any)
	if !ok {
		return
	}
	schema, _ := c.spec.at(place)
	properties, _ := schema.(map[string]any)["properties"].(map[string]any)
	switch keyword {
	case "required":
		c.require(where, object, want.([]any))
	case "dependentRequired":
		for name, others := range want.(map[string]any) {
			if _, ok := object[name]; ok {
				c.require(where, object, others.([]any))
			}
		}
	case "properties":
		for name := range properties {
			if value, ok := object[name]; ok {
				c.covered = append(c.covered, below(place+"/properties", name))
				c.value(below(place+"/properties", name), where+"/"+name, value)
			}
		}
	case "additionalProperties":
		for name := range object {
			if _, ok := properties[name]; !ok && want == false {
				c.bad(where, "%q is not described", name)
			}
		}
	}
}

func (c *schemaCheck) require(where string, object map[string]any, names []any) {
	for _, name := range names {
		if _, ok := object[name.(string)]; !ok {
			c.bad(where, "%s is missing", name)
		}
	}
}

// parseJSON returns a value with numbers as json.Number.
func parseJSON(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// An exchange is a request and its response.
type exchange struct {
	method, path, query, body string
	response

	sent http.Header // of the request; may be nil
}

// check returns how an exchange violates the file.
func (s *spec) check(e exchange) []string {
	place := below("/paths", e.path)
	if node, _ := s.at(place); node == nil {
		if e.status == http.StatusNotFound {
			return s.validate("/components/schemas/Problem", mustParse(e.response.body))
		}
		return []string{e.path + " is not described"}
	}
	operation := place + "/" + s.operation(place, e.method)
	node, responsePlace := s.at(below(operation+"/responses", s.status(e)))
	if node == nil {
		return []string{fmt.Sprintf("%s %s: the status %d is not described", e.method, e.path, e.status)}
	}
	s.cover(below(operation+"/responses", s.status(e)))
	violations := s.checkHeaders(responsePlace, e.header)
	if e.method != http.MethodHead {
		violations = append(violations, s.checkBody(responsePlace, e)...)
	}
	if e.status == http.StatusOK || e.status == http.StatusTooManyRequests {
		violations = append(violations, s.checkRequest(operation, e)...)
	}
	return violations
}

// operation returns the method in the file. Other methods get the same responses, or
// are rejected.
func (s *spec) operation(place, method string) string {
	node, _ := s.at(place)
	methods := slices.Collect(maps.Keys(node.(map[string]any)))
	if slices.Contains(methods, strings.ToLower(method)) {
		return strings.ToLower(method)
	}
	return methods[0]
}

// status returns the status of an exchange as in the file, where a denial with the
// status of the parameter deny is 429.
func (s *spec) status(e exchange) string {
	if e.path == "/v1/auth" && strings.Contains(e.query, "deny="+strconv.Itoa(e.status)) {
		return "429"
	}
	return strconv.Itoa(e.status)
}

// undescribed are headers that any response may have, and that OpenAPI describes
// elsewhere or not at all.
var undescribed = []string{"Content-Type", "Content-Length", "Date", "Connection"}

func (s *spec) checkHeaders(place string, h http.Header) (violations []string) {
	node, _ := s.at(place)
	headers, _ := node.(map[string]any)["headers"].(map[string]any)
	for name := range headers {
		at := below(place+"/headers", name)
		header, resolved := s.at(at)
		value := h.Get(name)
		switch {
		case value != "":
			s.cover(at)
			violations = append(violations, s.checkHeader(resolved, value)...)
		case header.(map[string]any)["required"] == true:
			violations = append(violations, "the header "+name+" is missing")
		}
	}
	for name := range h {
		same := func(n string) bool { return http.CanonicalHeaderKey(n) == name }
		if !slices.ContainsFunc(undescribed, same) && !slices.ContainsFunc(slices.Collect(maps.Keys(headers)), same) {
			violations = append(violations, "the header "+name+" is not described")
		}
	}
	return violations
}

func (s *spec) checkHeader(place, value string) []string {
	if kind, _ := s.at(place + "/schema/type"); kind == "integer" {
		return s.validate(place+"/schema", json.Number(value))
	}
	return s.validate(place+"/schema", value)
}

func (s *spec) checkBody(place string, e exchange) []string {
	node, _ := s.at(place)
	content, _ := node.(map[string]any)["content"].(map[string]any)
	if content == nil {
		if e.response.body != "" {
			return []string{fmt.Sprintf("%s %d has a body, which is not described: %s", e.path, e.status, e.response.body)}
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(e.header.Get("Content-Type"))
	if err != nil || content[media] == nil {
		return []string{fmt.Sprintf("%s %d: the content type %q is not described", e.path, e.status, e.header.Get("Content-Type"))}
	}
	at := below(place+"/content", media)
	s.cover(at)
	if strings.HasSuffix(media, "json") {
		v, err := parseJSON(e.response.body)
		if err != nil {
			return []string{err.Error()}
		}
		return s.validate(at+"/schema", v)
	}
	return s.validate(at+"/schema", e.rawBody)
}

// checkRequest checks an accepted request.
func (s *spec) checkRequest(operation string, e exchange) (violations []string) {
	if body, _ := s.at(operation + "/requestBody"); body != nil && e.body != "" {
		v, err := parseJSON(e.body)
		if err != nil {
			return []string{err.Error()}
		}
		violations = s.validate(operation+"/requestBody/content/application~1json/schema", v)
	}
	for i, name := range s.parameters(operation) {
		if strings.Contains("&"+e.query, "&"+name+"=") || e.sent.Get(name) != "" {
			s.cover(fmt.Sprintf("%s/parameters/%d", operation, i))
		}
	}
	return violations
}

// parameters returns the names of an operation's parameters.
func (s *spec) parameters(operation string) (names []string) {
	parameters, _ := s.at(operation + "/parameters")
	list, _ := parameters.([]any)
	for _, p := range list {
		names = append(names, p.(map[string]any)["name"].(string))
	}
	return names
}

// names returns the sorted names in an object of the file.
func (s *spec) names(place string) []string {
	node, _ := s.at(place)
	object, _ := node.(map[string]any)
	return slices.Sorted(maps.Keys(object))
}

func mustParse(text string) any {
	v, err := parseJSON(text)
	if err != nil {
		return err.Error()
	}
	return v
}

// checkAgainstSpec fails the test if an exchange violates openapi.yaml.
func checkAgainstSpec(t testing.TB, e exchange) {
	t.Helper()
	s, err := sharedSpec()
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range s.check(e) {
		t.Errorf("%s %s?%s %.200s: %d %.400s\nviolates openapi.yaml: %s", e.method, e.path, e.query, e.body, e.status, e.response.body, violation)
	}
}
