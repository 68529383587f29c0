// Package secrets keeps what a program sent to a server out of the errors that the server's answer causes: a server that repeats
// the request, as pages for debugging do, is quoted by the parsers of the answer.
package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Mark stands in place of a secret.
const Mark = "[secret]"

const (
	// shortest is the length of a secret below which it is not looked for: most texts contain it.
	shortest = 4
	// excerpt is the length from which the beginning of a secret is hidden, too: parsers shorten what they quote.
	excerpt = 8
	// telling is the length from which a document that contains a secret contains it because it was copied.
	telling = 16
)

// Forms are secrets in the forms in which they may be repeated: plain, quoted, percent-encoded and in base64.
type Forms []string

// Of returns the forms of secrets.
func Of(secrets ...string) Forms {
	var all Forms
	for _, s := range secrets {
		if len(s) < shortest {
			continue
		}
		quoted := strconv.Quote(s)
		asJSON, _ := json.Marshal(s) // a string always can be
		raw := base64.RawStdEncoding.EncodeToString([]byte(s))
		all = append(all, s, quoted[1:len(quoted)-1], string(asJSON[1:len(asJSON)-1]), raw, base64.RawURLEncoding.EncodeToString([]byte(s)))
		for _, text := range []string{s, raw} {
			all = append(all, url.QueryEscape(text), url.PathEscape(text))
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}

// In reports whether a text contains a secret that is long enough that it is there by no accident.
func (f Forms) In(text []byte) bool {
	return slices.ContainsFunc(f, func(form string) bool { return len(form) >= telling && bytes.Contains(text, []byte(form)) })
}

// Hide replaces secrets in a text.
func (f Forms) Hide(text string) string {
	var hidden strings.Builder
	for len(text) > 0 {
		n := 0
		for _, form := range f {
			n = max(n, f.match(text, form))
		}
		if n == 0 {
			hidden.WriteByte(text[0])
			n = 1
		} else {
			hidden.WriteString(Mark)
		}
		text = text[n:]
	}
	return hidden.String()
}

// match returns how much of a form a text begins with, in either case of letters, since the hexadecimal digits
// of percent-encoding have both; 0 if it is no more than an accident.
func (Forms) match(text, form string) int {
	n := 0
	for n < min(len(text), len(form)) && lower(text[n]) == lower(form[n]) {
		n++
	}
	if n < len(form) && n < excerpt {
		return 0
	}
	return n
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

// Error returns an error without secrets. It still is what it was for [errors.Is] and [errors.As].
func (f Forms) Error(err error) error {
	if err == nil {
		return nil
	}
	if text := f.Hide(err.Error()); text != err.Error() {
		return &hidden{text, err}
	}
	return err
}

// A hidden error has another text than the one that it wraps.
type hidden struct {
	text string
	err  error
}

func (e *hidden) Error() string { return e.text }
func (e *hidden) Unwrap() error { return e.err }
