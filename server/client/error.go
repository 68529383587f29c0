package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// An Error is a response without a decision. Its Type is one of the constants of package
// httpapi, or empty. Problems with a key, limit or cost are [penstock.FieldError] instead.
type Error struct{ httplimit.Problem }

func (e *Error) Error() string {
	if e.Title == "" {
		return strings.TrimSuffix(fmt.Sprintf("client: the server responded %d %s: %s", e.Status, http.StatusText(e.Status), e.Detail), ": ")
	}
	return fmt.Sprintf("client: %s: %s", e.Title, e.Detail)
}

// Unwrap returns [penstock.ErrUnavailable] if the server could not decide, or [penstock.ErrBusy] if requests are
// too many for its store, and [penstock.ErrUnknownID] if it does not remember an ID.
func (e *Error) Unwrap() error {
	switch {
	case strings.HasSuffix(e.Type, "#ProblemBusy"):
		return penstock.ErrBusy
	case e.Status >= http.StatusInternalServerError:
		return penstock.ErrUnavailable
	case strings.HasSuffix(e.Type, "#ProblemUnknownID"):
		return penstock.ErrUnknownID
	}
	return nil
}

// newError returns the error of a response: a penstock.FieldError if the problem is
// about a key, limit or cost, else an Error.
func newError(response *http.Response, body []byte) error {
	e := &Error{}
	if json.Unmarshal(body, &e.Problem) != nil {
		e = &Error{httplimit.Problem{Detail: plainText(response, body)}}
	}
	e.Status = response.StatusCode
	_, kind, _ := strings.Cut(e.Type, "#")
	field, ok := fieldErrors[kind]
	if !ok {
		return e
	}
	pointed := e.Pointer[strings.LastIndexByte(e.Pointer, '/')+1:]
	if name, ok := fieldNames[pointed]; ok {
		field.Field = name
	}
	field.Problem = strings.TrimPrefix(e.Detail, pointed+" ") // FieldError names the field itself
	return &field
}

// plainText returns the beginning of a body that is plain text, quoted, or "". Such responses
// are not of the HTTP API: a listener that requires TLS explains itself this way, and so do
// proxies.
func plainText(response *http.Response, body []byte) string {
	text := strings.TrimSpace(string(body))
	kind := response.Header.Get("Content-Type")
	if text == "" || kind != "" && !strings.HasPrefix(kind, "text/plain") {
		return ""
	}
	return fmt.Sprintf("%.200q", text)
}

var (
	// fieldErrors maps problem types to errors of the library.
	fieldErrors = map[string]penstock.FieldError{
		"ProblemBadLimit": {Field: "Limit", Kind: penstock.ErrBadLimit},
		"ProblemBadKey":   {Field: "Key", Kind: penstock.ErrBadKey},
		"ProblemBadCost":  {Field: "Cost", Kind: penstock.ErrBadCost},
	}

	// fieldNames maps JSON fields to fields of penstock.Request.
	fieldNames = map[string]string{
		"key": "Key", "key_base64": "Key", "cost": "Cost", "at_most": "AtMost", "overdraw": "Overdraw", "max_delay": "MaxDelay", "hold": "Hold", "keep_free": "KeepFree", "new_id": "NewID", "id": "ID",
	}
)
