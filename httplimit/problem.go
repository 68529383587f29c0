package httplimit

import (
	"encoding/json"
	"net/http"
)

// The types of problem that draft-ietf-httpapi-ratelimit-headers-11 defines.
const (
	TypeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	TypeAbnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
)

// A Problem is the body of a response that refuses or fails, by RFC 9457.
type Problem struct {
	// Type is an address that says what kind of problem this is. Default:
	// none, which means no more than the status does.
	Type string `json:"type,omitempty"`

	// Title says the same to people: one short sentence for every problem of
	// the type. Default: the status in words.
	Title string `json:"title,omitempty"`

	// Status is that of the response. Default: 500.
	Status int `json:"status"`

	// Detail says what happened this time. Optional.
	Detail string `json:"detail,omitempty"`

	// Pointer says what in the body it is about, as a JSON pointer in a
	// fragment: "#/requests/1/limit". Optional.
	Pointer string `json:"pointer,omitempty"`

	// Parameter says which parameter of the URL it is about. Optional.
	Parameter string `json:"parameter,omitempty"`

	// ViolatedPolicies are the names of the limits that denied. Optional.
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// QuotaExceeded returns the problem of a request that was denied by some of the
// limits that it was decided by.
func QuotaExceeded(answers []Answer) Problem {
	p := Problem{
		Type:   TypeQuotaExceeded,
		Title:  "Quota Exceeded",
		Status: http.StatusTooManyRequests,
	}
	for i := range answers {
		if !answers[i].Decision.Allowed {
			p.ViolatedPolicies = append(p.ViolatedPolicies, answers[i].policy())
		}
	}
	return p
}

// WriteProblem answers a request with a problem. Header fields must have been
// set before. If the client is gone there is nobody to tell, so it returns nothing.
func WriteProblem(w http.ResponseWriter, p Problem) {
	if p.Status < 400 || p.Status > 599 {
		p.Status = http.StatusInternalServerError
	}
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	writeBody(w, p.Status, p.body())
}

// body returns the problem as it is sent.
func (p Problem) body() []byte {
	body, _ := json.Marshal(p) // which cannot fail on strings and numbers
	return append(body, '\n')
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h, values := w.Header(), []string{"application/problem+json", "nosniff"}
	h["Content-Type"] = values[0:1:1]
	h["X-Content-Type-Options"] = values[1:2:2]
	delete(h, "Content-Length") // of whatever was to be sent instead
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
