package respapi

import (
	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// takeParts appends the reply to a command by rules. If it has several descriptors, the
// decision is the tightest of those that agree with the outcome.
func (r *reply) takeParts(allowed bool, parts []takecall.Reply) {
	if len(parts) == 1 {
		parts[0].Decision.Allowed = allowed
		r.take(&parts[0])
		return
	}
	whole := takecall.Combine(allowed, parts)
	r.take(&whole)
}

// take appends a reply: names and values, as a map where the protocol has maps. Allowed is
// an integer in both protocol versions, so that clients need not know which they use.
func (r *reply) take(t *takecall.Reply) {
	r.mapHeader(fieldsOf(t))
	allowed := int64(0)
	if t.Decision.Allowed {
		allowed = 1
	}
	r.field("allowed", allowed)
	if t.Limited {
		r.limitedFields(&t.Decision)
	}
	if t.ByRules {
		r.ruleFields(t)
	}
	if len(t.Parts) > 0 {
		r.text("decisions")
		r.arrayHeader(len(t.Parts))
		for i := range t.Parts {
			r.take(&t.Parts[i])
		}
	}
}

// fieldsOf returns the number of fields of the reply.
func fieldsOf(t *takecall.Reply) int {
	n := 1
	if t.Limited {
		n += 7
	}
	if t.ByRules {
		n++
	}
	if t.Mode() != "" {
		n++
	}
	if len(t.Parts) > 0 {
		n++
	}
	return n
}

func (r *reply) field(name string, n int64) {
	r.text(name)
	r.integer(n)
}

// limitedFields appends the fields of a decision under a limit. Times are rounded up, and
// the RetryAfter of a cost that can never be granted is -1.
func (r *reply) limitedFields(d *penstock.Decision) {
	r.field("granted", d.Granted)
	r.field("limit", d.Limit)
	r.field("remaining", d.Remaining)
	retry := int64(-1)
	if d.RetryAfter != penstock.Never {
		retry = milliseconds(d.RetryAfter)
	}
	r.field("retry_after_ms", retry)
	r.field("reset_after_ms", milliseconds(d.ResetAfter))
	r.field("delay_ms", milliseconds(d.Delay))
	r.texts("source", d.Source.String())
}

func (r *reply) ruleFields(t *takecall.Reply) {
	r.text("rule")
	if t.Rule == nil {
		r.null()
	} else {
		r.text(t.Rule.Name)
	}
	if mode := t.Mode(); mode != "" {
		r.texts("mode", mode)
	}
}
