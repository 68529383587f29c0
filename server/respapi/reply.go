package respapi

import (
	"strconv"
)

// A reply is a buffer of encoded replies, in the protocol version that the client
// selected.
type reply struct {
	buf   []byte
	resp3 bool
}

// version returns the version of the protocol.
func (r *reply) version() int64 {
	if r.resp3 {
		return 3
	}
	return 2
}

func (r *reply) simple(s string) {
	r.buf = append(append(append(r.buf, '+'), s...), "\r\n"...)
}

func (r *reply) ok() { r.buf = append(r.buf, "+OK\r\n"...) }

// error appends an error reply. Its text may contain arguments of the client, so it is
// reduced to one printable line.
func (r *reply) error(text string) {
	r.buf = append(append(append(r.buf, '-'), printable([]byte(text))...), "\r\n"...)
}

func (r *reply) integer(n int64) {
	r.buf = append(r.buf, ':')
	r.buf = append(strconv.AppendInt(r.buf, n, 10), "\r\n"...)
}

func (r *reply) bulk(b []byte) {
	r.header('$', len(b))
	r.buf = append(append(r.buf, b...), "\r\n"...)
}

func (r *reply) text(s string) {
	r.header('$', len(s))
	r.buf = append(append(r.buf, s...), "\r\n"...)
}

func (r *reply) null() {
	if r.resp3 {
		r.buf = append(r.buf, "_\r\n"...)
		return
	}
	r.buf = append(r.buf, "$-1\r\n"...)
}

// arrayHeader begins an array of n elements.
func (r *reply) arrayHeader(n int) { r.header('*', n) }

// texts appends texts, such as the keys and values of a map.
func (r *reply) texts(all ...string) {
	for _, text := range all {
		r.text(text)
	}
}

// mapHeader begins a map of n keys and values; in RESP2, an array of both.
func (r *reply) mapHeader(n int) {
	if r.resp3 {
		r.header('%', n)
		return
	}
	r.header('*', 2*n)
}

func (r *reply) header(mark byte, n int) {
	r.buf = strconv.AppendInt(append(r.buf, mark), int64(n), 10)
	r.buf = append(r.buf, "\r\n"...)
}

// maxPrinted bounds the bytes of an error's text.
const maxPrinted = 512

// printable returns the first bytes of text with control characters replaced. Other
// bytes stay, so that keys in any language remain readable.
func printable(text []byte) string {
	cut := text[:min(len(text), maxPrinted)]
	line := make([]byte, len(cut))
	for i, b := range cut {
		if b < ' ' || b == 0x7f {
			b = ' '
		}
		line[i] = b
	}
	return string(line)
}
