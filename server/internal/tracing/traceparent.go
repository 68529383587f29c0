package tracing

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// ids name a span within a trace. Zero means none.
type ids struct {
	trace [16]byte
	span  uint64
}

const (
	parentLen   = 55 // of version 00: 00-<32 digits>-<16 digits>-<2 digits>
	sampledFlag = 1
)

// parentForm has the version, the trace, the span and the flags, and what later versions may add. Digits are lower-case.
var parentForm = regexp.MustCompile(`(?s)^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)

// parseParent returns the caller's span, from the value of a W3C traceparent header. It is not ok if the value is
// malformed or its trace is not sampled: remote callers choose it, and what is malformed is as good as absent.
func parseParent(text string) (parent ids, ok bool) {
	if len(text) < parentLen || strings.IndexByte("13579bdf", text[parentLen-1]) < 0 { // first: most are not sampled
		return parent, false
	}
	parts := parentForm.FindStringSubmatch(text)
	if parts == nil || parts[1] == "ff" || parts[1] == "00" && parts[4] != "" {
		return parent, false
	}
	_, _ = hex.Decode(parent.trace[:], []byte(parts[2])) // both have the digits of their form
	parent.span, _ = strconv.ParseUint(parts[3], 16, 64)
	return parent, parent.span != 0 && parent.trace != [16]byte{}
}
