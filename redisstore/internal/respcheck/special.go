package respcheck

import (
	"bytes"
	"slices"
	"strings"
)

// A specialCommand is one whose reply rueidis believes too much, or which is answered by pushes.
type specialCommand struct {
	kind     commandKind
	number   int64 // among all commands of the connection
	channels int   // of a subscription
}

type commandKind byte

const (
	ordinary    commandKind = iota
	pair                    // answered by at least two elements, or none
	subscribe               // answered by a push for each channel, or an error
	unsubscribe             // answered by pushes at most, or an error; rueidis sends a PING after it
	pong                    // that PING
)

// endWatched is called at the end of a message that is not an ordinary reply.
func (c *Checker) endWatched() error {
	if c.message == attribute {
		return nil
	}
	texts := texts(c.watched)
	switch {
	case c.message == push, c.message == either && c.length > 0 && (len(texts) == 0 || texts[0] != "pong"):
		return c.endPush(texts)
	case c.answered == c.sent.Load():
		return errUnasked
	}
	s, ok := c.nextSpecial()
	if !ok {
		c.answered++
		return nil
	}
	return c.answer(s, texts)
}

// nextSpecial returns the special command that the next reply answers, if it is one.
func (c *Checker) nextSpecial() (s specialCommand, ok bool) {
	if c.next.Load() != c.answered {
		return s, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.special[0], true
}

// endSpecial removes the first special command, which is answered.
func (c *Checker) endSpecial() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.special = slices.Delete(c.special, 0, 1)
	c.next.Store(none)
	if len(c.special) > 0 {
		c.next.Store(c.special[0].number)
	}
	c.answered++
}

// answer checks the reply to a special command. rueidis panics if that to a subscription is QUEUED, and
// if that to the PING after the end of one is not PONG.
func (c *Checker) answer(s specialCommand, texts []string) error {
	isError := c.kind == '-' && texts[0] != "QUEUED"
	switch {
	case s.kind == pair && (c.length < 0 || c.length >= 2 || !isArray(c.kind)):
	case s.kind == subscribe && isError:
	case s.kind == unsubscribe && c.isPong(texts):
		c.endSpecial()
		if s, ok := c.nextSpecial(); !ok || s.kind != pong {
			return badf("PONG without a PING")
		}
	case s.kind == unsubscribe && isError:
	case s.kind == pong && c.isPong(texts):
	default:
		return badf("an unexpected reply to a command of the client: %.20q", c.watched)
	}
	c.endSpecial()
	return nil
}

func isArray(kind byte) bool { return kind == '*' || kind == '~' || kind == '%' }

// isPong reports whether rueidis takes a reply for that to PING.
func (c *Checker) isPong(texts []string) bool {
	switch {
	case isArray(c.kind):
		return c.length > 0 && !c.nested && texts[0] == "pong"
	case c.kind == '-':
		return strings.HasPrefix(texts[0], "LOADING") || strings.HasPrefix(texts[0], "BUSY") || strings.Contains(texts[0], "'ping'")
	}
	return texts[0] == "PONG"
}

// endPush checks a push. Those that rueidis ignores pass.
func (c *Checker) endPush(texts []string) error {
	if c.length < 2 || len(texts) == 0 {
		return nil
	}
	switch kind := texts[0]; kind {
	case "subscribe", "psubscribe", "ssubscribe":
		return c.confirm()
	case "unsubscribe", "punsubscribe", "sunsubscribe":
		c.confirmations = max(c.confirmations-1, 0) // as rueidis does
	case "message":
		return c.checkEvent(texts)
	}
	return nil
}

// confirm checks the confirmation of a subscription.
func (c *Checker) confirm() error {
	if c.confirmations > 0 {
		c.confirmations--
		return nil
	}
	s, ok := c.nextSpecial()
	if !ok || s.kind != subscribe {
		return badf("the confirmation of a subscription that no command waits for")
	}
	c.confirmations = s.channels - 1
	c.endSpecial()
	return nil
}

// eventWords are the words that rueidis expects of an event of a Sentinel.
var eventWords = map[string]int{"+sentinel": 4, "+switch-master": 5, "+reboot": 4}

func (c *Checker) checkEvent(texts []string) error {
	if c.nested || c.length < 3 {
		return badf("an event with %d parts", c.length)
	}
	if words := eventWords[texts[1]]; strings.Count(texts[2], " ")+1 < words {
		return badf("%s with fewer than %d words", texts[1], words)
	}
	return nil
}

// texts returns what a message consists of, without what holds it together. The message is well-formed.
func texts(message []byte) (list []string) {
	for len(message) > 0 {
		line, rest, _ := bytes.Cut(message, []byte("\n"))
		kind, text := line[0], line[1:len(line)-1]
		message = rest
		switch {
		case kind == '*' || kind == '~' || kind == '>' || kind == '%' || kind == '|':
			continue
		case (kind == '$' || kind == '=') && text[0] != '-':
			n, _ := length(kind, text)
			text, message = rest[:n], rest[n+len("\r\n"):]
		}
		list = append(list, string(text))
	}
	return list
}
