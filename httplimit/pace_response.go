package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// serverLimits returns how many requests a server accepts within a time, as its
// response says. Malformed fields are ignored.
func serverLimits(resp *http.Response) (left int64, within time.Duration, ok bool) {
	h := resp.Header
	now := time.Now()
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date // the other fields use the server's clock
	}
	if resp.StatusCode >= 400 {
		if after, ok := parseRetryAfter(h.Get("Retry-After"), now); ok {
			return 0, after, true
		}
	}
	if age := h.Get("Age"); age != "" && age != "0" {
		return 0, 0, false // from a cache: the fields are old
	}
	if items, ok := parseServiceLimits(h["Ratelimit"]); ok {
		return tightestLimit(items)
	}
	if left, reset, ok := parseDraft07(h["Ratelimit"]); ok {
		return left, inSeconds(reset), true
	}
	for _, prefix := range []string{"Ratelimit-", "X-Ratelimit-", "X-Rate-Limit-"} {
		left, ok := wholeNumber(h.Get(prefix + "Remaining"))
		reset, also := wholeNumber(h.Get(prefix + "Reset"))
		if ok && also {
			return left, untilReset(reset, now), true
		}
	}
	return 0, 0, false
}

// parseRetryAfter reads a Retry-After field: seconds, or a date.
func parseRetryAfter(field string, now time.Time) (time.Duration, bool) {
	if s, ok := wholeNumber(field); ok {
		return inSeconds(s), true
	}
	if date, err := http.ParseTime(field); err == nil {
		return max(0, date.Sub(now)), true
	}
	return 0, false
}

// untilReset reads a reset in seconds, either from now or since 1970: values
// above twenty years must be the latter.
func untilReset(reset int64, now time.Time) time.Duration {
	const twentyYears = 20 * 365 * 24 * 60 * 60
	if reset < twentyYears {
		return inSeconds(reset)
	}
	return inSeconds(max(0, reset-now.Unix()))
}

func inSeconds(s int64) time.Duration {
	return time.Duration(min(s, math.MaxInt64/int64(time.Second))) * time.Second
}

// wholeNumber parses digits, and returns the largest integer for numbers beyond
// it.
func wholeNumber(field string) (int64, bool) {
	if field == "" || len(field) > 32 || strings.Trim(field, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(field, 10, 64)
	if err != nil {
		return math.MaxInt64, true
	}
	return n, true
}

// A serviceLimit is one item of a RateLimit field.
type serviceLimit struct {
	left   int64
	window int64 // in seconds, or -1 without one
}

// tightestLimit returns the limit with the least left among those with a window.
func tightestLimit(items []serviceLimit) (left int64, within time.Duration, ok bool) {
	for _, item := range items {
		t := inSeconds(item.window)
		if item.window >= 0 && (!ok || item.left < left || item.left == left && t > within) {
			left, within, ok = item.left, t, true
		}
	}
	return left, within, ok
}
