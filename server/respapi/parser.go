package respapi

import (
	"bytes"
	"encoding/hex"
	"regexp"
)

// Limits of a command, checked before memory is allocated for it.
const (
	maxArgs    = 64
	maxCommand = 64 << 10 // bytes, with the lengths of its arguments
	maxInline  = 4 << 10

	// Before AUTH the limits are smaller, but large enough for AUTH.
	maxUnauthenticatedArgs = 10
	maxUnauthenticatedBulk = 16 << 10
)

// A parser splits received bytes into commands. It keeps no state between calls, so it
// makes no difference how the bytes were split into reads.
type parser struct {
	args            [][]byte // of the last command; they share the read buffer's memory
	inline          bool     // whether it was an inline command
	unauthenticated bool     // whether the smaller limits apply
}

// A protocolError is invalid RESP. The bytes after it cannot be parsed.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

const (
	errArgCount            = protocolError("invalid multibulk length")
	errBulkLength          = protocolError("invalid bulk length")
	errNoCRLF              = protocolError("expected CRLF after bulk")
	errInlineSize          = protocolError("too big inline request")
	errQuotes              = protocolError("unbalanced quotes in request")
	errCommandSize         = protocolError("too big request")
	errUnauthenticatedArgs = protocolError("unauthenticated multibulk length")
	errUnauthenticatedBulk = protocolError("unauthenticated bulk length")
)

// next parses the first command in buf into p.args and returns its length in bytes, or 0
// if it is incomplete. A command without arguments is valid and ignored.
func (p *parser) next(buf []byte) (n int, err error) {
	p.args = p.args[:0]
	if len(buf) == 0 {
		return 0, nil
	}
	if p.inline = buf[0] != '*'; p.inline {
		return p.nextInline(buf)
	}
	count, at, ok := length(buf, 1)
	switch {
	case !ok || count > maxArgs:
		return 0, errArgCount
	case at == 0 || count <= 0:
		return at, nil
	case p.unauthenticated && count > maxUnauthenticatedArgs:
		return 0, errUnauthenticatedArgs
	}
	for range count {
		if at, err = p.nextBulk(buf, at); at == 0 {
			return 0, err
		}
	}
	return at, nil
}

// nextBulk parses the argument at buf[at:] and returns the index after it, or 0 if it is
// incomplete.
func (p *parser) nextBulk(buf []byte, at int) (next int, err error) {
	if at >= len(buf) {
		return 0, nil
	}
	if buf[at] != '$' {
		return 0, protocolError("expected '$', got '" + printable(buf[at:at+1]) + "'")
	}
	size, start, ok := length(buf, at+1)
	switch {
	case !ok || size < 0:
		return 0, errBulkLength
	case start == 0:
		return 0, nil
	case size > maxCommand-start-2:
		return 0, errCommandSize
	case p.unauthenticated && size > maxUnauthenticatedBulk:
		return 0, errUnauthenticatedBulk
	}
	end := start + size
	if len(buf) > end && buf[end] != '\r' || len(buf) > end+1 && buf[end+1] != '\n' {
		return 0, errNoCRLF
	}
	if len(buf) < end+2 {
		return 0, nil
	}
	p.args = append(p.args, buf[start:end])
	return end + 2, nil
}

// maxDigits bounds the digits of a length.
const maxDigits = 7

// length parses a number and CRLF at buf[at:]. It returns the index after them, or 0 if
// they are incomplete, and whether the bytes so far are valid.
func length(buf []byte, at int) (n, next int, ok bool) {
	if at+2 < len(buf) && buf[at]-'0' <= 9 && buf[at+1] == '\r' && buf[at+2] == '\n' {
		return int(buf[at] - '0'), at + 3, true // the usual case: one digit
	}
	start, negative := at, false
	if at < len(buf) && buf[at] == '-' {
		negative = true
		at, start = at+1, at+1
	}
	for ; at < len(buf); at++ {
		digit := buf[at] - '0'
		if digit > 9 {
			break
		}
		if at-start == maxDigits {
			return 0, 0, false
		}
		n = n*10 + int(digit)
	}
	switch {
	case at == len(buf):
		return 0, 0, true
	case at == start || buf[at] != '\r' || at+1 < len(buf) && buf[at+1] != '\n':
		return 0, 0, false
	case at+1 == len(buf):
		return 0, 0, true
	case negative:
		n = -n
	}
	return n, at + 2, true
}

// nextInline parses an inline command: one line of words, as typed into telnet.
func (p *parser) nextInline(buf []byte) (n int, err error) {
	end := bytes.IndexByte(buf, '\n')
	switch {
	case end > maxInline || end < 0 && len(buf) > maxInline:
		return 0, errInlineSize
	case end < 0:
		return 0, nil
	}
	for line := buf[:end]; ; {
		word, rest, err := nextWord(line)
		switch {
		case err != nil:
			return 0, err
		case word == nil:
			return end + 1, nil
		case len(p.args) == maxArgs:
			return 0, errArgCount
		}
		p.args, line = append(p.args, word), rest
	}
}

const inlineSpace = "\x00\t\n\v\f\r "

var (
	// inlineWord is a word of an inline command: any bytes, at its end also between quotes.
	inlineWord = regexp.MustCompile(`^([^\x00\t-\r "']*)(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\+[^\\])*)')?(?:[\x00\t-\r ]|$)`)

	inlineEscape = regexp.MustCompile(`\\(?:x[0-9a-fA-F]{2}|.)`)
)

// nextWord returns the first word of an inline command, and what follows it. The word is nil if
// there is none.
func nextWord(line []byte) (word, rest []byte, err error) {
	line = bytes.TrimLeft(line, inlineSpace)
	if len(line) == 0 {
		return nil, nil, nil
	}
	m := inlineWord.FindSubmatch(line)
	if m == nil {
		return nil, nil, errQuotes
	}
	word = append([]byte{}, m[1]...)
	word = append(word, inlineEscape.ReplaceAllFunc(m[2], unescape)...)
	word = append(word, bytes.ReplaceAll(m[3], []byte(`\'`), []byte("'"))...)
	return word, line[len(m[0]):], nil
}

// unescape returns the bytes that an escape between double quotes stands for.
func unescape(escape []byte) []byte {
	if at := bytes.IndexByte([]byte("nrtba"), escape[1]); at >= 0 {
		return []byte{"\n\r\t\b\a"[at]}
	}
	if len(escape) == len(`\x00`) && escape[1] == 'x' {
		b, _ := hex.DecodeString(string(escape[2:])) // no error: the expression allows only hex digits
		return b
	}
	return escape[1:]
}
