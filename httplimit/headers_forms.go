package httplimit

import (
	"time"

	"github.com/penstock-io/penstock"
)

// ietf appends draft -11. Retry-After must not lie before the end of a reported
// window, so a denial reports only the limits that denied.
func (f *fields) ietf(text []byte, answers []Answer, worst *Answer) []byte {
	for i := range answers {
		text = f.separate(text)
		text = appendQuoted(text, answers[i].policy())
		text = appendParameter(text, "q", answers[i].Limit.Count)
		text = appendWindow(text, &answers[i])
	}
	f.endAdded(text, "Ratelimit-Policy")
	for i := range answers {
		if answers[i].Decision.Allowed == worst.Decision.Allowed {
			text = f.separate(text)
			text = appendServiceLimit(text, &answers[i])
		}
	}
	if worst.Decision.Allowed {
		f.endAdded(text, "Ratelimit")
	} else {
		f.end(text, "Ratelimit")
	}
	return text
}

// appendServiceLimit appends one item of draft -11's RateLimit.
func appendServiceLimit(text []byte, a *Answer) []byte {
	text = appendQuoted(text, a.policy())
	text = appendParameter(text, "r", a.Decision.Remaining)
	if t, ok := a.effectiveWindow(); ok {
		text = appendParameter(text, "t", seconds(t))
	}
	return text
}

// appendWindow appends the parameters of a policy: its window, and its burst if
// that differs from the count.
func appendWindow(text []byte, a *Answer) []byte {
	if w, ok := a.wholeSeconds(); ok {
		text = appendParameter(text, "w", w)
	}
	if n := a.Limit.Normal(); n.Burst != 0 && n.Burst != n.Count {
		text = appendParameter(text, "penstock-burst", n.Burst)
	}
	return text
}

// ietf06 appends draft -06. Policies without a window in seconds are omitted.
func (f *fields) ietf06(text []byte, answers []Answer, worst *Answer) []byte {
	text = f.number(text, "Ratelimit-Limit", worst.Decision.Limit)
	text = f.number(text, "Ratelimit-Remaining", worst.Decision.Remaining)
	if t, ok := worst.effectiveWindow(); ok {
		text = f.number(text, "Ratelimit-Reset", seconds(t))
	}
	for i := range answers {
		if _, ok := answers[i].wholeSeconds(); ok {
			text = f.separate(text)
			text = appendInteger(text, answers[i].Limit.Count)
			text = appendWindow(text, &answers[i])
		}
	}
	if len(text) > f.start() {
		f.end(text, "Ratelimit-Policy")
	}
	return text
}

func (f *fields) xRateLimit(text []byte, worst *Answer) []byte {
	text = f.number(text, "X-Ratelimit-Limit", worst.Decision.Limit)
	text = f.number(text, "X-Ratelimit-Remaining", worst.Decision.Remaining)
	return f.number(text, "X-Ratelimit-Reset", seconds(worst.Decision.ResetAfter))
}

func (f *fields) gitHub(text []byte, worst *Answer) []byte {
	d := &worst.Decision
	text = f.number(text, "X-Ratelimit-Limit", d.Limit)
	text = f.number(text, "X-Ratelimit-Remaining", d.Remaining)
	text = f.number(text, "X-Ratelimit-Used", d.Limit-d.Remaining)
	text = f.number(text, "X-Ratelimit-Reset", resetInstant(d.ResetAfter))
	text = appendPlain(text, worst.policy())
	f.end(text, "X-Ratelimit-Resource")
	return text
}

// resetInstant returns the Unix time, in seconds, at which a duration from now
// ends.
func resetInstant(after time.Duration) int64 {
	now := time.Now()
	return now.Unix() + seconds(min(after, penstock.Never-time.Second)+time.Duration(now.Nanosecond()))
}

// envoy03 appends Envoy's fields: the first number is the tightest limit's.
func (f *fields) envoy03(text []byte, answers []Answer, worst *Answer) []byte {
	text = appendInteger(text, worst.Decision.Limit)
	for i := range answers {
		w, ok := answers[i].wholeSeconds()
		if !ok {
			continue
		}
		text = append(text, ", "...)
		text = appendInteger(text, answers[i].Limit.Count)
		text = appendParameter(text, "w", w)
		text = append(text, ";name="...)
		text = appendQuoted(text, answers[i].policy())
	}
	f.end(text, "X-Ratelimit-Limit")
	text = f.number(text, "X-Ratelimit-Remaining", worst.Decision.Remaining)
	return f.number(text, "X-Ratelimit-Reset", seconds(worst.Decision.ResetAfter))
}
