package httplimit

import (
	"regexp"
	"strings"
)

// maxField is the longest RateLimit field, and maxItems the most items in it,
// that are parsed.
const (
	maxField = 8 << 10
	maxItems = 64
)

// The grammar of RFC 9651, as far as RateLimit fields need it. A bare item is a string, bytes, a
// boolean, a decimal, an integer or a token.
const (
	sfString = `"(?:[ !#-\[\]-~]|\\["\\])*"`
	sfBare   = sfString + `|:[A-Za-z0-9+/=]*:|\?[01]|-?\d{1,12}\.\d{1,3}|-?\d{1,15}|[A-Za-z*][\w!#$%&'*+.^|~:/\x60-]*`
	sfParam  = `; *([a-z*][a-z0-9_.*-]*)(?:=(` + sfBare + `))?`
	sfEnd    = `[ \t]*(,|$)`
)

var (
	sfParams = regexp.MustCompile(sfParam)
	sfItem   = regexp.MustCompile(`^[ \t]*` + sfString + `((?:` + sfParam + `)*)` + sfEnd)
	sfMember = regexp.MustCompile(`^[ \t]*([a-z0-9_.*-]*)=(` + sfBare + `)` + sfEnd)
)

// parseServiceLimits parses the lines of a RateLimit field: a list of strings
// with parameters, by RFC 9651. It returns false if there is none or if any part
// is malformed, because then all of it must be ignored.
func parseServiceLimits(lines []string) (items []serviceLimit, ok bool) {
	ok = len(lines) > 0 && eachPart(lines, sfItem, func(m []string) bool {
		item, ok := newServiceLimit(m[1])
		items = append(items, item)
		return ok && len(items) <= maxItems
	})
	if !ok {
		return nil, false
	}
	return items, true
}

// newServiceLimit returns a limit by the parameters of an item, of which r is required. Other
// values of r and t than non-negative integers are malformed.
func newServiceLimit(parameters string) (l serviceLimit, ok bool) {
	l = serviceLimit{left: -1, window: -1}
	for _, m := range sfParams.FindAllStringSubmatch(parameters, -1) {
		field := map[string]*int64{"r": &l.left, "t": &l.window}[m[1]]
		if field == nil {
			continue
		}
		if *field, ok = wholeNumber(m[2]); !ok {
			return l, false
		}
	}
	return l, l.left >= 0
}

// parseDraft07 parses a RateLimit field of draft -07, which many servers still
// send: limit=100, remaining=12, reset=8.
func parseDraft07(lines []string) (left, reset int64, ok bool) {
	left, reset = -1, -1
	ok = eachPart(lines, sfMember, func(m []string) bool {
		value, isNumber := wholeNumber(m[2])
		switch {
		case m[1] == "remaining" && isNumber:
			left = value
		case m[1] == "reset" && isNumber:
			reset = value
		}
		return true
	})
	return left, reset, ok && left >= 0 && reset >= 0
}

// eachPart calls f with each part of a field that has several, and reports whether all of them
// match the form and f accepts them. The last group of the form is what follows the part.
func eachPart(lines []string, form *regexp.Regexp, f func(groups []string) bool) bool {
	rest := strings.Join(lines, ",")
	if len(rest) > maxField {
		return false
	}
	for more := true; more; {
		m := form.FindStringSubmatch(rest)
		if m == nil || !f(m) {
			return false
		}
		rest, more = rest[len(m[0]):], m[len(m)-1] == ","
	}
	return true
}
