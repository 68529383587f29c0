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
	c.out = appendReply(c.out, r, false)
	if status == http.StatusTooManyRequests && (!r.Limited || r.Decision.RetryAfter == penstock.Never) {
		c.appendDetail(r)
	}
	c.out = append(c.out, '\n')
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(c.out) // fails only if the client has disconnected
}

// appendDetail adds to the response why the request can never pass.
func (c *call) appendDetail(r *takecall.Reply) {
	c.out = append(c.out[:len(c.out)-1], `,"detail":`...)
	c.out = append(appendString(c.out, c.denial(r).Detail), '}')
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

// appendReply appends a reply as JSON, with its detail if it is a part of another.
func appendReply(b []byte, r *takecall.Reply, isPart bool) []byte {
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
	if isPart && r.Limited && len(r.Parts) == 0 && !r.Decision.Allowed && r.Decision.RetryAfter == penstock.Never {
		b = append(b, `,"detail":`...)
		b = appendString(b, httplimit.QuotaExceeded([]httplimit.Answer{answerOf(r)}).Detail)
	}
	for i := range r.Parts {
		if i == 0 {
			b = append(b, `,"decisions":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendReply(b, &r.Parts[i], true)
		if i == len(r.Parts)-1 {
			b = append(b, ']')
		}
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // cannot happen: every string can be quoted
	}
	return append(b, quoted...)
}
