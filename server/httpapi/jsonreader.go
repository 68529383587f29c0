package httpapi

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// A jsonReader is a strict reader of JSON (RFC 8259). encoding/json accepts input
// that would be a danger here: duplicate fields, of which two readers may use
// different ones; invalid UTF-8 and half surrogate pairs, which would make
// different keys the same; numbers that lose precision.
type jsonReader struct {
	text string
	at   int
}

// bad returns an error with the position, what is there, and what is wanted.
func (r *jsonReader) bad(want string) error {
	got := "the end"
	if r.at < len(r.text) {
		got = strconv.QuoteRune(firstRune(r.text[r.at:]))
	}
	return &fieldError{problem: fmt.Sprintf("byte %d: got %s, want %s", r.at+1, got, want)}
}

func firstRune(s string) rune {
	first, _ := utf8.DecodeRuneInString(s)
	return first
}

// next skips white space and returns the byte after it, or 0 at the end.
func (r *jsonReader) next() byte {
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// skip skips white space and then c, if that is the next byte.
func (r *jsonReader) skip(c byte) bool {
	if r.next() != c || c == 0 {
		return false
	}
	r.at++
	return true
}

// end returns an error unless only white space is left.
func (r *jsonReader) end() error {
	if r.next(); r.at < len(r.text) {
		return r.bad("the end")
	}
	return nil
}

// object reads an object. It calls field with every name, to read the value.
func (r *jsonReader) object(field func(name string) error) error {
	if !r.skip('{') {
		return r.bad("an object")
	}
	if r.skip('}') {
		return nil
	}
	for {
		if r.next() != '"' {
			return r.bad("a name in quotes")
		}
		name, err := r.string()
		if err != nil {
			return err
		}
		if !r.skip(':') {
			return r.bad("a colon")
		}
		if err := field(name); err != nil {
			return in(name, err)
		}
		if r.skip('}') {
			return nil
		}
		if !r.skip(',') {
			return r.bad("a comma or the end of the object")
		}
	}
}

// array reads an array. It calls element with every index, to read the value.
func (r *jsonReader) array(element func(i int) error) error {
	if !r.skip('[') {
		return r.bad("an array")
	}
	if r.skip(']') {
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return in(strconv.Itoa(i), err)
		}
		if r.skip(']') {
			return nil
		}
		if !r.skip(',') {
			return r.bad("a comma or the end of the array")
		}
	}
}

// string reads a string. Without escapes it is a substring of the text.
func (r *jsonReader) string() (string, error) {
	if !r.skip('"') {
		return "", r.bad("a string")
	}
	start := r.at
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			s := r.text[start:r.at]
			r.at++
			return s, nil
		case c == '\\':
			return r.escaped(start)
		case c < ' ':
			return "", r.bad("no control character in a string")
		}
	}
	return "", r.bad("a closing quote")
}

// escaped reads the rest of a string that began at start, from its first escape.
func (r *jsonReader) escaped(start int) (string, error) {
	var b strings.Builder
	b.WriteString(r.text[start:r.at])
	for r.at < len(r.text) {
		c := r.text[r.at]
		switch {
		case c == '"':
			r.at++
			return b.String(), nil
		case c < ' ':
			return "", r.bad("no control character in a string")
		case c != '\\':
			b.WriteByte(c)
			r.at++
			continue
		}
		char, err := r.escape()
		if err != nil {
			return "", err
		}
		b.WriteRune(char)
	}
	return "", r.bad("a closing quote")
}

const (
	escapes  = `"\/bfnrt`
	escapeTo = "\"\\/\b\f\n\r\t"
)

// escape reads one escape.
func (r *jsonReader) escape() (rune, error) {
	r.at++
	if r.at == len(r.text) {
		return 0, r.bad("a closing quote")
	}
	c := r.text[r.at]
	if i := strings.IndexByte(escapes, c); i >= 0 {
		r.at++
		return rune(escapeTo[i]), nil
	}
	if c != 'u' {
		return 0, r.bad("an escape")
	}
	first, err := r.hex()
	if err != nil || !utf16.IsSurrogate(first) {
		return first, err
	}
	if !strings.HasPrefix(r.text[r.at:], `\u`) {
		return 0, r.bad("the other half of a surrogate pair")
	}
	r.at++
	second, err := r.hex()
	if err != nil {
		return 0, err
	}
	char := utf16.DecodeRune(first, second)
	if char == utf8.RuneError {
		return 0, r.bad("a valid surrogate pair before this")
	}
	return char, nil
}

// hex reads the u of an escape and its four digits.
func (r *jsonReader) hex() (rune, error) {
	if len(r.text)-r.at < 5 {
		r.at = len(r.text)
		return 0, r.bad("four hexadecimal digits")
	}
	n, err := strconv.ParseUint(r.text[r.at+1:r.at+5], 16, 16)
	if err != nil || strings.ContainsAny(r.text[r.at+1:r.at+5], "+-_") {
		return 0, r.bad("four hexadecimal digits")
	}
	r.at += 5
	return rune(n), nil
}

// boolean reads true or false.
func (r *jsonReader) boolean() (bool, error) {
	r.next()
	for _, word := range []string{"true", "false"} {
		if strings.HasPrefix(r.text[r.at:], word) {
			r.at += len(word)
			return word == "true", nil
		}
	}
	return false, r.bad("true or false")
}

// number reads a number and returns its text.
func (r *jsonReader) number() (string, error) {
	r.next()
	start := r.at
	if r.at < len(r.text) && r.text[r.at] == '-' {
		r.at++
	}
	whole := r.digits()
	if whole == 0 || whole > 1 && r.text[r.at-whole] == '0' {
		r.at = start
		return "", r.bad("a number")
	}
	if r.at < len(r.text) && r.text[r.at] == '.' {
		r.at++
		if r.digits() == 0 {
			return "", r.bad("a digit after the point")
		}
	}
	if r.at < len(r.text) && r.text[r.at]|0x20 == 'e' {
		r.at++
		if r.at < len(r.text) && strings.IndexByte("+-", r.text[r.at]) >= 0 {
			r.at++
		}
		if r.digits() == 0 {
			return "", r.bad("a digit in the exponent")
		}
	}
	return r.text[start:r.at], nil
}

func (r *jsonReader) digits() (n int) {
	for ; r.at < len(r.text) && '0' <= r.text[r.at] && r.text[r.at] <= '9'; r.at++ {
		n++
	}
	return n
}

// maxExact is the largest integer up to which a float64 represents all of them.
const maxExact = 1 << 53

// integer reads a whole number. 1.0 and 1e3 are whole numbers too; beyond 2⁵³ only
// plain digits are accepted, since the sender may have rounded other forms.
func (r *jsonReader) integer() (int64, error) {
	text, err := r.number()
	if err != nil {
		return 0, err
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxExact {
		return 0, &fieldError{problem: fmt.Sprintf("%.40s: want a whole number that fits into 64 bits", text)}
	}
	return int64(f), nil
}

// seconds reads a number of seconds, truncated to the nanosecond.
func (r *jsonReader) seconds() (time.Duration, error) {
	text, err := r.number()
	if err != nil {
		return 0, err
	}
	return parseSeconds(text)
}

// maxSeconds is about the longest time.Duration.
const maxSeconds = 9e9

// parseSeconds parses a JSON number of seconds.
func parseSeconds(text string) (time.Duration, error) {
	if !strings.ContainsAny(text, "eE") {
		if d, err := time.ParseDuration(text + "s"); err == nil {
			return d, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.Abs(f) > maxSeconds {
		return 0, &fieldError{problem: fmt.Sprintf("%.40s: want a number of seconds, at most %d", text, int64(maxSeconds))}
	}
	return time.Duration(f * 1e9), nil
}
