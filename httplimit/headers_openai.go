package httplimit

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-io/penstock"
)

// openAIUnits are what OpenAI has fields for, and the words for it in names of limits.
var openAIUnits = [...]struct {
	words                   []string
	limit, remaining, reset string
}{
	{[]string{"requests", "rpm", "rpd"}, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{[]string{"tokens", "tpm", "tpd"}, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
}

// openAI appends the fields of the tightest limit on requests, and of that on tokens.
func (f *fields) openAI(text []byte, answers []Answer) []byte {
	for k := range openAIUnits {
		u := &openAIUnits[k]
		of := tightest(answers, func(i int) bool { return slices.Contains(u.words, answers[i].lastWord()) })
		if of == nil {
			continue
		}
		text = f.number(text, u.limit, of.Decision.Limit)
		text = f.number(text, u.remaining, of.Decision.Remaining)
		reset := min(of.Decision.ResetAfter, penstock.Never-time.Millisecond) + time.Millisecond - 1
		text = append(text, reset.Truncate(time.Millisecond).String()...)
		f.end(text, u.reset)
	}
	return text
}

// lastWord returns the letters at the end of the limit's name. Further limits of a rule have its
// name, two slashes and their period.
func (a *Answer) lastWord() string {
	name, _, _ := strings.Cut(a.policy(), "//")
	return name[1+strings.LastIndexFunc(name, func(r rune) bool { return !unicode.IsLetter(r) }):]
}
