package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
)

// The types of problem. Each is the address of its own documentation, and stays
// what it is.
const (
	// ProblemMalformed means that the request cannot be read, or is not one of those
	// that openapi.yaml describes.
	ProblemMalformed = problems + "ProblemMalformed"

	// ProblemBadLimit means that a limit cannot be counted by.
	ProblemBadLimit = problems + "ProblemBadLimit"

	// ProblemBadKey means that a key is empty or too long.
	ProblemBadKey = problems + "ProblemBadKey"

	// ProblemBadCost means that what is asked for has no meaning, such as to give
	// units back where all are taken or none.
	ProblemBadCost = problems + "ProblemBadCost"

	// ProblemForbidden means that units are given back only to callers on the same
	// machine, or with the token.
	ProblemForbidden = problems + "ProblemForbidden"

	// ProblemTooLarge means that the body is longer than 64 KiB.
	ProblemTooLarge = problems + "ProblemTooLarge"

	// ProblemNotJSON means that the body does not say that it is JSON.
	ProblemNotJSON = problems + "ProblemNotJSON"

	// ProblemUnavailable means that the store could not decide. Nothing is known about
	// the key; whether to go on is the caller's choice.
	ProblemUnavailable = problems + "ProblemUnavailable"

	// ProblemNoRules means that the request goes by rules, and none are loaded.
	ProblemNoRules = problems + "ProblemNoRules"

	problems = "https://pkg.go.dev/github.com/penstock-io/penstock/server/httpapi#"
)

// A fieldError says which part of a request cannot be used.
type fieldError struct {
	path    []string // from the innermost outwards
	problem string
	kind    string // a type of problem; ProblemMalformed if empty
}

func (e *fieldError) Error() string { return e.problem }

// under says in which member or element an error is.
func under(name string, err error) error {
	var field *fieldError
	if errors.As(err, &field) {
		field.path = append(field.path, name)
	}
	return err
}

// maxName is how much is repeated of the name of a member that nobody knows.
const maxName = 80

// pointer returns where the field is, as a JSON pointer in a fragment.
func (e *fieldError) pointer() string {
	var b strings.Builder
	b.WriteByte('#')
	for i := len(e.path) - 1; i >= 0; i-- {
		name := e.path[i][:min(len(e.path[i]), maxName)]
		b.WriteByte('/')
		b.WriteString(url.PathEscape(pointerEscapes.Replace(name)))
	}
	return b.String()
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// asFieldError returns an error of the library about a field in the words of
// this API, or the error itself.
func asFieldError(err error) error {
	var field *penstock.FieldError
	if !errors.As(err, &field) {
		return err
	}
	e := &fieldError{problem: field.Field + " " + field.Problem, kind: ProblemBadLimit}
	switch name := fieldNames[field.Field]; {
	case errors.Is(field, penstock.ErrBadLimit):
		e.path = []string{"limit"}
	case errors.Is(field, penstock.ErrBadKey):
		e.path, e.kind = []string{name}, ProblemBadKey
	default:
		e.path, e.kind = []string{name}, ProblemBadCost
	}
	if name := e.path[0]; name != "limit" {
		e.problem = name + " " + field.Problem
	}
	return e
}

// fieldNames says what the fields of a request are called here.
var fieldNames = map[string]string{
	"Key": "key", "Cost": "cost", "AtMost": "at_most", "MaxDelay": "max_delay", "ID": "id",
}

// problemOf returns what to answer for an error.
func problemOf(err error) httplimit.Problem {
	var field *fieldError
	if errors.As(asFieldError(err), &field) {
		return field.asProblem()
	}
	switch {
	case errors.Is(err, engine.ErrNoDomain):
		return (&fieldError{path: []string{"domain"}, problem: "domain is empty"}).asProblem()
	case errors.Is(err, engine.ErrNoDescriptors), errors.Is(err, engine.ErrTooManyDescriptors):
		return (&fieldError{path: []string{"descriptors"}, problem: err.Error()}).asProblem()
	case errors.Is(err, engine.ErrNoRules):
		return httplimit.Problem{
			Type: ProblemNoRules, Status: http.StatusServiceUnavailable,
			Title: "No rules are loaded", Detail: "the request names a domain, and the server has no rules",
		}
	}
	return httplimit.Problem{
		Type: ProblemUnavailable, Status: http.StatusServiceUnavailable,
		Title: "The store is unavailable", Detail: "no decision was made, and nothing is known about the key",
	}
}

var titles = map[string]string{
	ProblemMalformed: "The request cannot be read",
	ProblemBadLimit:  "The limit cannot be counted by",
	ProblemBadKey:    "The key cannot be used",
	ProblemBadCost:   "What is asked for has no meaning",
}

func (e *fieldError) asProblem() httplimit.Problem {
	p := httplimit.Problem{Type: e.kind, Status: http.StatusBadRequest, Detail: e.problem}
	if p.Type == "" {
		p.Type = ProblemMalformed
	}
	if len(e.path) > 0 {
		p.Pointer = e.pointer()
	}
	p.Title = titles[p.Type]
	return p
}
