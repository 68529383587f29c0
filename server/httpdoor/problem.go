package httpdoor

import (
	"encoding/json"
	"net/http"
)

// A Problem says why a request was not answered, as RFC 9457 has it.
type Problem struct {
	// Type says which kind of problem this is, for programs. Default: what
	// the status says.
	Type string `json:"type,omitempty"`

	// Title says the same for people. Default: the status's own words.
	Title string `json:"title"`

	// Status is the answer's. Required.
	Status int `json:"status"`

	// Detail says what is wrong with this very request.
	Detail string `json:"detail,omitempty"`

	// Pointer says where in the body that is, as a JSON pointer in a fragment:
	// "#/requests/1/limit".
	Pointer string `json:"pointer,omitempty"`

	// Parameter says which parameter of the URL it is about.
	Parameter string `json:"parameter,omitempty"`
}

// Write answers with the problem.
func (p Problem) Write(w http.ResponseWriter) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte("{}") // it cannot be: a Problem is text and a number
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a caller that has gone hears nothing
}

// NotAllowed answers a request whose method the resource does not have.
func NotAllowed(w http.ResponseWriter, r *http.Request, allowed string) {
	w.Header().Set("Allow", allowed)
	Problem{
		Status: http.StatusMethodNotAllowed,
		Detail: r.URL.Path + " is not asked by " + r.Method + ", but by " + allowed,
	}.Write(w)
}
