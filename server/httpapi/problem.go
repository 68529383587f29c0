package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// The types of problem documents (RFC 9457). Each is the URL of its documentation,
// and stable.
const (
	// ProblemMalformed means that the request does not match openapi.yaml.
	ProblemMalformed = problemBase + "ProblemMalformed"

	// ProblemBadLimit means that a limit is invalid.
	ProblemBadLimit = problemBase + "ProblemBadLimit"

	// ProblemBadKey means that a key is empty or too long, or that the header from which
	// /v1/auth reads it is ambiguous or has no address.
	ProblemBadKey = problemBase + "ProblemBadKey"

	// ProblemBadCost means that the cost, or a field that modifies it, is invalid:
	// such as a refund in a list of the mode "all".
	ProblemBadCost = problemBase + "ProblemBadCost"

	// ProblemForbidden means that the caller may not refund units: it is neither on
	// the same machine, nor does it send the token.
	ProblemForbidden = problemBase + "ProblemForbidden"

	// ProblemLimitRefused means that the caller may not bring this limit: limits in
	// requests are disabled, the limit is over a ceiling, or there is no room for
	// what it would leave behind. Callers that may refund have no ceilings.
	ProblemLimitRefused = problemBase + "ProblemLimitRefused"

	// ProblemUnknownID means that the server does not remember what was granted under
	// the ID: nothing was, or it has expired. Nothing was charged.
	ProblemUnknownID = problemBase + "ProblemUnknownID"

	// ProblemTooLarge means that the body is longer than 64 KiB.
	ProblemTooLarge = problemBase + "ProblemTooLarge"

	// ProblemNotJSON means that the Content-Type is not JSON.
	ProblemNotJSON = problemBase + "ProblemNotJSON"

	// ProblemUnavailable means that the store could not decide. The caller chooses
	// whether to go on.
	ProblemUnavailable = problemBase + "ProblemUnavailable"

	// ProblemBusy means that the store answers, but requests were too many for it to come to this
	// one in time. It may be charged. That is no outage: to go on would lift the limit. Send it again later.
	ProblemBusy = problemBase + "ProblemBusy"

	// ProblemNoAudit means that nothing was refunded or reset, because the server could
	// not write its audit log.
	ProblemNoAudit = problemBase + "ProblemNoAudit"

	// ProblemNoRules means that the request needs rules, and none are loaded.
	ProblemNoRules = problemBase + "ProblemNoRules"

	problemBase = "https://pkg.go.dev/github.com/penstock-io/penstock/server/httpapi#"
)

// A problemType is what the problems of one type have in common.
type problemType struct {
	status int
	reason requestlog.Reason // "" if the request is not at fault
	title  string
	detail string // unless it depends on the request
}

var problemTypes = map[string]problemType{
	ProblemMalformed: {http.StatusBadRequest, requestlog.Malformed, "Malformed request", ""},
	ProblemBadLimit:  {http.StatusBadRequest, requestlog.BadLimit, "Invalid limit", ""},
	ProblemBadKey:    {http.StatusBadRequest, requestlog.BadKey, "Invalid key", ""},
	ProblemBadCost:   {http.StatusBadRequest, requestlog.BadCost, "Invalid cost", ""},

	ProblemLimitRefused: {http.StatusForbidden, requestlog.Forbidden, "Limit refused", ""},
	ProblemForbidden: {
		http.StatusForbidden, requestlog.Forbidden, "Refund not allowed",
		"a negative cost, or a limit of the name cl.throttle or override, " +
			"needs the header Authorization: Bearer TOKEN, or if the server has no token, a direct caller on its machine",
	},

	ProblemTooLarge: {http.StatusRequestEntityTooLarge, requestlog.TooLarge, "Body too large", "want at most 64 KiB"},
	ProblemNotJSON: {
		http.StatusUnsupportedMediaType, requestlog.ContentType,
		"Content type is not JSON", "want Content-Type: application/json",
	},
	ProblemUnknownID: {
		http.StatusNotFound, "", "Unknown ID",
		"what was granted under this id is not remembered, or only in part; nothing was charged",
	},

	ProblemNoRules: {
		http.StatusServiceUnavailable, requestlog.NoRules,
		"No rules loaded", "the request names a domain, but the server has no rules",
	},
	ProblemNoAudit: {
		http.StatusServiceUnavailable, "",
		"Audit log unavailable", "nothing was refunded: the server cannot write its audit log",
	},
	ProblemBusy: {
		http.StatusServiceUnavailable, "",
		"Store busy", "requests are too many at once for the store; this one may be charged",
	},
	ProblemUnavailable: {
		http.StatusServiceUnavailable, "",
		"Store unavailable", "no decision was made; the state of the key is unknown",
	},
}

func newProblem(kind string) httplimit.Problem {
	t := problemTypes[kind]
	return httplimit.Problem{Type: kind, Status: t.status, Title: t.title, Detail: t.detail}
}

var (
	errNotJSON         = errors.New("content type is not JSON")
	errRefundForbidden = errors.New("refund not allowed")
)

// problemOf returns the problem of an error.
func problemOf(err error) httplimit.Problem {
	if field, ok := errors.AsType[*fieldError](asFieldError(err)); ok {
		return field.asProblem()
	}
	for problem, kind := range problemErrors {
		if errors.Is(err, problem) {
			return newProblem(kind)
		}
	}
	return newProblem(ProblemUnavailable)
}

// problemErrors are the problems of errors that are not about a field.
var problemErrors = map[error]string{
	errNotJSON: ProblemNotJSON, httpserver.ErrTooLarge: ProblemTooLarge, errRefundForbidden: ProblemForbidden,
	engine.ErrNoRules: ProblemNoRules, penstock.ErrUnknownID: ProblemUnknownID, penstock.ErrBusy: ProblemBusy, audit.ErrUnwritable: ProblemNoAudit,
}

// A fieldError means that a field of the request is invalid.
type fieldError struct {
	path    []string // to the field, innermost first
	problem string
	kind    string // type of problem. Default: ProblemMalformed
	status  int    // Default: that of the kind
}

func (e *fieldError) Error() string { return e.problem }

// in adds the name or index of the enclosing field to the path of an error.
func in(name string, err error) error {
	if field, ok := errors.AsType[*fieldError](err); ok {
		field.path = append(field.path, name)
	}
	return err
}

// asFieldError returns an error of the library about a field, or the engine's about a
// limit, as a fieldError, with the JSON name of the field. It returns other errors as
// they are.
func asFieldError(err error) error {
	var refused *requestlimits.Refusal
	if errors.As(err, &refused) {
		return &fieldError{path: []string{"limit"}, problem: refused.Error(), kind: ProblemLimitRefused}
	}
	var field *penstock.FieldError
	if !errors.As(err, &field) {
		return asDescriptorError(err)
	}
	e := &fieldError{problem: field.Field + " " + field.Problem, kind: ProblemBadLimit}
	switch name := jsonNames[field.Field]; {
	case errors.Is(field, penstock.ErrBadLimit):
		e.path = []string{"limit"}
		return e
	case errors.Is(field, penstock.ErrBadKey):
		e.path, e.kind = []string{name}, ProblemBadKey
	case name == "": // Settle, which is no field here but a path
		return &fieldError{problem: "a settlement " + inJSON.Replace(field.Problem), kind: ProblemBadCost}
	default:
		e.path, e.kind = []string{name}, ProblemBadCost
	}
	e.problem = e.path[0] + " " + inJSON.Replace(field.Problem)
	return e
}

// asDescriptorError returns an error of the engine about what the rules match as a fieldError,
// and other errors as they are.
func asDescriptorError(err error) error {
	switch {
	case errors.Is(err, engine.ErrNoDomain):
		return &fieldError{path: []string{"domain"}, problem: "must not be empty"}
	case errors.Is(err, engine.ErrNoDescriptors), errors.Is(err, engine.ErrTooManyDescriptors),
		errors.Is(err, engine.ErrNoPermitID), errors.Is(err, engine.ErrNoRelease), errors.Is(err, engine.ErrNoSettle),
		errors.Is(err, engine.ErrNoAtMost):
		return &fieldError{path: []string{"descriptors"}, problem: err.Error()}
	}
	return err
}

// jsonNames maps the fields of penstock.Request to JSON fields.
var jsonNames = map[string]string{
	"Key": "key", "Cost": "cost", "AtMost": "at_most", "Overdraw": "overdraw", "MaxDelay": "max_delay", "Hold": "hold", "KeepFree": "keep_free", "NewID": "new_id", "ID": "id",
}

// inJSON renames fields in the problem of another.
var inJSON = strings.NewReplacer("AtMost", "at_most", "Overdraw", "overdraw", "MaxDelay", "max_delay")

func (e *fieldError) asProblem() httplimit.Problem {
	p := newProblem(cmp.Or(e.kind, ProblemMalformed))
	p.Detail, p.Status = e.problem, cmp.Or(e.status, p.Status)
	if len(e.path) > 0 {
		p.Pointer = e.pointer()
	}
	return p
}

// maxName is how many bytes of a field's name a pointer repeats: the client chose
// the name.
const maxName = 80

// pointer returns the path as a JSON pointer in a URI fragment.
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
