package accesslog

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// Times are those that a store can represent. A line with another is not understood.
var (
	minTime = time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC).UnixNano()
	maxTime = time.Date(2116, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
)

// digits returns the number that a text of digits is, and -1 for another text.
func digits(text []byte) int {
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' || n > math.MaxInt32 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// unixTime returns the time of a date in UTC; ok is false if it is none that can be represented.
func unixTime(year, month, day, hour, minute, second int) (t int64, ok bool) {
	if year < 1970 || year > 2115 || month < 1 || month > 12 || day < 1 || day > 31 ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 {
		return 0, false
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC).UnixNano(), true
}

var months = []byte("JanFebMarAprMayJunJulAugSepOctNovDec")

// logTime parses 02/Jan/2006:15:04:05, with a fraction or a zone or neither.
func logTime(text []byte) (int64, bool) {
	if len(text) < 20 || text[2] != '/' || text[6] != '/' || text[11] != ':' || text[14] != ':' || text[17] != ':' {
		return 0, false
	}
	month := bytes.Index(months, text[3:6])
	if month < 0 || month%3 != 0 {
		return 0, false
	}
	t, ok := unixTime(digits(text[7:11]), month/3+1, digits(text[:2]), digits(text[12:14]), digits(text[15:17]), digits(text[18:20]))
	return withRest(t, ok, text[20:])
}

// isoTime parses 2006-01-02T15:04:05, or with a space, with a fraction or a zone or both.
func isoTime(text []byte) (int64, bool) {
	if len(text) < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':' {
		return 0, false
	}
	t, ok := unixTime(digits(text[:4]), digits(text[5:7]), digits(text[8:10]), digits(text[11:13]), digits(text[14:16]), digits(text[17:19]))
	return withRest(t, ok, text[19:])
}

// withRest adds what follows the seconds: a fraction, then a zone.
func withRest(t int64, ok bool, rest []byte) (int64, bool) {
	if !ok {
		return 0, false
	}
	if len(rest) > 0 && (rest[0] == '.' || rest[0] == ',') {
		unit := int64(time.Second)
		for rest = rest[1:]; len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9'; rest = rest[1:] {
			unit /= 10
			t += int64(rest[0]-'0') * unit
		}
	}
	rest = bytes.TrimLeft(rest, " ")
	if len(rest) == 0 || rest[0] == 'Z' {
		return t, true
	}
	zone := bytes.ReplaceAll(rest, []byte(":"), nil)
	if len(zone) != 5 || zone[0] != '+' && zone[0] != '-' || digits(zone[1:]) < 0 {
		return 0, false
	}
	ahead := int64(digits(zone[1:3])*60+digits(zone[3:])) * int64(time.Minute)
	if zone[0] == '-' {
		ahead = -ahead
	}
	return t - ahead, true
}

// anyTime parses the time of a JSON log: a date, or a number of seconds, milliseconds, microseconds or
// nanoseconds since 1970, which their size tells apart.
func anyTime(text []byte) (int64, bool) {
	if len(text) > 4 && text[4] == '-' {
		return isoTime(text)
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
func durationOf(text []byte, unit time.Duration) int64 {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f > 0) || f*float64(unit) > float64(24*time.Hour) {
		return 0
	}
	return int64(f * float64(unit))
}
