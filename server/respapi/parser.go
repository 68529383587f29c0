package respapi

import (
	"bytes"
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

// nextWord returns the first word of a line, nil if there is none, and the rest of the
// line. Words may be quoted; double quotes allow escapes.
func nextWord(line []byte) (word, rest []byte, err error) {
	at := 0
	for at < len(line) && isSpace(line[at]) {
		at++
	}
	if at == len(line) {
		return nil, nil, nil
	}
	word = []byte{}
	for at < len(line) && !isSpace(line[at]) {
		switch line[at] {
		case '"', '\'':
			if word, at, err = quoted(word, line, at); err != nil {
				return nil, nil, err
			}
		default:
			word = append(word, line[at])
			at++
		}
	}
	return word, line[at:], nil
}

// quoted appends the text between the quotes that begin at line[at] to word, and returns
// the index after them, where the word must end.
func quoted(word, line []byte, at int) (_ []byte, next int, err error) {
	quote := line[at]
	for at++; at < len(line); at++ {
		switch b := line[at]; {
		case b == quote:
			if at+1 < len(line) && !isSpace(line[at+1]) {
				return nil, 0, errQuotes
			}
			return word, at + 1, nil
		case b != '\\':
			word = append(word, b)
		case quote == '"':
			var skipped int
			word, skipped = unescape(word, line[at+1:])
			at += skipped
		case at+1 < len(line) && line[at+1] == '\'':
			word = append(word, '\'')
			at++
		default:
			word = append(word, b)
		}
	}
	return nil, 0, errQuotes
}

// unescape appends the character of an escape sequence to word, and returns the length of
// the sequence after the backslash.
func unescape(word, rest []byte) ([]byte, int) {
	if len(rest) == 0 {
		return word, 0
	}
	if len(rest) >= 3 && rest[0] == 'x' {
		if high, low := hexDigit(rest[1]), hexDigit(rest[2]); high >= 0 && low >= 0 {
			return append(word, byte(high<<4|low)), 3
		}
	}
	if at := bytes.IndexByte([]byte("nrtba"), rest[0]); at >= 0 {
		return append(word, "\n\r\t\b\a"[at]), 1
	}
	return append(word, rest[0]), 1
}

func hexDigit(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		return int(b|0x20-'a') + 10
	}
	return -1
}

func isSpace(b byte) bool { return b == ' ' || '\t' <= b && b <= '\r' || b == 0 }
