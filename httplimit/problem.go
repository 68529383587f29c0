package httplimit

import (
	"cmp"
	"encoding/json"
	"net/http"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers-11.
const (
	TypeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	TypeAbnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
)

// A Problem is the body of an error response, by RFC 9457.
type Problem struct {
	// Type is a URI that identifies the kind of problem. Default: none.
	Type string `json:"type,omitempty"`

	// Title is a short summary of the type. Default: the status text.
	Title string `json:"title,omitempty"`

	// Status is the response's status. Default: 500.
	Status int `json:"status"`

	// Detail explains this occurrence. Optional.
	Detail string `json:"detail,omitempty"`

	// Pointer is the JSON pointer, as a fragment, of the part of the body that
	// is wrong: "#/requests/1/limit". Optional.
	Pointer string `json:"pointer,omitempty"`

	// Parameter is the URL parameter that is wrong. Optional.
	Parameter string `json:"parameter,omitempty"`

	// ViolatedPolicies are the names of the limits that denied. Optional.
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// QuotaExceeded returns the problem for a denied request. Its Detail is set if the
// request can never pass.
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
		if p.Detail == "" && answers[i].neverPasses() {
			p.Detail = answers[i].neverDetail()
		}
	}
	return p
}

// WriteProblem answers a request with a problem. Header fields must be set
// before. A write error is ignored: the client has disconnected.
func WriteProblem(w http.ResponseWriter, p Problem) {
	if p.Status < 400 || p.Status > 599 {
		p.Status = http.StatusInternalServerError
	}
	p.Title = cmp.Or(p.Title, http.StatusText(p.Status))
	writeBody(w, p.Status, p.body())
}

// body returns the JSON text.
func (p Problem) body() []byte {
	body, _ := json.Marshal(p) // cannot fail: strings and numbers only
	return append(body, '\n')
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	h, values := w.Header(), []string{"application/problem+json", "nosniff"}
	h["Content-Type"] = values[0:1:1]
	h["X-Content-Type-Options"] = values[1:2:2]
	delete(h, "Content-Length") // set for another body
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
