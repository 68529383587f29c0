package httpdoor

import (
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
)

// AppendDecision appends a decision as the members of a JSON object, without its
// braces. Every member is always there, so that nobody has to ask which.
func AppendDecision(b []byte, d *penstock.Decision) []byte {
	b = append(b, `"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	b = append(b, `,"granted":`...)
	b = strconv.AppendInt(b, d.Granted, 10)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, d.Limit, 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, d.Remaining, 10)
	b = append(b, `,"retry_after":`...)
	b = appendSeconds(b, d.RetryAfter)
	b = append(b, `,"reset_after":`...)
	b = appendSeconds(b, d.ResetAfter)
	b = append(b, `,"delay":`...)
	b = appendSeconds(b, d.Delay)
	b = append(b, `,"source":"`...)
	b = append(b, d.Source.String()...)
	return append(b, '"')
}

// appendSeconds appends a duration as a number of seconds, to the nanosecond.
// Never is null: a program that takes it for a number fails, where any number
// would have it try again.
func appendSeconds(b []byte, d time.Duration) []byte {
	if d == penstock.Never {
		return append(b, "null"...)
	}
	if d < 0 {
		b, d = append(b, '-'), -d
	}
	b = strconv.AppendInt(b, int64(d/time.Second), 10)
	rest := int64(d % time.Second)
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
