package httpapi

import (
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// take answers POST /v1/take.
func (d *Server) take(w http.ResponseWriter, r *http.Request) {
	if !isJSON(r.Header.Get("Content-Type")) {
		httpserver.WriteProblem(w, httplimit.Problem{
			Type: ProblemNotJSON, Status: http.StatusUnsupportedMediaType,
			Title: "The body is not JSON", Detail: "want Content-Type: application/json",
		})
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	if err := c.read(r, d.judge.MaxDescriptors()); err != nil {
		writeProblem(w, err)
		return
	}
	if (c.undoes() || d.loosens(c.questions)) && !d.judge.MayRefund(auth.HTTPCaller(r)) {
		httpserver.WriteProblem(w, mayNotUndo)
		return
	}
	began := d.begin()
	result, err := c.decide(r.Context(), d.judge, d.limits)
	d.finish(began)
	if err != nil {
		writeProblem(w, err)
		return
	}
	c.answer(w, &result, d.form)
}

var mayNotUndo = httplimit.Problem{
	Type: ProblemForbidden, Status: http.StatusForbidden, Title: "Units may not be given back",
	Detail: "a negative cost, and a limit that goes by the name of a rule and is another, " +
		"need a caller on the same machine, or Authorization: Bearer and the token",
}

// loosens reports whether one of the questions brings a limit in the place of a
// rule's, which would undo what that has counted.
func (d *Server) loosens(questions []question) bool {
	for i := range questions {
		q := &questions[i]
		if !strings.Contains(q.limit, "name=") {
			continue
		}
		if r, err := d.limits.request(q.limit); err == nil && d.judge.OverridesRule(r.Limit) {
			return true
		}
	}
	return false
}

// isJSON reports whether a body says that it is JSON. Browsers let any page send
// anything else to anyone, so this is also what keeps them out.
func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || media != "application/json" {
		return false
	}
	charset, ok := parameters["charset"]
	return !ok || charset == "utf-8" || charset == "UTF-8"
}

func writeProblem(w http.ResponseWriter, err error) {
	if errors.Is(err, errTooLarge) {
		w.Header().Set("Connection", "close") // the rest of the body is not worth reading
		httpserver.WriteProblem(w, httplimit.Problem{
			Type: ProblemTooLarge, Status: http.StatusRequestEntityTooLarge,
			Title: "The body is too large", Detail: "want at most 64 KiB",
		})
		return
	}
	httpserver.WriteProblem(w, problemOf(err))
}

// read reads the body and what it asks.
func (c *call) read(r *http.Request, maxDescriptors int) error {
	if err := c.readBody(r); err != nil {
		return err
	}
	return c.decode(maxDescriptors)
}

// undoes reports whether the call gives something back.
func (c *call) undoes() bool {
	for i := range c.questions {
		if c.questions[i].undoes() {
			return true
		}
	}
	return false
}
