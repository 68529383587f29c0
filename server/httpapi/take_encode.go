package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// encode writes a response: headers, status and body.
func (c *call) encode(w http.ResponseWriter, r *takeResponse, headers httplimit.Form) {
	status := http.StatusOK
	if c.mode != each { // some may be allowed and others denied: no status or header fits all
		c.collectApplied(r, r.decision.Allowed)
		headers.SetHeaders(w.Header(), c.applied)
		if !r.decision.Allowed {
			status = http.StatusTooManyRequests
		}
	}
	c.out = r.appendJSON(c.out)
	if status == http.StatusTooManyRequests && (!r.limited || r.decision.RetryAfter == penstock.Never) {
		c.appendDetail(r)
	}
	c.out = append(c.out, '\n')
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(c.out) // fails only if the client has disconnected
}

// appendDetail adds to the response why the request can never pass.
func (c *call) appendDetail(r *takeResponse) {
	c.out = append(c.out[:len(c.out)-1], `,"detail":`...)
	c.out = append(appendString(c.out, c.denial(r).Detail), '}')
}

// denial returns the problem of a denied request. One that no limit applied to is denied
// because no rule matches it.
func (c *call) denial(r *takeResponse) httplimit.Problem {
	p := httplimit.QuotaExceeded(c.applied)
	if !r.limited {
		p.Detail = "no rule matches the request"
	}
	return p
}

var jsonType = []string{"application/json"}

// collectApplied appends the limits that headers report to c.applied: all that
// applied if the request is denied, those that allowed it otherwise, and none in
// shadow mode.
func (c *call) collectApplied(r *takeResponse, allowed bool) {
	for i := range r.parts {
		c.collectApplied(&r.parts[i], allowed)
	}
	if len(r.parts) > 0 || !r.limited || r.shadow() || allowed && !r.decision.Allowed {
		return
	}
	a := httplimit.Answer{Limit: r.limit, Decision: r.decision, Cost: r.cost}
	if r.rule != nil {
		a.Policy = r.rule.Name
	}
	c.applied = append(c.applied, a)
}

// appendJSON appends the response as JSON.
func (r *takeResponse) appendJSON(b []byte) []byte {
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
		b = r.parts[i].appendJSON(b)
		if i == len(r.parts)-1 {
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
