package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// parseRequest reads a request, and how often it is sent.
func (p *parser) parseRequest(c *call, s *step, text string) error {
	verb, rest, err := cutWord(text)
	if err != nil {
		return err
	}
	key, rest, err := cutWord(rest)
	if err != nil {
		return err
	}
	if key == "" {
		return fmt.Errorf("want a key after %q", verb)
	}
	cost, rest, err := cutCost(rest)
	if err != nil {
		return err
	}
	c.request.Key = key
	if c.request.Cost, err = costOf(verb, cost); err != nil {
		return err
	}
	c.request.Overdraw, c.request.Settle = verb == "charge", verb == "settle"
	if err := p.parseOptions(c, s, strings.Fields(rest)); err != nil {
		return err
	}
	return p.findLimit(c)
}

// cutWord returns the first word of a text, which may be quoted.
func cutWord(s string) (word, rest string, err error) {
	s = strings.TrimSpace(s)
	if !strings.HasPrefix(s, `"`) {
		word, rest, _ = strings.Cut(s, " ")
		return word, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(s)
	if err != nil {
		return "", "", fmt.Errorf("want a closing quote in %s", s)
	}
	word, err = strconv.Unquote(quoted)
	return word, s[len(quoted):], err
}

// cutCost returns the number that a text begins with, or 0.
func cutCost(s string) (cost int64, rest string, err error) {
	word, rest, err := cutWord(s)
	if err != nil || word == "" || word[0] < '0' || word[0] > '9' {
		return 0, s, err
	}
	cost, err = strconv.ParseInt(word, 10, 64)
	if err == nil && cost == 0 {
		err = fmt.Errorf("for a cost of 0, use peek")
	}
	return cost, rest, err
}

// costOf returns the Cost of a request by its verb and cost, which is 0 if omitted.
func costOf(verb string, cost int64) (int64, error) {
	switch {
	case verb == "take" || verb == "charge":
		return max(cost, 1), nil
	case verb == "refund":
		return -max(cost, 1), nil
	case verb == "settle":
		return cost, nil
	case cost != 0:
		return 0, fmt.Errorf("%s has no cost", verb)
	case verb == "peek":
		return 0, nil
	case verb == "reset":
		return penstock.Reset, nil
	}
	return 0, fmt.Errorf("want take, charge, settle, peek, refund or reset, got %q", verb)
}

func (p *parser) parseOptions(c *call, s *step, words []string) (err error) {
	for i := 0; i < len(words) && err == nil; i++ {
		name, value, _ := strings.Cut(words[i], "=")
		switch {
		case name == "at-most":
			c.request.AtMost = true
		case name == "max-delay":
			c.request.MaxDelay, err = parseDuration(value)
		case name == "keep-free":
			c.request.KeepFree, err = strconv.ParseInt(value, 10, 64)
		case name == "hold":
			c.request.Hold, err = parseDuration(value)
		case name == "new-id":
			c.request.NewID = true
		case name == "id":
			c.request.ID = value
		case name == "under" && i+1 < len(words):
			i++
			c.label = words[i]
		case name == "every" && s.how == single:
			s.every, err = parseDuration(value)
		case name[0] == 'x' && s.how == single:
			s.times, err = parseTimes(name[1:])
		default:
			err = fmt.Errorf("unknown option %q", words[i])
		}
	}
	return err
}

func parseTimes(digits string) (int, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 2 {
		return 0, fmt.Errorf("want a number of times above 1, got %q", digits)
	}
	return n, nil
}

func (p *parser) findLimit(c *call) error {
	limit, ok := p.limits[c.label]
	switch {
	case ok:
		c.request.Limit = limit
		return nil
	case c.label == "":
		return fmt.Errorf("want \"limit TEXT\" above, or \"under LABEL\"")
	}
	return fmt.Errorf("want \"limit %s: TEXT\" above", c.label)
}

// text returns the call as transcripts write it before the arrow.
func (c *call) text() string {
	r := c.request
	key := r.Key
	if quoted := strconv.Quote(key); strings.Contains(key, " ") || quoted != `"`+key+`"` {
		key = quoted
	}
	var b strings.Builder
	switch {
	case r.Settle:
		fmt.Fprintf(&b, "settle %s", key)
		if r.Cost > 0 {
			fmt.Fprintf(&b, " %d", r.Cost)
		}
	case r.Cost == penstock.Reset:
		fmt.Fprintf(&b, "reset %s", key)
	case r.Cost == 0:
		fmt.Fprintf(&b, "peek %s", key)
	case r.Cost < 0:
		fmt.Fprintf(&b, "refund %s %d", key, -r.Cost)
	case r.Overdraw:
		fmt.Fprintf(&b, "charge %s %d", key, r.Cost)
	default:
		fmt.Fprintf(&b, "take %s %d", key, r.Cost)
	}
	if r.AtMost {
		b.WriteString(" at-most")
	}
	if r.MaxDelay != 0 {
		fmt.Fprintf(&b, " max-delay=%s", durationText(r.MaxDelay))
	}
	if r.KeepFree != 0 {
		fmt.Fprintf(&b, " keep-free=%d", r.KeepFree)
	}
	if r.ID != "" {
		fmt.Fprintf(&b, " id=%s", r.ID)
	}
	if r.Hold != 0 {
		fmt.Fprintf(&b, " hold=%s", durationText(r.Hold))
	}
	if r.NewID {
		b.WriteString(" new-id")
	}
	if c.label != "" {
		fmt.Fprintf(&b, " under %s", c.label)
	}
	return b.String()
}

// text returns the step, with results, as transcripts write it.
func (s *step) text(results []result) string {
	at := s.at.Format(time.RFC3339Nano)
	if s.how == single {
		return fmt.Sprintf("at %s  %-40s => %s\n", at, s.calls[0].text(), results[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "at %s %s\n", at, s.how)
	for i := range s.calls {
		fmt.Fprintf(&b, "    %-40s => %s\n", s.calls[i].text(), results[i])
	}
	return b.String()
}
