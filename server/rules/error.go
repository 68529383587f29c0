package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// An Error is one thing that is wrong with a rule file.
type Error struct {
	File   string
	Line   int // from 1; 0 if the file as a whole is meant
	Reason string
}

// Error returns the place and the reason, such as
// "api.yaml:12: descriptor has empty key".
func (e *Error) Error() string { return e.place() + ": " + e.Reason }

func (e *Error) place() string { return placeText(e.File, e.Line) }

func placeText(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Errors are all the things that are wrong with rule files, in the order of
// files and lines: at least one, and not more than a screen can show.
type Errors []*Error

// Error returns one line for each.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find an [*Error].
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// maxProblems is how many problems are kept: whoever has that many wants to
// mend these first.
const maxProblems = 40

// problems collects what is wrong, so that one look at a file finds it all.
type problems struct {
	list Errors
	more int
}

func (p *problems) add(file string, line int, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, &Error{File: file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

func (p *problems) count() int { return len(p.list) + p.more }

// sorted returns the problems by line, those of earlier files first.
func (p *problems) sorted() Errors {
	order := map[string]int{}
	for _, e := range p.list {
		if _, ok := order[e.File]; !ok {
			order[e.File] = len(order)
		}
	}
	slices.SortStableFunc(p.list, func(a, b *Error) int {
		if byFile := order[a.File] - order[b.File]; byFile != 0 {
			return byFile
		}
		return a.Line - b.Line
	})
	if p.more > 0 {
		last := p.list[len(p.list)-1]
		return append(p.list, &Error{File: last.File, Reason: fmt.Sprintf("and %d more problems", p.more)})
	}
	return p.list
}

// maxShown is how much of a value a message repeats.
const maxShown = 80

// shown returns a value from outside as a message may repeat it: on one line,
// and not longer than that.
func shown(s string) string {
	if len(s) > maxShown {
		s = cutRunes(s, maxShown) + "…"
	}
	return printable(s)
}

// printable returns s with what does not print written as in Go.
func printable(s string) string {
	if !strings.ContainsFunc(s, isUnprintable) {
		return s
	}
	var b []byte
	for _, r := range s {
		if isUnprintable(r) {
			quoted := strconv.QuoteRune(r)
			b = append(b, quoted[1:len(quoted)-1]...)
			continue
		}
		b = utf8.AppendRune(b, r)
	}
	return string(b)
}

func isUnprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// cutRunes returns the beginning of s, at most n bytes long, without breaking a
// character in two.
func cutRunes(s string, n int) string {
	for n > 0 && n < len(s) && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:min(n, len(s))]
}
