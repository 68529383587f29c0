// Package timespan reads and writes durations as the texts of limits have them: 90s, 1h30m, 7d, week.
package timespan

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/spelling"
)

// Day is a day without clock changes.
const Day = 24 * time.Hour

// Text formats a duration for Parse: whole days as 7d, others as in Go, but in
// ASCII and without trailing zero units.
func Text(d time.Duration) string {
	if d != 0 && d%Day == 0 {
		return strconv.FormatInt(int64(d/Day), 10) + "d"
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

// ParseOffset parses a duration that may be negative.
func ParseOffset(s string) (time.Duration, bool) {
	if positive, ok := strings.CutPrefix(s, "-"); ok {
		d, ok := Parse(positive)
		return -d, ok
	}
	return Parse(s)
}

// Parse parses a duration of zero or more. An overflow becomes the longest
// [time.Duration], which is too long for any limit. Fractions of a nanosecond are
// dropped.
func Parse(s string) (time.Duration, bool) {
	if s == "0" {
		return 0, true
	}
	if unit, ok := units[s]; ok {
		return unit, true
	}
	var sum time.Duration
	for rest := s; rest != ""; {
		d, after, ok := cut(rest)
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

const digits = "0123456789"

// cut parses one number and its unit at the beginning of s.
func cut(s string) (d time.Duration, rest string, ok bool) {
	after := strings.TrimLeft(s, digits+".")
	number, isNumber := new(big.Rat).SetString(s[:len(s)-len(after)])
	rest = strings.TrimLeftFunc(after, func(r rune) bool { return !strings.ContainsRune(digits+".", r) })
	unit, isUnit := units[after[:len(after)-len(rest)]]
	if !isNumber || !isUnit {
		return 0, "", false
	}
	number.Mul(number, new(big.Rat).SetInt64(int64(unit)))
	if whole := new(big.Int).Quo(number.Num(), number.Denom()); whole.IsInt64() {
		return time.Duration(whole.Int64()), rest, true
	}
	return math.MaxInt64, rest, true
}

// Suggest returns what a text that is no period was probably meant to be, or else what periods
// look like.
func Suggest(text string) string {
	unit := strings.TrimLeft(text, digits)
	if near := spelling.Similar(unit, unitWords); near != "" {
		number := text[:len(text)-len(unit)]
		if number != "" && number != "1" {
			near += "s"
		}
		return "did you mean " + number + near + "?"
	}
	return "want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day"
}

var unitWords = []string{"second", "minute", "hour", "day", "week", "month", "year"}

// units are the lengths of the units, by each of their names.
var units = map[string]time.Duration{
	"ns": time.Nanosecond,
	"us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond, // the micro sign, and the Greek letter
	"ms": time.Millisecond,
	"s":  time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": Day, "day": Day, "days": Day,
	"w": 7 * Day, "week": 7 * Day, "weeks": 7 * Day,
	"month": 30 * Day, "months": 30 * Day,
	"year": 365 * Day, "years": 365 * Day,
}
