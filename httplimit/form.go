package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// A Form says in which header fields a client is told how it stands. The zero
// Form is [IETF].
//
// All of them but [NoHeaders] say in Retry-After when a denied request is worth
// repeating: in whole seconds, rounded up, and not at all if it never is.
type Form uint8

// The forms. Where they have one number for the limit, it is the most that could
// ever remain: a bucket's burst. With several limits, those that have room for one tell of the
// tightest: the one that denies for longest or, if none does, the one with the
// least remaining.
const (
	// IETF is draft-ietf-httpapi-ratelimit-headers-11, the coming standard:
	//
	//	RateLimit-Policy: "reads";q=100;w=60, "daily";q=1000;w=86400
	//	RateLimit: "reads";r=12;t=8, "daily";r=380;t=32832
	//
	// Whoever takes no more than r in the next t seconds goes on being served.
	// On a denial, RateLimit has only those limits that denied. A period that
	// is not whole seconds has no w, and a bucket whose burst is not its count
	// says so in penstock-burst. Items are added to those which are there
	// already, such as those of a limit further out.
	IETF Form = iota

	// IETF06 is draft -06 of the same, in wide use: RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset in seconds from now, and
	// RateLimit-Policy: 100;w=60.
	IETF06

	// XRateLimit is X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset, which is in seconds from now: see GitHub for an
	// instant.
	XRateLimit

	// GitHub is X-RateLimit-Limit, -Remaining, -Used, -Resource (the policy)
	// and -Reset, which is in seconds since 1970.
	GitHub

	// Kong is RateLimit-Limit, -Remaining and -Reset in seconds from now; and
	// for limits per second, minute, hour, day, month and year also
	// X-RateLimit-Limit-Minute, X-RateLimit-Remaining-Minute and so on.
	Kong

	// Envoy03 is what Envoy sends under DRAFT_VERSION_03: X-RateLimit-Limit
	// with all policies, as in 10, 10;w=1;name="per-ip", 1000;w=3600, and
	// X-RateLimit-Remaining and -Reset in seconds from now.
	Envoy03

	// NoHeaders tells nothing, not even when to come back.
	NoHeaders
)

// ErrBadForm means that a text is not the name of a [Form].
var ErrBadForm = errors.New("bad header form")

var formNames = [...]string{
	IETF: "ietf", IETF06: "ietf-06", XRateLimit: "x-ratelimit", GitHub: "github",
	Kong: "kong", Envoy03: "envoy-03", NoHeaders: "none",
}

// String returns the name of the form, as [ParseForm] reads it.
func (f Form) String() string {
	if int(f) < len(formNames) {
		return formNames[f]
	}
	return fmt.Sprintf("Form(%d)", uint8(f))
}

// ParseForm returns the form of a name: ietf, ietf-06, x-ratelimit, github, kong,
// envoy-03 or none.
func ParseForm(name string) (Form, error) {
	for f, known := range formNames {
		if name == known {
			return Form(f), nil
		}
	}
	return 0, fmt.Errorf("httplimit: %w: %.32q: want one of %s", ErrBadForm, name, strings.Join(formNames[:], ", "))
}

// SetHeaders tells in h how the client stands under the limits that its request
// was decided by. Without answers it does nothing.
func (f Form) SetHeaders(h http.Header, answers []Answer) {
	if len(answers) == 0 || f >= NoHeaders {
		return
	}
	var room [256]byte
	var out fields
	text, worst := room[:0], &answers[tightest(answers)]
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
	}
	if s, ok := RetryAfterSeconds(worst.Decision); ok {
		text = out.number(text, "Retry-After", s)
	}
	out.writeTo(h, text)
}
