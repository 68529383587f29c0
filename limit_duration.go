package penstock

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/spelling"
)

// durationText formats a duration for parseDuration: whole days as 7d, others as
// in Go, but in ASCII and without trailing zero units.
func durationText(d time.Duration) string {
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseOffset parses a duration that may be negative.
func parseOffset(s string) (time.Duration, bool) {
	if positive, ok := strings.CutPrefix(s, "-"); ok {
		d, ok := parseDuration(positive)
		return -d, ok
	}
	return parseDuration(s)
}

// parseDuration parses a duration of zero or more. An overflow becomes the
// longest [time.Duration], which is too long for any limit. Fractions of a
// nanosecond are dropped.
func parseDuration(s string) (time.Duration, bool) {
	if s == "0" {
		return 0, true
	}
	if unit, ok := durationUnit(s); ok {
		return unit, true
	}
	var sum time.Duration
	for rest := s; rest != ""; {
		d, after, ok := cutDuration(rest)
		if !ok {
			return 0, false
		}
		if sum += d; sum < 0 {
			sum = math.MaxInt64
		}
		rest = after
	}
	return sum, s != ""
}

// cutDuration parses one number and its unit at the beginning of s.
func cutDuration(s string) (d time.Duration, rest string, ok bool) {
	whole, s := cutDigits(s)
	fraction := ""
	if after, ok := strings.CutPrefix(s, "."); ok {
		fraction, s = cutDigits(after)
	}
	end := strings.IndexAny(s, "0123456789.")
	if end < 0 {
		end = len(s)
	}
	unit, ok := durationUnit(s[:end])
	if !ok || whole+fraction == "" {
		return 0, "", false
	}
	d = wholeUnits(whole, unit) + fractionOf(fraction, unit)
	if d < 0 {
		d = math.MaxInt64
	}
	return d, s[end:], true
}

func cutDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

// wholeUnits returns digits × unit, or the longest duration if that overflows.
func wholeUnits(digits string, unit time.Duration) time.Duration {
	if digits == "" {
		return 0
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/int64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n) * unit
}

// fractionOf returns the fraction of a unit given by the digits after a point.
// Digits after the 18th make less than a nanosecond.
func fractionOf(digits string, unit time.Duration) time.Duration {
	numerator, denominator := uint64(0), uint64(1)
	for _, digit := range []byte(digits[:min(len(digits), 18)]) {
		numerator = 10*numerator + uint64(digit-'0')
		denominator *= 10
	}
	high, low := bits.Mul64(numerator, uint64(unit))
	part, _ := bits.Div64(high, low, denominator)
	return time.Duration(part)
}

// suggestPeriod returns what a period was probably meant to be, or else what periods look
// like.
func suggestPeriod(text string) string {
	digits, unit := cutDigits(text)
	if near := spelling.Similar(unit, unitWords); near != "" {
		if digits != "" && digits != "1" {
			near += "s"
		}
		return "did you mean " + digits + near + "?"
	}
	return "want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day"
}

var unitWords = []string{"second", "minute", "hour", "day", "week", "month", "year"}

// durationUnit returns the length of a unit.
func durationUnit(name string) (time.Duration, bool) {
	switch name {
	case "ns":
		return time.Nanosecond, true
	case "us", "µs", "μs": // the micro sign, and the Greek letter
		return time.Microsecond, true
	case "ms":
		return time.Millisecond, true
	case "s", "sec", "second", "seconds":
		return time.Second, true
	case "m", "min", "minute", "minutes":
		return time.Minute, true
	case "h", "hr", "hour", "hours":
		return time.Hour, true
	case "d", "day", "days":
		return day, true
	case "w", "week", "weeks":
		return 7 * day, true
	case "month", "months":
		return 30 * day, true
	case "year", "years":
		return 365 * day, true
	}
	return 0, false
}
