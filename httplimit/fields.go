package httplimit

import (
	"net/http"
	"strconv"
)

// fields collects header fields, to be allocated together: one string for all
// values, and one slice for all fields.
//
// Names are written as net/http has them, so that it need not look at each.
type fields struct {
	text []byte
	list [maxFields]field
	n    int
}

// maxFields is what Kong's form needs: three fields, two for each of six
// periods, and Retry-After.
const maxFields = 3 + 2*6 + 1

type field struct {
	name   string
	add    bool // to what is there already
	start  int
	finish int
}

// begin begins a field, whose value is what is appended until end is called.
func (f *fields) begin(name string) {
	f.list[f.n] = field{name: name, start: len(f.text)}
}

func (f *fields) end() {
	f.list[f.n].finish = len(f.text)
	f.n++
}

// number is a field whose value is a number.
func (f *fields) number(name string, n int64) {
	f.begin(name)
	f.integer(n)
	f.end()
}

func (f *fields) write(s string) { f.text = append(f.text, s...) }

// maxInteger is the largest number that a structured field can hold.
const maxInteger = 999_999_999_999_999

func (f *fields) integer(n int64) {
	f.text = strconv.AppendInt(f.text, min(max(n, 0), maxInteger), 10)
}

// parameter is a structured field's parameter whose value is a number.
func (f *fields) parameter(name string, n int64) {
	f.text = append(f.text, ';')
	f.write(name)
	f.text = append(f.text, '=')
	f.integer(n)
}

// quoted writes a structured field's string.
func (f *fields) quoted(s string) {
	f.text = append(f.text, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			f.text = append(f.text, '\\')
		}
		f.character(s[i])
	}
	f.text = append(f.text, '"')
}

// plain writes a name into a field that has no quotes.
func (f *fields) plain(s string) {
	for i := range len(s) {
		f.character(s[i])
	}
}

// character writes one byte of a name. Fields have only what ASCII can print;
// the rest is written as in addresses, so that names which differ stay different.
func (f *fields) character(c byte) {
	if c >= ' ' && c <= '~' {
		f.text = append(f.text, c)
		return
	}
	const digits = "0123456789ABCDEF"
	f.text = append(f.text, '%', digits[c>>4], digits[c&15])
}

// separate writes what stands between the items of a list that is begun.
func (f *fields) separate() {
	if len(f.text) > f.list[f.n].start {
		f.write(", ")
	}
}

// endUnlessEmpty ends a field, or forgets it if nothing was written.
func (f *fields) endUnlessEmpty() {
	if len(f.text) > f.list[f.n].start {
		f.end()
	}
}

// writeTo writes the fields into h.
func (f *fields) writeTo(h http.Header) {
	text, values := string(f.text), make([]string, f.n)
	for i, field := range f.list[:f.n] {
		values[i] = text[field.start:field.finish]
		value := values[i : i+1 : i+1]
		if before := h[field.name]; field.add && len(before) > 0 {
			value = append(before[:len(before):len(before)], values[i])
		}
		h[field.name] = value
	}
}
