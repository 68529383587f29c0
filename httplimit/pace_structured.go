package httplimit

import "strings"

// maxField is the longest RateLimit field, and maxItems the most items in it,
// that are parsed.
const (
	maxField = 8 << 10
	maxItems = 64
)

// parseServiceLimits parses the lines of a RateLimit field: a list of strings
// with parameters, by RFC 9651. It returns false if there is none or if any part
// is malformed, because then all of it must be ignored.
func parseServiceLimits(lines []string) (items []serviceLimit, ok bool) {
	if len(lines) == 0 {
		return nil, false
	}
	p := parser{rest: strings.Join(lines, ",")}
	if len(p.rest) > maxField {
		return nil, false
	}
	for {
		p.spaces(" ")
		item, ok := p.item()
		if !ok || len(items) == maxItems {
			return nil, false
		}
		items = append(items, item)
		p.spaces(" \t")
		if p.rest == "" {
			return items, true
		}
		if !p.cut(',') {
			return nil, false
		}
		p.spaces("\t")
	}
}

// parseDraft07 parses a RateLimit field of draft -07, which many servers still
// send: limit=100, remaining=12, reset=8.
func parseDraft07(lines []string) (left, reset int64, ok bool) {
	p := parser{rest: strings.Join(lines, ",")}
	if len(p.rest) > maxField {
		return 0, 0, false
	}
	left, reset = -1, -1
	for more := true; more; more = p.cut(',') {
		p.spaces(" \t")
		name := p.while(isKeyByte)
		if !p.cut('=') {
			return 0, 0, false
		}
		value, isInteger, ok := p.bare()
		switch {
		case !ok:
			return 0, 0, false
		case name == "remaining" && isInteger:
			left = value
		case name == "reset" && isInteger:
			reset = value
		}
		p.spaces(" \t")
	}
	return left, reset, p.rest == "" && left >= 0 && reset >= 0
}

// A parser reads structured fields from the start of a text.
type parser struct {
	rest string
}

func (p *parser) spaces(which string) { p.rest = strings.TrimLeft(p.rest, which) }

// cut removes one byte, if it comes next.
func (p *parser) cut(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// while removes and returns leading bytes that satisfy wanted.
func (p *parser) while(wanted func(byte) bool) string {
	n := 0
	for n < len(p.rest) && wanted(p.rest[n]) {
		n++
	}
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

// item parses a string and its parameters, of which r is required.
func (p *parser) item() (item serviceLimit, ok bool) {
	if !p.text() {
		return item, false
	}
	item = serviceLimit{left: -1, window: -1}
	for p.cut(';') {
		p.spaces(" ")
		name := p.while(isKeyByte)
		if name == "" || name[0] != '*' && !isLower(name[0]) {
			return item, false
		}
		value, isInteger := int64(0), false
		if p.cut('=') {
			if value, isInteger, ok = p.bare(); !ok {
				return item, false
			}
		}
		switch {
		case name == "r" && isInteger:
			item.left = value
		case name == "t" && isInteger:
			item.window = value
		case name == "r" || name == "t":
			return item, false
		}
	}
	return item, item.left >= 0
}

// bare parses the value of a parameter. Only non-negative integers are used.
func (p *parser) bare() (value int64, isInteger, ok bool) {
	if p.rest == "" {
		return 0, false, false
	}
	switch c := p.rest[0]; {
	case c == '"':
		return 0, false, p.text()
	case c == ':':
		p.cut(':')
		p.while(isBase64Byte)
		return 0, false, p.cut(':')
	case c == '?':
		p.cut('?')
		return 0, false, p.cut('0') || p.cut('1')
	case c == '-' || isDigit(c):
		return p.number()
	case c == '*' || isLower(c|0x20):
		p.while(isTokenByte)
		return 0, false, true
	}
	return 0, false, false
}

// number reads an integer or a decimal.
func (p *parser) number() (value int64, isInteger, ok bool) {
	negative := p.cut('-')
	digits := p.while(isDigit)
	if digits == "" || len(digits) > 15 {
		return 0, false, false
	}
	if p.cut('.') {
		fraction := p.while(isDigit)
		return 0, false, fraction != "" && len(fraction) <= 3 && len(digits) <= 12
	}
	value, ok = wholeNumber(digits)
	return value, !negative, ok
}

// text reads a string between quotes.
func (p *parser) text() bool {
	if !p.cut('"') {
		return false
	}
	for p.rest != "" {
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case c == '"':
			return true
		case c < ' ' || c > '~':
			return false
		case c == '\\' && !p.cut('"') && !p.cut('\\'):
			return false
		}
	}
	return false
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isKeyByte(c byte) bool { return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0 }

func isBase64Byte(c byte) bool {
	return isLower(c|0x20) || isDigit(c) || strings.IndexByte("+/=", c) >= 0
}

func isTokenByte(c byte) bool {
	return isLower(c|0x20) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}
