package httpserver

import (
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
)

// AppendDecision appends a decision as the members of a JSON object, without its
// braces. Every member is always present, so clients need no checks.
func AppendDecision(b []byte, s *penstock.Decision) []byte {
	b = append(b, `"allowed":`...)
	b = strconv.AppendBool(b, s.Allowed)
	b = append(b, `,"granted":`...)
	b = strconv.AppendInt(b, s.Granted, 10)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, s.Limit, 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, s.Remaining, 10)
	b = append(b, `,"retry_after":`...)
	b = AppendSeconds(b, s.RetryAfter)
	b = append(b, `,"reset_after":`...)
	b = AppendSeconds(b, s.ResetAfter)
	b = append(b, `,"delay":`...)
	b = AppendSeconds(b, s.Delay)
	b = append(b, `,"source":"`...)
	b = append(b, s.Source.String()...)
	return append(b, '"')
}

// AppendSeconds appends a duration as a number of seconds, to the nanosecond.
// Never is null: a client that expects a number fails, whereas any number would
// make it retry.
func AppendSeconds(b []byte, s time.Duration) []byte {
	if s == penstock.Never {
		return append(b, "null"...)
	}
	if s < 0 {
		b, s = append(b, '-'), -s
	}
	b = strconv.AppendInt(b, int64(s/time.Second), 10)
	rest := int64(s % time.Second)
	if rest == 0 {
		return b
	}
	b = append(b, '.')
	for unit := int64(100_000_000); rest > 0; unit /= 10 {
		b = append(b, byte('0'+rest/unit))
		rest %= unit
	}
	return b
}
