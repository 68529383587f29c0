package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// encode writes a response: headers, status and body.
func (c *call) encode(w http.ResponseWriter, r *takecall.Reply, headers httplimit.Form) {
	status := http.StatusOK
	if c.mode != each { // some may be allowed and others denied: no status or header fits all
		c.collectApplied(r, r.Decision.Allowed)
		headers.SetHeaders(w.Header(), c.applied)
		if !r.Decision.Allowed {
			status = http.StatusTooManyRequests
		}
	}
	detail := ""
	if status == http.StatusTooManyRequests && (!r.Limited || r.Decision.RetryAfter == penstock.Never) {
		detail = c.denial(r).Detail
	}
	c.out = append(appendReply(c.out, r, detail), '\n')
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(c.out) // fails only if the client has disconnected
}

// denial returns the problem of a denied request. One that no limit applied to is denied
// because no rule matches it.
func (c *call) denial(r *takecall.Reply) httplimit.Problem {
	p := httplimit.QuotaExceeded(c.applied)
	if !r.Limited {
		p.Detail = "no rule matches the request"
	}
	return p
}

var jsonType = []string{"application/json"}

// collectApplied appends the limits that headers report to c.applied: all that
// applied if the request is denied, those that allowed it otherwise, and none in
// shadow mode.
func (c *call) collectApplied(r *takecall.Reply, allowed bool) {
	for i := range r.Parts {
		c.collectApplied(&r.Parts[i], allowed)
	}
	if len(r.Parts) > 0 || !r.Limited || r.Mode() == "shadow" || allowed && !r.Decision.Allowed {
		return
	}
	c.applied = append(c.applied, answerOf(r))
}

func answerOf(r *takecall.Reply) httplimit.Answer {
	a := httplimit.Answer{Limit: r.Limit, Decision: r.Decision, Cost: r.Cost, KeepFree: r.KeepFree}
	if r.Rule != nil {
		a.Policy = r.Rule.Name
	}
	return a
}

// appendReply appends a reply as JSON. Detail is why the request can never pass, or "".
func appendReply(b []byte, r *takecall.Reply, detail string) []byte {
	b = append(b, '{')
	if r.Limited {
		b = httpserver.AppendDecision(b, &r.Decision)
	} else {
		b = append(b, `"allowed":`...)
		b = strconv.AppendBool(b, r.Decision.Allowed)
	}
	if r.Rule != nil {
		b = append(b, `,"rule":`...)
		b = appendString(b, r.Rule.Name)
	}
	if mode := r.Mode(); mode != "" && len(r.Parts) == 0 {
		b = append(b, `,"mode":`...)
		b = appendString(b, mode)
	}
	if len(r.Parts) > 0 {
		b = append(b, `,"decisions":`...)
		mark := byte('[')
		for i := range r.Parts {
			p := &r.Parts[i]
			b, mark = appendReply(append(b, mark), p, detailOfPart(p)), ','
		}
		b = append(b, ']')
	}
	if detail != "" {
		b = append(b, `,"detail":`...)
		b = appendString(b, detail)
	}
	return append(b, '}')
}

func detailOfPart(r *takecall.Reply) string {
	if !r.Limited || len(r.Parts) > 0 || r.Decision.Allowed || r.Decision.RetryAfter != penstock.Never {
		return ""
	}
	return httplimit.QuotaExceeded([]httplimit.Answer{answerOf(r)}).Detail
}

func appendString(b []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // no error: every string can be quoted
	return append(b, quoted...)
}
