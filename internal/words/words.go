// Package words reads text of words and settings, such as
//
//	10/s sliding-log name="a b"
//
// A value with spaces or special characters is quoted as in Go.
package words

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Word is one word of a text.
type Word struct {
	Column int    // of its first byte, from 1
	Text   string // as it was written
	Key    string // before the equals sign, or the whole word
	Value  string // after the equals sign, without quotes
}

// HasValue reports whether the word has an equals sign.
func (w Word) HasValue() bool { return len(w.Text) > len(w.Key) }

// A Problem is why a word cannot be read.
type Problem struct {
	Word Word
	Text string
}

const space = " \t\r\n"

// Split returns the words of a text, or else the problem of the first that cannot be read.
func Split(s string) (ws []Word, bad *Problem) {
	for at := skipSpace(s, 0); at < len(s); {
		w, problem := read(s, at)
		if problem != "" {
			return nil, &Problem{w, problem}
		}
		ws = append(ws, w)
		at = skipSpace(s, at+len(w.Text))
	}
	return ws, nil
}

func skipSpace(s string, at int) int {
	return len(s) - len(strings.TrimLeft(s[at:], space))
}

// read returns the word that begins at s[at].
func read(s string, at int) (w Word, problem string) {
	rest := s[at:]
	w = Word{Column: at + 1, Text: rest}
	if end := strings.IndexAny(rest, space); end >= 0 {
		w.Text = rest[:end]
	}
	var hasValue bool
	w.Key, w.Value, hasValue = strings.Cut(w.Text, "=")
	if !hasValue || w.Value == "" {
		return w, ""
	}
	if w.Value[0] == '"' || w.Value[0] == '`' {
		return w.readQuoted(rest)
	}
	if needsQuotes(w.Value) {
		return w, fmt.Sprintf("want quotes, as in %s=%s", w.Key, strconv.Quote(w.Value))
	}
	return w, ""
}

// readQuoted reads a quoted value, which may contain spaces. rest is the text
// from the beginning of the word.
func (w Word) readQuoted(rest string) (_ Word, problem string) {
	var value string
	quoted, err := strconv.QuotedPrefix(rest[len(w.Key)+1:])
	if err == nil {
		value, err = strconv.Unquote(quoted)
	}
	if err != nil {
		return w, "want a closing quote, and between the quotes a string as in Go"
	}
	w.Value = value
	w.Text = rest[:len(w.Key)+1+len(quoted)]
	if after := rest[len(w.Text):]; after != "" && !strings.Contains(space, after[:1]) {
		return w, "want a space after the closing quote"
	}
	return w, ""
}

// Quote returns a value as it is written after the equals sign.
func Quote(value string) string {
	if value == "" || needsQuotes(value) {
		return strconv.Quote(value)
	}
	return value
}

// needsQuotes reports whether a value has to be quoted.
func needsQuotes(value string) bool {
	return !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool {
		return !unicode.IsPrint(r) || strings.ContainsRune(" =\"'`\\", r)
	})
}

// Number parses an int64 in decimal.
func Number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("want a number of at most %d", int64(math.MaxInt64))
	}
	if err != nil || s[0] == '+' {
		return 0, errors.New("want a whole number")
	}
	return n, nil
}
