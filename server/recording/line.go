// Package recording writes what the daemon decides to files, so that the same requests can be decided
// again under other rules.
//
// A file has a line for each request, with tabs between its parts: the time in Unix nanoseconds, the
// outcome, the domain, and for each descriptor its cost and its entries, in the form of [rules.AppendKey]:
//
//	1767225600123456789	allowed	shop	1	user=42	1	path=/login|remote_address=203.0.113.9
//
// Control characters, and percent signs, are written as in a URL.
package recording

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// Suffix is how the names of recordings end.
const Suffix = ".recording"

// A Record is one request.
type Record struct {
	Time        int64 // Unix nanoseconds
	Domain      string
	Denied      bool
	Descriptors []engine.Descriptor
}

var outcomes = map[bool]string{false: "allowed", true: "denied"}

// timeDigits is the length of a time from 2001 to 2286.
const timeDigits = 19

// appendLine appends a line.
func (r *Record) appendLine(buf []byte) []byte {
	buf = strconv.AppendInt(buf, r.Time, 10)
	buf = append(append(append(buf, '\t'), outcomes[r.Denied]...), '\t')
	buf = escape(append(buf, r.Domain...), len(buf))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		buf = strconv.AppendInt(append(buf, '\t'), d.Cost, 10)
		buf = append(buf, '\t')
		buf = escape(rules.AppendKey(buf, d.Entries), len(buf))
	}
	return append(buf, '\n')
}

// escape writes control characters and percent signs of what begins at start as in a URL.
func escape(buf []byte, start int) []byte {
	const hex = "0123456789ABCDEF"
	if !slices.ContainsFunc(buf[start:], isEscaped) { // as nearly all texts
		return buf
	}
	text := slices.Clone(buf[start:])
	buf = buf[:start]
	for _, c := range text {
		if isEscaped(c) {
			buf = append(buf, '%', hex[c>>4], hex[c&15])
		} else {
			buf = append(buf, c)
		}
	}
	return buf
}

func isEscaped(c byte) bool { return c < ' ' || c == '%' || c == 0x7f }

// Time returns the time of a line, and whether it is one.
func Time(line []byte) (int64, bool) {
	if len(line) < timeDigits+1 || line[timeDigits] != '\t' {
		return 0, false
	}
	rest := line[timeDigits+1:]
	if !bytes.HasPrefix(rest, []byte("allowed\t")) && !bytes.HasPrefix(rest, []byte("denied\t")) {
		return 0, false
	}
	t, err := strconv.ParseInt(string(line[:timeDigits]), 10, 64)
	return t, err == nil
}

// Parse parses a line without its end. It reuses the record's memory.
func (r *Record) Parse(line []byte) error {
	parts := bytes.Split(line, []byte("\t"))
	t, ok := Time(line)
	if !ok || len(parts) < 5 || len(parts)%2 == 0 {
		return fmt.Errorf("%.200q: not a line of a recording", line)
	}
	domain, err := url.PathUnescape(string(parts[2]))
	if err != nil {
		return err
	}
	r.Time, r.Denied, r.Domain, r.Descriptors = t, string(parts[1]) == outcomes[true], domain, r.Descriptors[:0]
	for pair := parts[3:]; len(pair) > 0; pair = pair[2:] {
		if err := r.addDescriptor(string(pair[0]), string(pair[1])); err != nil {
			return err
		}
	}
	return nil
}

func (r *Record) addDescriptor(cost, text string) error {
	units, err := strconv.ParseInt(cost, 10, 64)
	if err != nil {
		return err
	}
	if text, err = url.PathUnescape(text); err != nil {
		return err
	}
	entries, err := rules.ParseDescriptor(text)
	if err != nil {
		return err
	}
	r.Descriptors = append(r.Descriptors, engine.Descriptor{Entries: entries, Cost: units})
	return nil
}
