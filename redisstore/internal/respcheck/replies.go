package respcheck

import (
	"bytes"
	"strconv"
)

// replies reads what arrives.
type replies struct {
	err   error
	line  []byte // the beginning of a line whose end has not arrived
	body  int    // bytes of a string that are still to come, with its line end
	depth int
	left  [maxDepth]int // elements that are still to come, at each depth

	budget   int         // of the message
	message  messageKind // what is read
	kind     byte        // type of the message
	length   int         // elements of the message itself; -1 for nil
	nested   bool        // whether one of these has elements
	watching bool
	watched  []byte // the message as it came, if it is watched

	answered      int64 // commands
	confirmations int   // of subscriptions, still to come
}

type messageKind byte

const (
	reply  messageKind = iota
	push               // comes without a command, but for confirmations of subscriptions
	either             // an array after a subscription in RESP2
	attribute
)

// Received checks bytes before the client reads them. After an error, none may be passed on.
func (c *Checker) Received(b []byte) error {
	for c.err == nil && len(b) > 0 {
		if c.body > 0 {
			b, c.err = c.readBody(b)
		} else {
			b, c.err = c.readLine(b)
		}
	}
	return c.err
}

// readBody reads a string, or a part of it, and returns the rest.
func (c *Checker) readBody(b []byte) ([]byte, error) {
	n := min(c.body, len(b))
	if cr, lf := c.body-2, c.body-1; cr >= 0 && cr < n && b[cr] != '\r' || lf < n && b[lf] != '\n' {
		return nil, badf("a string is longer than announced")
	}
	if c.watching {
		if err := c.watch(b[:n]); err != nil {
			return nil, err
		}
	}
	if c.body -= n; c.body > 0 {
		return nil, nil
	}
	return b[n:], c.endElement()
}

// readLine reads a line, or a part of it, and returns the rest.
func (c *Checker) readLine(b []byte) ([]byte, error) {
	end := bytes.IndexByte(b, '\n') + 1
	if end > 0 && len(c.line) == 0 && end <= maxLine {
		return b[end:], c.readElement(b[:end])
	}
	piece := b[:end]
	if end == 0 {
		piece = b
	}
	if len(c.line)+len(piece) > maxLine {
		return nil, badf("a line of more than %d bytes", maxLine)
	}
	if c.line = append(c.line, piece...); end == 0 {
		return nil, nil
	}
	line := c.line
	c.line = c.line[:0]
	return b[end:], c.readElement(line)
}

// readElement reads a line, which is an element or the header of one.
func (c *Checker) readElement(line []byte) error {
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return badf("a line without its end")
	}
	kind, text := line[0], line[1:len(line)-2]
	if err := c.begin(kind, text); err != nil {
		return err
	}
	if c.watching {
		if err := c.watch(line); err != nil {
			return err
		}
	}
	if err := c.spend(len(line)); err != nil {
		return err
	}
	switch kind {
	case '+', '-', ':', ',', '(':
	case '_', '#': // of which rueidis takes as many bytes as there should be
		if text := string(text); kind == '_' && text != "" || kind == '#' && text != "t" && text != "f" {
			return badf("%.20q", line)
		}
	case '$', '=':
		return c.beginString(kind, text)
	case '*', '~', '>', '%', '|':
		return c.beginArray(kind, text)
	default:
		return badf("unknown type %q", kind)
	}
	return c.endElement()
}

func (c *Checker) beginString(kind byte, text []byte) error {
	n, err := length(kind, text)
	switch {
	case err != nil:
		return err
	case n < 0:
		return c.endElement()
	}
	c.body = n + len("\r\n")
	return c.spend(n)
}

func (c *Checker) beginArray(kind byte, text []byte) error {
	n, err := length(kind, text)
	if err != nil {
		return err
	}
	if kind == '%' || kind == '|' {
		n *= 2 // a name and a value each
	}
	if c.depth == 0 {
		c.length = n
	} else {
		c.nested = true
	}
	if n <= 0 {
		return c.endElement()
	}
	if n > MaxReply/elementSize { // more than any budget, and perhaps than 32 bits hold as bytes
		return badf("an array of more than %d elements", MaxReply/elementSize)
	}
	if c.depth == maxDepth {
		return badf("arrays nested more than %d deep", maxDepth)
	}
	c.left[c.depth] = n
	c.depth++
	return c.spend(n * elementSize)
}

// length returns a length, or -1 for nil, which some types have.
func length(kind byte, text []byte) (int, error) {
	if string(text) == "-1" && (kind == '$' || kind == '*') {
		return -1, nil
	}
	n, err := strconv.ParseUint(string(text), 10, 31) // takes no sign, and allocates nothing without an error
	if err != nil || n > MaxReply {
		return 0, badf("%q with a length of %.20q", kind, text)
	}
	return int(n), nil
}

// spend takes bytes from the budget of the message.
func (c *Checker) spend(n int) error {
	if c.budget -= n; c.budget < 0 {
		return badf("a reply of more than %d bytes", MaxReply)
	}
	return nil
}

// begin is called at the beginning of each element.
func (c *Checker) begin(kind byte, text []byte) error {
	switch {
	case c.depth > 0 && kind == '>':
		return badf("a push within another reply")
	case c.depth > 0 && kind == '|' && c.watching: // what it contains would be taken for parts of the message
		return badf("an attribute within a message that has none")
	case c.depth > 0:
		if kind != '|' { // which belongs to the element that follows
			c.left[c.depth-1]--
		}
		return nil
	}
	c.budget, c.kind, c.length, c.nested, c.watched = MaxReply, kind, 0, false, c.watched[:0]
	switch {
	case kind == '|':
		c.message, c.watching = attribute, false
	case kind == '>':
		c.message, c.watching = push, true
	case isArray(kind) && c.subscribed.Load() && !c.resp3.Load():
		c.message, c.watching = either, true
	default:
		c.message, c.watching = reply, c.answered == c.next.Load()
		return c.beginReply(kind, text)
	}
	return nil
}

// beginReply checks that a command waits for a reply. rueidis takes the third word of a redirection without
// looking whether there is one.
func (c *Checker) beginReply(kind byte, text []byte) error {
	if c.answered == c.sent.Load() {
		return errUnasked
	}
	redirects := bytes.HasPrefix(text, []byte("MOVED")) || bytes.HasPrefix(text, []byte("ASK"))
	if kind == '-' && redirects && bytes.Count(text, []byte(" ")) < 2 {
		return badf("%.20q without an address", text)
	}
	return nil
}

// endElement is called at the end of each element that has no further elements.
func (c *Checker) endElement() error {
	for c.depth > 0 && c.left[c.depth-1] == 0 {
		c.depth--
	}
	if c.depth > 0 {
		return nil
	}
	if c.message == reply && !c.watching {
		c.answered++
		return nil
	}
	return c.endWatched()
}

// watch keeps a part of a message.
func (c *Checker) watch(b []byte) error {
	if len(c.watched)+len(b) > maxWatched {
		return badf("a message of more than %d bytes in place of a short one", maxWatched)
	}
	c.watched = append(c.watched, b...)
	return nil
}
