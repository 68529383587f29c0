package httplimit

import (
	"net/http"
	"strconv"
)

// fields are header fields whose values are adjacent in one text, so that a
// response allocates one string for all values and one slice for all fields. The
// text is passed through functions and so stays on the stack.
//
// Names are in net/http's canonical form.
type fields struct {
	list [maxFields]field
	n    int
}

// maxFields is what Kong's form needs: three fields, two for each of six periods,
// and Retry-After.
const maxFields = 3 + 2*6 + 1

type field struct {
	name   string
	finish int  // end of its value in the text; the start is the previous end
	add    bool // to existing values
}

// end ends a field whose value was appended to the text.
func (f *fields) end(text []byte, name string) {
	f.list[f.n] = field{name: name, finish: len(text)}
	f.n++
}

// endAdded ends a field that is appended to existing values.
func (f *fields) endAdded(text []byte, name string) {
	f.end(text, name)
	f.list[f.n-1].add = true
}

// start returns where the value of the next field starts.
func (f *fields) start() int {
	if f.n == 0 {
		return 0
	}
	return f.list[f.n-1].finish
}

// number appends a field whose value is a number.
func (f *fields) number(text []byte, name string, n int64) []byte {
	text = appendInteger(text, n)
	f.end(text, name)
	return text
}

// separate appends a comma unless the list is empty.
func (f *fields) separate(text []byte) []byte {
	if len(text) > f.start() {
		text = append(text, ", "...)
	}
	return text
}

// writeTo writes the fields into h.
func (f *fields) writeTo(h http.Header, text []byte) {
	all, values, start := string(text), make([]string, f.n), 0
	for i := range f.list[:f.n] {
		field := &f.list[i]
		values[i] = all[start:field.finish]
		start = field.finish
		value := values[i : i+1 : i+1]
		if field.add {
			if before := h[field.name]; len(before) > 0 {
				value = append(before[:len(before):len(before)], values[i])
			}
		}
		h[field.name] = value
	}
}

// maxInteger is the largest number that a structured field can hold.
const maxInteger = 999_999_999_999_999

func appendInteger(text []byte, n int64) []byte {
	return strconv.AppendInt(text, min(max(n, 0), maxInteger), 10)
}

// appendParameter appends a structured field's parameter whose value is a number.
func appendParameter(text []byte, name string, n int64) []byte {
	text = append(text, ';')
	text = append(text, name...)
	text = append(text, '=')
	return appendInteger(text, n)
}

// appendQuoted appends a structured field's string.
func appendQuoted(text []byte, s string) []byte {
	text = append(text, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			text = append(text, '\\')
		}
		text = appendCharacter(text, s[i])
	}
	return append(text, '"')
}

// appendPlain appends a name to a field that has no quotes.
func appendPlain(text []byte, s string) []byte {
	for i := range len(s) {
		text = appendCharacter(text, s[i])
	}
	return text
}

// appendCharacter appends one byte of a name. Fields hold printable ASCII; other
// bytes are percent-encoded, so that different names stay different.
func appendCharacter(text []byte, c byte) []byte {
	if c >= ' ' && c <= '~' {
		return append(text, c)
	}
	const digits = "0123456789ABCDEF"
	return append(text, '%', digits[c>>4], digits[c&15])
}
