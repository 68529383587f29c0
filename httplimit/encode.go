package httplimit

import (
	"time"

	"github.com/penstock-io/penstock"
)

// ietf writes draft -11. Retry-After must not point before the end of a window
// that is told with it, so a denial tells of those limits that denied.
func (f *fields) ietf(answers []Answer, worst *Answer) {
	f.begin("Ratelimit-Policy")
	f.list[f.n].add = true
	for i := range answers {
		f.separate()
		f.quoted(answers[i].policy())
		f.parameter("q", answers[i].Limit.Count)
		f.window(&answers[i])
	}
	f.end()
	f.begin("Ratelimit")
	f.list[f.n].add = worst.Decision.Allowed
	for i := range answers {
		if answers[i].Decision.Allowed == worst.Decision.Allowed {
			f.serviceLimit(&answers[i])
		}
	}
	f.end()
}

// serviceLimit writes one item of draft -11's RateLimit.
func (f *fields) serviceLimit(a *Answer) {
	f.separate()
	f.quoted(a.policy())
	f.parameter("r", a.Decision.Remaining)
	if t, ok := a.effectiveWindow(); ok {
		f.parameter("t", seconds(t))
	}
}

// window writes the parameters of a policy that tell over how long it counts,
// and how much of it can be had at once if that is not the same as all.
func (f *fields) window(a *Answer) {
	if w, ok := a.wholeSeconds(); ok {
		f.parameter("w", w)
	}
	n := a.Limit.Normal()
	if n.Burst != 0 && n.Burst != n.Count {
		f.parameter("penstock-burst", n.Burst)
	}
}

// ietf06 writes draft -06, where a policy without a window has no meaning and is
// left out.
func (f *fields) ietf06(answers []Answer, worst *Answer) {
	f.number("Ratelimit-Limit", worst.Decision.Limit)
	f.number("Ratelimit-Remaining", worst.Decision.Remaining)
	if t, ok := worst.effectiveWindow(); ok {
		f.number("Ratelimit-Reset", seconds(t))
	}
	f.begin("Ratelimit-Policy")
	for i := range answers {
		if _, ok := answers[i].wholeSeconds(); ok {
			f.separate()
			f.integer(answers[i].Limit.Count)
			f.window(&answers[i])
		}
	}
	f.endUnlessEmpty()
}

func (f *fields) xRateLimit(worst *Answer) {
	f.number("X-Ratelimit-Limit", worst.Decision.Limit)
	f.number("X-Ratelimit-Remaining", worst.Decision.Remaining)
	f.number("X-Ratelimit-Reset", seconds(worst.Decision.ResetAfter))
}

func (f *fields) gitHub(worst *Answer) {
	d := &worst.Decision
	f.number("X-Ratelimit-Limit", d.Limit)
	f.number("X-Ratelimit-Remaining", d.Remaining)
	f.number("X-Ratelimit-Used", d.Limit-d.Remaining)
	f.number("X-Ratelimit-Reset", resetInstant(d.ResetAfter))
	f.begin("X-Ratelimit-Resource")
	f.plain(worst.policy())
	f.end()
}

// resetInstant returns the seconds since 1970 at which a time from now is over.
func resetInstant(after time.Duration) int64 {
	now := time.Now()
	return now.Unix() + seconds(min(after, penstock.Never-time.Second)+time.Duration(now.Nanosecond()))
}

// envoy03 writes what Envoy does: its first number is that of the tightest limit.
func (f *fields) envoy03(answers []Answer, worst *Answer) {
	f.begin("X-Ratelimit-Limit")
	f.integer(worst.Decision.Limit)
	for i := range answers {
		w, ok := answers[i].wholeSeconds()
		if !ok {
			continue
		}
		f.write(", ")
		f.integer(answers[i].Limit.Count)
		f.parameter("w", w)
		f.write(";name=")
		f.quoted(answers[i].policy())
	}
	f.end()
	f.number("X-Ratelimit-Remaining", worst.Decision.Remaining)
	f.number("X-Ratelimit-Reset", seconds(worst.Decision.ResetAfter))
}
