package httpapi

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cookie returns the value of a cookie, which must not be repeated, as a header must not. Applications differ in
// what separates cookies, in what belongs to a name, and in how they decode a value: spellings that some of them read
// as one are one here, and those that they may read as different ones are denied.
func (v *requestValues) cookie(name, missing string) (string, error) {
	line := strings.Map(plain, strings.Join(v.Header["Cookie"], ";"))
	text, found := "", 0
	for part := range strings.SplitSeq(line, ";") {
		other, value, ok := strings.Cut(part, "=")
		if ok && strings.Trim(other, spaces) == name {
			text = strings.Trim(value, spaces)
			found++
		}
	}
	if err := v.unique("cookie", name, found, similarCookies(line, name)); err != nil {
		return "", err
	}
	if quoted := len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"'; quoted {
		text = text[1 : len(text)-1]
	}
	if strings.ContainsAny(text, blanks+`"\`) {
		return "", v.bad("cookie %.80q: want UTF-8 without spaces, quotes and backslashes", name)
	}
	return cmp.Or(unescapeCookie(text), missing), nil
}

const (
	spaces   = " \t"
	oddSpace = "\v" // which no field has
	blanks   = spaces + oddSpace
)

// plain returns oddSpace for what only some applications trim: in Python and JavaScript all that Unicode calls a space,
// and where they read Latin-1, bytes that are not UTF-8.
func plain(r rune) rune {
	if unicode.IsSpace(r) && !strings.ContainsRune(spaces, r) || r == '\uFEFF' || r == utf8.RuneError {
		return rune(oddSpace[0])
	}
	return r
}

// similarCookies counts the places where some application finds a cookie of that name: in Python spaces separate
// cookies too, elsewhere commas do, or what is in quotes is not skipped.
func similarCookies(line, name string) (n int) {
	for {
		before, after, ok := strings.Cut(line, "=")
		if !ok {
			return n
		}
		before = strings.TrimRight(before, blanks)
		pair := before[strings.LastIndexByte(before, ';')+1:]
		last := pair[strings.LastIndexAny(pair, `,"`+blanks)+1:]
		if slices.ContainsFunc([]string{pair, last, unescapeCookie(last)}, func(other string) bool { return isSimilar(other, name) }) {
			n++
		}
		line = after
	}
}

// unescapeCookie decodes %61 and the like, and leaves what is no escape, as most applications do. A space and a plus are
// the same to some.
func unescapeCookie(text string) string {
	if !strings.ContainsAny(text, "% ") {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) {
			if b, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				c, i = byte(b), i+2
			}
		}
		if c == ' ' {
			c = '+'
		}
		out = append(out, c)
	}
	return string(out)
}

// isSimilar reports whether some applications take a name for another: by PHP's rules for names of variables, as
// the name of an array or of its element, in brackets, or in other case.
func isSimilar(other, name string) bool {
	all, want := looseName(other), looseName(name)
	if len(want) == 0 || len(all) < len(want) {
		return other == name
	}
	return slices.EqualFunc(all[:len(want)], want, strings.EqualFold)
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "+", "_")

// looseName returns the parts of a name: [a][b] and a[b] are one to Express.
func looseName(name string) []string {
	name, _, _ = strings.Cut(name, "\x00")
	return strings.FieldsFunc(underscores.Replace(strings.Trim(name, spaces)), func(r rune) bool { return r == '[' || r == ']' })
}
