package httpapi

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A jsonReader is a strict reader of JSON (RFC 8259). encoding/json accepts input
// that would be a danger here: duplicate fields, of which two readers may use
// different ones; invalid UTF-8 and half surrogate pairs, which would make
// different keys the same; numbers that lose precision. Only single strings and
// numbers are left to it.
type jsonReader struct {
	text string
	at   int
}

// bad returns an error with the position, what is there, and what is wanted.
func (r *jsonReader) bad(want string) error {
	got := "the end"
	if r.at < len(r.text) {
		first, _ := utf8.DecodeRuneInString(r.text[r.at:])
		got = strconv.QuoteRune(first)
	}
	return &fieldError{problem: fmt.Sprintf("byte %d: got %s, want %s", r.at+1, got, want)}
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
	if r.next() != c {
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

// list reads what stands between two brackets, with commas between its elements. It calls element
// with every index, to read that element.
func (r *jsonReader) list(what, brackets string, element func(i int) error) error {
	if !r.skip(brackets[0]) {
		return r.bad("an " + what)
	}
	for i := 0; !r.skip(brackets[1]); i++ {
		if i > 0 && !r.skip(',') {
			return r.bad("a comma or the end of the " + what)
		}
		if err := element(i); err != nil {
			return err
		}
	}
	return nil
}

// object reads an object with some of the known fields, each at most once, and returns which
// it has. It calls field with every name, to read the value.
func (r *jsonReader) object(known fieldSet, field func(name string) error) (has fieldSet, err error) {
	err = r.list("object", "{}", func(int) error {
		if r.next() != '"' {
			return r.bad("a name in quotes")
		}
		name, err := r.string()
		switch {
		case err != nil:
			return err
		case !r.skip(':'):
			return r.bad("a colon")
		}
		if err = has.add(name, known); err == nil {
			err = field(name)
		}
		return in(name, err)
	})
	return has, err
}

// array reads an array. It calls element with every index, to read the value.
func (r *jsonReader) array(element func(i int) error) error {
	return r.list("array", "[]", func(i int) error { return in(strconv.Itoa(i), element(i)) })
}

// string reads a string. Without escapes it is a substring of the text.
func (r *jsonReader) string() (string, error) {
	if r.next() != '"' {
		return "", r.bad("a string")
	}
	start, escapes := r.at, false
	for r.at++; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			r.at++
			if escapes {
				return unescape(r.text[start:r.at])
			}
			return r.text[start+1 : r.at-1], nil
		case c == '\\':
			escapes = true
			r.at++ // what is escaped may be a quote
		case c < ' ':
			return "", r.bad("no control character in a string")
		}
	}
	return "", r.bad("a closing quote")
}

// plainEscapes leaves no backslash that is escaped itself, and an escaped U+FFFD as it is.
var plainEscapes = strings.NewReplacer(`\\`, "", `\ufffd`, "\uFFFD")

// unescape returns what a string in quotes stands for. Half a surrogate pair becomes U+FFFD, of
// which there are more then than in the text.
func unescape(quoted string) (s string, err error) {
	if err := json.Unmarshal([]byte(quoted), &s); err != nil { // its words are those of a version of Go
		return "", &fieldError{problem: `want a valid escape in a string, such as \n or \u0041`}
	}
	replaced := strings.Count(s, "\uFFFD")
	if replaced > 0 && replaced > strings.Count(plainEscapes.Replace(strings.ToLower(quoted)), "\uFFFD") {
		return "", &fieldError{problem: "want the other half of a surrogate pair"}
	}
	return s, nil
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
	rest := strings.TrimLeft(r.text[r.at:], "+-.0123456789Ee")
	text := r.text[r.at : len(r.text)-len(rest)]
	if !json.Valid([]byte(text)) {
		return "", r.bad("a number")
	}
	r.at += len(text)
	return text, nil
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

// maxSeconds is about the longest time.Duration.
const maxSeconds = 9e9

// seconds reads a number of seconds, truncated to the nanosecond.
func (r *jsonReader) seconds() (time.Duration, error) {
	text, err := r.number()
	if err != nil {
		return 0, err
	}
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
