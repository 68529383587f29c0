// Package openapitest checks exchanges against an OpenAPI file, and which parts of the file
// no exchange has covered.
package openapitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A Spec is an OpenAPI file, and the places in it that exchanges have covered.
type Spec struct {
	// Status returns the status of an exchange as the file describes it. Default: its own.
	Status func(*Exchange) string

	root map[string]any

	mu      sync.Mutex
	covered map[string]bool // such as "/paths/~1json/post/responses/200"
}

// Read reads a file.
func Read(name string) (*Spec, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &Spec{covered: map[string]bool{}}
	return s, yaml.Unmarshal(text, &s.root)
}

// At returns the node at a place, and its place after following references.
func (s *Spec) At(place string) (any, string) {
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
			return s.At(strings.TrimPrefix(ref, "#"))
		}
	}
	return node, place
}

// Below returns the place of a child, with its name escaped.
func Below(place, name string) string {
	return place + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func (s *Spec) cover(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.covered[place] = true
}

// A schemaCheck validates a value. It knows the keywords of JSON Schema that the
// file uses, and fails on any other.
type schemaCheck struct {
	spec       *Spec
	violations []string
	covered    []string
}

// Validate returns how a value violates the schema at a place. Places count as
// covered only if the value is valid.
func (s *Spec) Validate(place string, v any) []string {
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
	node, place := c.spec.At(place)
	schema, ok := node.(map[string]any)
	if !ok {
		c.bad(where, "no schema at %s", place)
		return
	}
	c.covered = append(c.covered, place)
	for keyword, want := range schema {
		switch keyword {
		case "description", "default", "examples", "format", "contentEncoding", "title":
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
				c.value(Below(place, "items"), fmt.Sprintf("%s[%d]", where, i), element)
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
	schema, _ := c.spec.At(place)
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
				c.covered = append(c.covered, Below(place+"/properties", name))
				c.value(Below(place+"/properties", name), where+"/"+name, value)
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

// An Exchange is a request and its response.
type Exchange struct {
	Method, Path, Query, Body string
	RequestHeader             http.Header // may be nil

	Status   int
	Header   http.Header
	Response string // the body
}

// Check returns how an exchange violates the file.
func (s *Spec) Check(e *Exchange) []string {
	place := Below("/paths", e.Path)
	if node, _ := s.At(place); node == nil {
		if e.Status == http.StatusNotFound {
			return s.Validate("/components/schemas/Problem", mustParse(e.Response))
		}
		return []string{e.Path + " is not described"}
	}
	operation := place + "/" + s.operation(place, e.Method)
	node, responsePlace := s.At(Below(operation+"/responses", s.status(e)))
	if node == nil {
		return []string{fmt.Sprintf("%s %s: the status %d is not described", e.Method, e.Path, e.Status)}
	}
	s.cover(Below(operation+"/responses", s.status(e)))
	violations := s.checkHeaders(responsePlace, e.Header)
	if e.Method != http.MethodHead {
		violations = append(violations, s.checkBody(responsePlace, e)...)
	}
	if e.Status == http.StatusOK || e.Status == http.StatusTooManyRequests {
		violations = append(violations, s.checkRequest(operation, e)...)
	}
	return violations
}

// operation returns the method in the file. Other methods get the same responses, or
// are rejected.
func (s *Spec) operation(place, method string) string {
	node, _ := s.At(place)
	methods := slices.Sorted(maps.Keys(node.(map[string]any)))
	for _, name := range []string{strings.ToLower(method), "get"} {
		if slices.Contains(methods, name) {
			return name
		}
	}
	return methods[0]
}

func (s *Spec) status(e *Exchange) string {
	if s.Status != nil {
		return s.Status(e)
	}
	return strconv.Itoa(e.Status)
}

// undescribed are headers that any response may have, and that OpenAPI describes
// elsewhere or not at all.
var undescribed = []string{"Content-Type", "Content-Length", "Date", "Connection"}

func (s *Spec) checkHeaders(place string, h http.Header) (violations []string) {
	node, _ := s.At(place)
	headers, _ := node.(map[string]any)["headers"].(map[string]any)
	for name := range headers {
		at := Below(place+"/headers", name)
		header, resolved := s.At(at)
		value := h.Get(name)
		switch {
		case value != "":
			s.cover(at)
			violations = append(violations, s.checkParameter(resolved, value)...)
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

// checkParameter checks a header or a parameter of a URL.
func (s *Spec) checkParameter(place, value string) []string {
	if kind, _ := s.At(place + "/schema/type"); kind == "integer" || kind == "number" {
		return s.Validate(place+"/schema", json.Number(value))
	}
	return s.Validate(place+"/schema", value)
}

func (s *Spec) checkBody(place string, e *Exchange) []string {
	node, _ := s.At(place)
	content, _ := node.(map[string]any)["content"].(map[string]any)
	if content == nil {
		if e.Response != "" {
			return []string{fmt.Sprintf("%s %d has a body, which is not described: %s", e.Path, e.Status, e.Response)}
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(e.Header.Get("Content-Type"))
	if err != nil || content[media] == nil {
		return []string{fmt.Sprintf("%s %d: the content type %q is not described", e.Path, e.Status, e.Header.Get("Content-Type"))}
	}
	at := Below(place+"/content", media)
	s.cover(at)
	if strings.HasSuffix(media, "json") {
		v, err := parseJSON(e.Response)
		if err != nil {
			return []string{err.Error()}
		}
		return s.Validate(at+"/schema", v)
	}
	return s.Validate(at+"/schema", e.Response)
}

// checkRequest checks an accepted request.
func (s *Spec) checkRequest(operation string, e *Exchange) (violations []string) {
	if body, _ := s.At(operation + "/requestBody"); body != nil && e.Body != "" {
		violations = s.checkRequestBody(operation+"/requestBody/content", e)
	}
	sent, _ := url.ParseQuery(e.Query)
	for i, name := range s.Parameters(operation) {
		at := fmt.Sprintf("%s/parameters/%d", operation, i)
		values := append(sent[name], e.RequestHeader.Values(name)...)
		for _, value := range values {
			_, resolved := s.At(at)
			s.cover(at)
			s.cover(resolved)
			violations = append(violations, s.checkParameter(resolved, value)...)
		}
	}
	return violations
}

// checkRequestBody checks a body, which is JSON unless the request says that it is of another
// described type.
func (s *Spec) checkRequestBody(place string, e *Exchange) []string {
	media, _, err := mime.ParseMediaType(e.RequestHeader.Get("Content-Type"))
	if described, _ := s.At(Below(place, media)); err != nil || described == nil {
		media = "application/json"
	}
	s.cover(Below(place, media))
	var v any = e.Body
	if strings.HasSuffix(media, "json") {
		if v, err = parseJSON(e.Body); err != nil {
			return []string{err.Error()}
		}
	}
	return s.Validate(Below(place, media)+"/schema", v)
}

// Parameters returns the names of an operation's parameters.
func (s *Spec) Parameters(operation string) (names []string) {
	parameters, _ := s.At(operation + "/parameters")
	list, _ := parameters.([]any)
	for i := range list {
		p, _ := s.At(fmt.Sprintf("%s/parameters/%d", operation, i))
		names = append(names, p.(map[string]any)["name"].(string))
	}
	return names
}

// Names returns the sorted names in an object of the file.
func (s *Spec) Names(place string) []string {
	node, _ := s.At(place)
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

// Uncovered returns the places of the file that no exchange has covered: responses
// with their content and headers, parameters, fields, and values of enumerations.
func (s *Spec) Uncovered() []string {
	var places []string
	var walk func(place string, node any)
	walk = func(place string, node any) {
		parent := place[:max(strings.LastIndexByte(place, '/'), 0)]
		switch {
		case strings.Contains(place, "/examples/"), strings.Contains(place, "/securitySchemes/"):
			return
		case strings.HasSuffix(parent, "/properties"), strings.HasSuffix(parent, "/enum"), strings.HasSuffix(parent, "/responses") &&
			strings.HasPrefix(place, "/paths/"), strings.HasSuffix(parent, "/headers") && place != "/components/headers",
			strings.HasSuffix(parent, "/parameters"), strings.HasSuffix(parent, "/content") && !strings.Contains(place, "/requestBody/"):
			if _, at := s.At(place); !s.covered[place] && !s.covered[at] && parent != "/components/headers" {
				places = append(places, place)
			}
		}
		switch node := node.(type) {
		case map[string]any:
			for name, child := range node {
				walk(Below(place, name), child)
			}
		case []any:
			for i, child := range node {
				walk(fmt.Sprintf("%s/%d", place, i), child)
			}
		}
	}
	walk("", s.root)
	slices.Sort(places)
	return places
}
