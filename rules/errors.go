package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// An Error is one problem in a rule file.
type Error struct {
	File   string
	Line   int // from 1; 0 means the whole file
	Reason string
}

// Error returns the location and the reason, such as
// "api.yaml:12: descriptor has empty key".
func (e *Error) Error() string { return e.location() + ": " + e.Reason }

func (e *Error) location() string { return location(e.File, e.Line) }

func location(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Errors are the problems in rule files, sorted by file and line. There is at least
// one. Only the first 40 are kept; a last entry has the number of the others.
type Errors []*Error

// Error returns one line for each problem.
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

// maxProblems is how many problems are kept: about as many as a screen can show.
const maxProblems = 40

// problems collects all problems of the files, so that one run reports them all.
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

// sorted returns the problems sorted by line, those of earlier files first.
func (p *problems) sorted() Errors {
	order := map[string]int{}
	for _, e := range p.list {
		if _, ok := order[e.File]; !ok {
			order[e.File] = len(order)
		}
	}
	slices.SortStableFunc(p.list, func(a, b *Error) int {
		return cmp.Or(order[a.File]-order[b.File], a.Line-b.Line)
	})
	if p.more > 0 {
		last := p.list[len(p.list)-1]
		return append(p.list, &Error{File: last.File, Reason: fmt.Sprintf("and %d more problems", p.more)})
	}
	return p.list
}

// maxExcerpt is how many bytes of a value a message repeats.
const maxExcerpt = 80

// excerpt returns a value from outside for use in a message: on one line and cut to
// maxExcerpt bytes.
func excerpt(s string) string {
	if len(s) > maxExcerpt {
		s = cutRunes(s, maxExcerpt) + "…"
	}
	return printable(s)
}

// printable returns s with unprintable characters escaped as in Go.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// cutRunes returns the first n bytes of s, or fewer so as not to split a character.
func cutRunes(s string, n int) string { return strings.ToValidUTF8(s[:min(n, len(s))], "") }

// orList returns words as in "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
