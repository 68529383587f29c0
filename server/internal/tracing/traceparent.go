package tracing

import "encoding/binary"

// ids name a span within a trace. Zero means none.
type ids struct {
	trace [16]byte
	span  uint64
}

const (
	parentLen   = 55 // of version 00: 00-<32 digits>-<16 digits>-<2 digits>
	sampledFlag = 1
)

// parseParent returns the caller's span, from the value of a W3C traceparent header. It is not ok if the value is
// malformed or its trace is not sampled: remote callers choose it, and what is malformed is as good as absent.
func parseParent(text string) (parent ids, ok bool) {
	if len(text) < parentLen || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return parent, false
	}
	var flags, version [1]byte
	if !decodeHex(flags[:], text[53:55]) || flags[0]&sampledFlag == 0 { // first: most are not
		return parent, false
	}
	if !decodeHex(version[:], text[:2]) || version[0] == 0xff {
		return parent, false
	}
	if rest := text[parentLen:]; rest != "" && (version[0] == 0 || rest[0] != '-') { // later versions may add fields
		return parent, false
	}
	var span [8]byte
	if !decodeHex(parent.trace[:], text[3:35]) || !decodeHex(span[:], text[36:52]) {
		return parent, false
	}
	parent.span = binary.BigEndian.Uint64(span[:])
	return parent, parent.span != 0 && parent.trace != [16]byte{}
}

// decodeHex decodes lower-case digits, the only ones that the header may have.
func decodeHex(to []byte, digits string) bool {
	for i := range to {
		high, low := hexDigit(digits[2*i]), hexDigit(digits[2*i+1])
		if high|low > 0xf {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

// hexDigit returns the value of a digit, and above 15 if it is none.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}
