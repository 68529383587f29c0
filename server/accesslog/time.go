package accesslog

import (
	"bytes"
	"strconv"
	"time"
)

// Times are those that a store can represent. A line with another is not understood.
const (
	minYear = 1970
	maxYear = 2115
)

var (
	minTime = time.Date(minYear, 1, 2, 0, 0, 0, 0, time.UTC).UnixNano()
	maxTime = time.Date(maxYear+1, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
)

// parseTime parses a time by the first layout that fits, with or without a fraction of its seconds.
func parseTime(text []byte, layouts ...string) (int64, bool) {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, viewOf(text)); err == nil {
			return t.UnixNano(), t.Year() >= minYear && t.Year() <= maxYear
		}
	}
	return 0, false
}

// logTime parses 02/Jan/2006:15:04:05, with a fraction or a zone or neither.
func logTime(text []byte) (int64, bool) {
	if bytes.IndexByte(text, ' ') < 0 {
		return parseTime(text, "02/Jan/2006:15:04:05")
	}
	return parseTime(text, "02/Jan/2006:15:04:05 -0700")
}

// isoTime parses 2006-01-02T15:04:05, or with a space, with a fraction or a zone or both.
func isoTime(text []byte) (int64, bool) {
	return parseTime(text, time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04:05-0700",
		"2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04:05-0700", "2006-01-02 15:04:05 -0700")
}

// anyTime parses the time of a JSON log: a date, or a number of seconds, milliseconds, microseconds or
// nanoseconds since 1970, which their size tells apart.
func anyTime(text []byte) (int64, bool) {
	switch {
	case len(text) > 4 && text[4] == '-':
		return isoTime(text)
	case len(text) > 2 && text[2] == '/':
		return logTime(text)
	}
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	if len(whole) == 0 || len(whole) > 19 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	unit := int64(1)
	for scaled := n; scaled < 9e15 && unit < 1e9; scaled *= 1000 {
		unit *= 1000
	}
	if n > maxTime/unit {
		return 0, false
	}
	n *= unit
	for _, c := range fraction {
		if c < '0' || c > '9' {
			return 0, false
		}
		unit /= 10
		n += int64(c-'0') * unit
	}
	return n, true
}

// durationOf parses a number, with or without a fraction, of a unit.
func durationOf(text []byte, unit time.Duration) (d int64, ok bool) {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f >= 0) || f*float64(unit) > float64(24*time.Hour) {
		return 0, false
	}
	return int64(f * float64(unit)), true
}
