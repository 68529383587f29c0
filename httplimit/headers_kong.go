package httplimit

import (
	"time"

	"github.com/penstock-io/penstock"
)

// kongPeriods are the periods for which Kong has separate fields.
var kongPeriods = [...]struct {
	length           time.Duration
	align            penstock.Align // calendar alignment that counts as this period
	limit, remaining string
}{
	{time.Second, 0, "X-Ratelimit-Limit-Second", "X-Ratelimit-Remaining-Second"},
	{time.Minute, 0, "X-Ratelimit-Limit-Minute", "X-Ratelimit-Remaining-Minute"},
	{time.Hour, 0, "X-Ratelimit-Limit-Hour", "X-Ratelimit-Remaining-Hour"},
	{24 * time.Hour, penstock.AlignDay, "X-Ratelimit-Limit-Day", "X-Ratelimit-Remaining-Day"},
	{30 * 24 * time.Hour, penstock.AlignMonth, "X-Ratelimit-Limit-Month", "X-Ratelimit-Remaining-Month"},
	{365 * 24 * time.Hour, penstock.AlignYear, "X-Ratelimit-Limit-Year", "X-Ratelimit-Remaining-Year"},
}

// kong appends the tightest limit's fields, and for each of Kong's periods those
// of the tightest limit with that period: its count, whatever the burst.
func (f *fields) kong(text []byte, answers []Answer, worst *Answer) []byte {
	text = f.number(text, "Ratelimit-Limit", worst.Decision.Limit)
	text = f.number(text, "Ratelimit-Remaining", worst.Decision.Remaining)
	text = f.number(text, "Ratelimit-Reset", seconds(worst.Decision.ResetAfter))
	for k := range kongPeriods {
		p := &kongPeriods[k]
		if of := tightest(answers, func(i int) bool { return answers[i].isPer(p.length, p.align) }); of != nil {
			text = f.number(text, p.limit, of.Limit.Count)
			text = f.number(text, p.remaining, min(of.Decision.Remaining, of.Limit.Count))
		}
	}
	return text
}

func (a *Answer) isPer(length time.Duration, align penstock.Align) bool {
	if a.Limit.Align > penstock.AlignClock {
		return a.Limit.Align == align
	}
	return a.Limit.Period == length
}
