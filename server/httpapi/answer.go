package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// answer writes a result: its headers, its status and its body.
func (c *call) answer(w http.ResponseWriter, r *result, form httplimit.Form) {
	status := http.StatusOK
	if c.mode != each { // where some may be granted and others not, headers and status could speak for none
		c.collect(r, r.decision.Allowed)
		form.SetHeaders(w.Header(), c.answers)
		if !r.decision.Allowed {
			status = http.StatusTooManyRequests
		}
	}
	c.out = append(r.appendTo(c.out), '\n')
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(c.out) // a caller that has gone hears nothing
}

var jsonType = []string{"application/json"}

// collect gathers what headers tell: of a result that passes, the limits that let
// it pass. What is in shadow is not told.
func (c *call) collect(r *result, passes bool) {
	for i := range r.parts {
		c.collect(&r.parts[i], passes)
	}
	if len(r.parts) > 0 || !r.limited || r.shadow() || passes && !r.decision.Allowed {
		return
	}
	a := httplimit.Answer{Limit: r.limit, Decision: r.decision}
	if r.rule != nil {
		a.Policy = r.rule.Name
	}
	c.answers = append(c.answers, a)
}

// appendTo appends the result as JSON.
func (r *result) appendTo(b []byte) []byte {
	b = append(b, '{')
	if r.limited {
		b = httpserver.AppendDecision(b, &r.decision)
	} else {
		b = append(b, `"allowed":`...)
		b = strconv.AppendBool(b, r.decision.Allowed)
	}
	if r.rule != nil {
		b = append(b, `,"rule":`...)
		b = appendString(b, r.rule.Name)
		switch {
		case r.rule.Shadow:
			b = append(b, `,"mode":"shadow"`...)
		case r.rule.Quota:
			b = append(b, `,"mode":"quota"`...)
		}
	}
	for i := range r.parts {
		if i == 0 {
			b = append(b, `,"decisions":[`...)
		} else {
			b = append(b, ',')
		}
		b = r.parts[i].appendTo(b)
		if i == len(r.parts)-1 {
			b = append(b, ']')
		}
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // it cannot be: any string can be quoted
	}
	return append(b, quoted...)
}
