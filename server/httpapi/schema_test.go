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

// A spec is openapi.yaml, and what of it has been met.
type spec struct {
	root map[string]any

	mu  sync.Mutex
	met map[string]bool // places in the file, such as "/paths/~1json/post/responses/200"
}

// described returns the file, read once.
var described = sync.OnceValues(func() (*spec, error) { return readSpec("openapi.yaml") })

func readSpec(name string) (*spec, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &spec{met: map[string]bool{}}
	return s, yaml.Unmarshal(text, &s.root)
}

// at returns what is at a place, and the place that a reference there leads to.
func (s *spec) at(place string) (any, string) {
	var here any = s.root
	for part := range strings.SplitSeq(strings.TrimPrefix(place, "/"), "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch node := here.(type) {
		case map[string]any:
			here = node[part]
		case []any:
			i, _ := strconv.Atoi(part)
			here = node[i]
		default:
			return nil, place
		}
	}
	if node, ok := here.(map[string]any); ok {
		if ref, ok := node["$ref"].(string); ok {
			return s.at(strings.TrimPrefix(ref, "#"))
		}
	}
	return here, place
}

func below(place, name string) string {
	return place + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func (s *spec) meet(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.met[place] = true
}

// A schemaCheck compares a value with a schema. It is of the part of JSON Schema
// that the file uses, and refuses to go by any other.
type schemaCheck struct {
	spec  *spec
	wrong []string
	met   []string
}

// validate returns what is wrong with a value by the schema at a place. What it
// meets counts only if nothing is.
func (s *spec) validate(place string, v any) []string {
	c := &schemaCheck{spec: s}
	c.value(place, "", v)
	if len(c.wrong) == 0 {
		for _, place := range c.met {
			s.meet(place)
		}
	}
	return c.wrong
}

func (c *schemaCheck) bad(where, format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf("%s: %s", where, fmt.Sprintf(format, args...)))
}

func (c *schemaCheck) value(place, where string, v any) {
	node, place := c.spec.at(place)
	schema, ok := node.(map[string]any)
	if !ok {
		c.bad(where, "there is no schema at %s", place)
		return
	}
	c.met = append(c.met, place)
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
			c.bad(where, "%s has the keyword %s, which this test does not know", place, keyword)
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
	c.met = append(c.met, fmt.Sprintf("%s/enum/%d", place, i))
}

func (c *schemaCheck) exactlyOne(place, where string, schemas []any, v any) {
	var fits []*schemaCheck
	var reasons []string
	for i := range schemas {
		one := &schemaCheck{spec: c.spec}
		one.value(fmt.Sprintf("%s/oneOf/%d", place, i), where, v)
		if len(one.wrong) == 0 {
			fits = append(fits, one)
		}
		reasons = append(reasons, one.wrong...)
	}
	if len(fits) != 1 {
		c.bad(where, "fits %d of %d schemas: %s", len(fits), len(schemas), strings.Join(reasons, "; "))
		return
	}
	c.met = append(c.met, fits[0].met...)
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
				c.met = append(c.met, below(place+"/properties", name))
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

// parseJSON returns a value whose numbers are as they were written.
func parseJSON(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// An exchange is a request, and what was answered.
type exchange struct {
	method, path, query, body string
	answer
}

// check returns how an exchange differs from what the file says.
func (s *spec) check(e exchange) []string {
	place := below("/paths", e.path)
	if node, _ := s.at(place); node == nil {
		if e.status == http.StatusNotFound {
			return s.validate("/components/schemas/Problem", mustParse(e.answer.body))
		}
		return []string{e.path + " is not described"}
	}
	operation := place + "/" + s.operation(place, e.method)
	response, responsePlace := s.at(below(operation+"/responses", s.status(e)))
	if response == nil {
		return []string{fmt.Sprintf("%s %s: the status %d is not described", e.method, e.path, e.status)}
	}
	s.meet(below(operation+"/responses", s.status(e)))
	wrong := s.checkHeaders(responsePlace, e.header)
	if e.method != http.MethodHead {
		wrong = append(wrong, s.checkBody(responsePlace, e)...)
	}
	if e.status == http.StatusOK || e.status == http.StatusTooManyRequests {
		wrong = append(wrong, s.checkRequest(operation, e)...)
	}
	return wrong
}

// operation returns the method that the file describes. Other methods than that
// are answered alike, or refused.
func (s *spec) operation(place, method string) string {
	node, _ := s.at(place)
	methods := slices.Collect(maps.Keys(node.(map[string]any)))
	if slices.Contains(methods, strings.ToLower(method)) {
		return strings.ToLower(method)
	}
	return methods[0]
}

// status returns the status of an exchange, or what it stands for.
func (s *spec) status(e exchange) string {
	if e.path == "/v1/auth" && strings.Contains(e.query, "deny="+strconv.Itoa(e.status)) {
		return "429"
	}
	return strconv.Itoa(e.status)
}

// framing are header fields that every answer may have, and that OpenAPI describes
// elsewhere or not at all.
var framing = []string{"Content-Type", "Content-Length", "Date", "Connection"}

func (s *spec) checkHeaders(place string, h http.Header) (wrong []string) {
	node, _ := s.at(place)
	headers, _ := node.(map[string]any)["headers"].(map[string]any)
	for name := range headers {
		at := below(place+"/headers", name)
		header, resolved := s.at(at)
		value := h.Get(name)
		switch {
		case value != "":
			s.meet(at)
			wrong = append(wrong, s.checkHeader(resolved, value)...)
		case header.(map[string]any)["required"] == true:
			wrong = append(wrong, "the header "+name+" is missing")
		}
	}
	for name := range h {
		described := func(n string) bool { return http.CanonicalHeaderKey(n) == name }
		if !slices.ContainsFunc(framing, described) && !slices.ContainsFunc(slices.Collect(maps.Keys(headers)), described) {
			wrong = append(wrong, "the header "+name+" is not described")
		}
	}
	return wrong
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
		if e.answer.body != "" {
			return []string{fmt.Sprintf("%s %d has a body, which is not described: %s", e.path, e.status, e.answer.body)}
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(e.header.Get("Content-Type"))
	if err != nil || content[media] == nil {
		return []string{fmt.Sprintf("%s %d: the content type %q is not described", e.path, e.status, e.header.Get("Content-Type"))}
	}
	at := below(place+"/content", media)
	s.meet(at)
	if strings.HasSuffix(media, "json") {
		v, err := parseJSON(e.answer.body)
		if err != nil {
			return []string{err.Error()}
		}
		return s.validate(at+"/schema", v)
	}
	return s.validate(at+"/schema", e.rawBody)
}

// checkRequest checks that what was accepted is what the file describes.
func (s *spec) checkRequest(operation string, e exchange) (wrong []string) {
	if body, _ := s.at(operation + "/requestBody"); body != nil && e.body != "" {
		v, err := parseJSON(e.body)
		if err != nil {
			return []string{err.Error()}
		}
		wrong = s.validate(operation+"/requestBody/content/application~1json/schema", v)
	}
	for i, name := range s.parameters(operation) {
		if strings.Contains("&"+e.query, "&"+name+"=") {
			s.meet(fmt.Sprintf("%s/parameters/%d", operation, i))
		}
	}
	return wrong
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

// names returns what an object in the file has.
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

// checkAgainstSpec fails a test whose exchange is not as the file says.
func checkAgainstSpec(t testing.TB, e exchange) {
	t.Helper()
	s, err := described()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range s.check(e) {
		t.Errorf("%s %s?%s %.200s: %d %.400s\nis not as openapi.yaml has it: %s", e.method, e.path, e.query, e.body, e.status, e.answer.body, wrong)
	}
}
