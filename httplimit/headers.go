package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// A Form selects the rate limit header fields. The zero Form is [IETF].
//
// All forms but [NoHeaders] set Retry-After on a denial: whole seconds, rounded
// up; absent if the request can never pass.
type Form uint8

// The forms. A single limit number is the most that could remain: a bucket's
// burst. With several limits, forms that have room for one report the tightest:
// the denial with the longest RetryAfter or else the least remaining.
const (
	// IETF is draft-ietf-httpapi-ratelimit-headers-11:
	//
	//	RateLimit-Policy: "reads";q=100;w=60, "daily";q=1000;w=86400
	//	RateLimit: "reads";r=12;t=8, "daily";r=380;t=32832
	//
	// A client that sends at most r requests in the next t seconds is served.
	// On a denial, RateLimit lists only the limits that denied. A period that
	// is not whole seconds has no w, and a bucket whose burst differs from its
	// count has penstock-burst. Items are appended to existing ones, such as
	// those of outer middleware.
	IETF Form = iota

	// IETF06 is draft -06, in wide use: RateLimit-Limit, RateLimit-Remaining
	// and RateLimit-Reset in seconds from now, and RateLimit-Policy: 100;w=60.
	IETF06

	// XRateLimit is X-RateLimit-Limit, -Remaining and -Reset in seconds from
	// now; see GitHub for an instant.
	XRateLimit

	// GitHub is X-RateLimit-Limit, -Remaining, -Used, -Resource (the limit's
	// name) and -Reset in seconds since 1970.
	GitHub

	// Kong is RateLimit-Limit, -Remaining and -Reset in seconds from now; and
	// for limits per second, minute, hour, day, month and year also
	// X-RateLimit-Limit-Minute, X-RateLimit-Remaining-Minute and so on.
	Kong

	// Envoy03 is what Envoy sends under DRAFT_VERSION_03: X-RateLimit-Limit
	// with all policies, as in 10, 10;w=1;name="per-ip", 1000;w=3600, and
	// X-RateLimit-Remaining and -Reset in seconds from now.
	Envoy03

	// OpenAI is X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests and
	// X-RateLimit-Reset-Requests, a duration such as 6m0s or 120ms, and the same
	// with -Tokens. The last word of a limit's name says what it counts:
	// requests, rpm or rpd, and tokens, tpm or tpd, as in tenant_tpm or
	// llm/tenant/tokens. Other limits have no fields; of several that count
	// the same, the tightest has.
	OpenAI

	// NoHeaders sets no field, not even Retry-After.
	NoHeaders
)

// ErrBadForm means that a text names no [Form].
var ErrBadForm = errors.New("bad header form")

var formNames = [...]string{
	IETF: "ietf", IETF06: "ietf-06", XRateLimit: "x-ratelimit", GitHub: "github",
	Kong: "kong", Envoy03: "envoy-03", OpenAI: "openai", NoHeaders: "none",
}

// String returns the form's name, as [ParseForm] reads it.
func (f Form) String() string {
	if int(f) < len(formNames) {
		return formNames[f]
	}
	return fmt.Sprintf("Form(%d)", uint8(f))
}

// ParseForm returns the form with a name: ietf, ietf-06, x-ratelimit, github,
// kong, envoy-03, openai or none.
func ParseForm(name string) (Form, error) {
	for f, known := range formNames {
		if name == known {
			return Form(f), nil
		}
	}
	return 0, fmt.Errorf("httplimit: %w: %.32q: want one of %s", ErrBadForm, name, strings.Join(formNames[:], ", "))
}

// SetHeaders sets the fields in h for the limits that decided a request. Without
// answers it does nothing.
func (f Form) SetHeaders(h http.Header, answers []Answer) {
	if len(answers) == 0 || f >= NoHeaders {
		return
	}
	var room [256]byte
	var out fields
	text, worst := room[:0], tightest(answers, func(int) bool { return true })
	switch f {
	case IETF:
		text = out.ietf(text, answers, worst)
	case IETF06:
		text = out.ietf06(text, answers, worst)
	case XRateLimit:
		text = out.xRateLimit(text, worst)
	case GitHub:
		text = out.gitHub(text, worst)
	case Kong:
		text = out.kong(text, answers, worst)
	case Envoy03:
		text = out.envoy03(text, answers, worst)
	case OpenAI:
		text = out.openAI(text, answers)
	}
	if s, ok := RetryAfterSeconds(worst.Decision); ok {
		text = out.number(text, "Retry-After", s)
	}
	out.writeTo(h, text)
}
