package respcheck

import "bytes"

// commands reads the commands that are sent: arrays of strings. Only their headers are looked at, and the
// first two arguments of each, which say whether its reply needs a closer look.
type commands struct {
	array    bool     // whether the header is that of a command, not of an argument
	number   int      // in the header
	skip     int      // bytes of the argument that are still to come, with its line end
	argument int      // arguments that have gone
	further  int      // arguments that are still to come
	name     [48]byte // the first two arguments, with their line ends
	nameLen  int
	unsub    bool // whether the last command ended subscriptions
}

// Sent must be called before bytes are written.
func (c *Checker) Sent(b []byte) {
	for i := 0; i < len(b); {
		if c.skip > 0 {
			n := min(c.skip, len(b)-i)
			if c.argument < 2 {
				c.nameLen += copy(c.name[c.nameLen:], b[i:i+n])
			}
			i += n
			if c.skip -= n; c.skip == 0 {
				c.endArgument()
			}
			continue
		}
		switch ch := b[i]; ch {
		case '*', '$':
			c.array, c.number = ch == '*', 0
		case '\r':
		case '\n':
			c.endHeader()
		default:
			c.number = 10*c.number + int(ch-'0')
		}
		i++
	}
}

func (c *Checker) endHeader() {
	if c.array {
		c.further, c.argument, c.nameLen = c.number, 0, 0
	} else {
		c.skip = c.number + len("\r\n")
	}
}

// endArgument counts a command as soon as its name is known: a server may refuse it before the rest arrives.
func (c *Checker) endArgument() {
	c.argument++
	if c.further--; c.argument == 2 || c.argument == 1 && c.further == 0 {
		c.count()
	}
}

// count adds a command, and remembers it if its reply needs a closer look.
func (c *Checker) count() {
	kind := c.classify()
	c.unsub = kind == unsubscribe
	if kind != ordinary {
		c.mu.Lock()
		c.special = append(c.special, specialCommand{kind: kind, number: c.sent.Load(), channels: c.argument + c.further - 1})
		c.next.Store(c.special[0].number)
		c.mu.Unlock()
	}
	c.sent.Add(1)
}

// classify returns the kind of the command by its name. rueidis writes names in capitals.
func (c *Checker) classify() commandKind {
	name, second, _ := bytes.Cut(c.name[:c.nameLen], []byte("\r\n"))
	switch string(name) {
	case "HELLO":
		c.resp3.Store(string(second) == "3\r\n")
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
		c.subscribed.Store(true)
		return subscribe
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return unsubscribe
	case "PING":
		if c.unsub {
			return pong
		}
	case "ROLE":
		return pair
	case "SENTINEL":
		if string(second) == "GET-MASTER-ADDR-BY-NAME\r\n" {
			return pair
		}
	}
	return ordinary
}
