package respapi

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A takeReply is the reply to a PENSTOCK.TAKE, or the part of it about one descriptor.
type takeReply struct {
	decision penstock.Decision
	limited  bool // false if no limit applied; then only Allowed has a meaning
	byRules  bool
	rule     *rules.Rule // nil if none applied
	parts    []takeReply // of several descriptors
}

// newTakeReply returns the reply for the result of a request by rules. If it has several
// descriptors, the decision is the tightest of those that agree with the outcome.
func newTakeReply(result *engine.Result) *takeReply {
	parts := make([]takeReply, len(result.Statuses))
	for i, s := range result.Statuses {
		s.Decision.Allowed = !s.OverLimit // a shadow rule does not deny
		parts[i] = takeReply{decision: s.Decision, byRules: true, rule: s.Rule, limited: s.Limited()}
	}
	if len(parts) == 1 {
		parts[0].decision.Allowed = !result.OverLimit
		return &parts[0]
	}
	return combine(!result.OverLimit, parts)
}

// combine returns the reply for several descriptors. Shadow rules have no part in the
// outcome.
func combine(allowed bool, parts []takeReply) *takeReply {
	whole := &takeReply{byRules: true, parts: parts}
	var delay time.Duration
	for i := range parts {
		p := &parts[i]
		if !p.limited || p.rule.Shadow || p.decision.Allowed != allowed {
			continue
		}
		if !whole.limited || p.tighterThan(whole) {
			whole.decision, whole.rule, whole.limited = p.decision, p.rule, true
		}
		delay = max(delay, p.decision.Delay)
	}
	whole.decision.Allowed, whole.decision.Delay = allowed, delay
	return whole
}

// tighterThan reports whether a reply with the same outcome leaves less room.
func (t *takeReply) tighterThan(other *takeReply) bool {
	if t.decision.Allowed {
		return t.decision.Remaining < other.decision.Remaining
	}
	return t.decision.RetryAfter > other.decision.RetryAfter
}

// take appends a reply: names and values, as a map where the protocol has maps. Allowed is
// an integer in both protocol versions, so that clients need not know which they use.
func (r *reply) take(t *takeReply) {
	r.mapHeader(t.fields())
	allowed := int64(0)
	if t.decision.Allowed {
		allowed = 1
	}
	r.field("allowed", allowed)
	if t.limited {
		r.limitedFields(&t.decision)
	}
	if t.byRules {
		r.ruleFields(t)
	}
	if len(t.parts) > 0 {
		r.text("decisions")
		r.arrayHeader(len(t.parts))
		for i := range t.parts {
			r.take(&t.parts[i])
		}
	}
}

// fields returns the number of fields of the reply.
func (t *takeReply) fields() int {
	n := 1
	if t.limited {
		n += 7
	}
	if t.byRules {
		n++
	}
	if t.mode() != "" {
		n++
	}
	if len(t.parts) > 0 {
		n++
	}
	return n
}

// mode returns how the rule differs from one that denies by itself, or "".
func (t *takeReply) mode() string {
	switch {
	case t.rule == nil:
		return ""
	case t.rule.Shadow:
		return "shadow"
	case t.rule.Quota:
		return "quota"
	}
	return ""
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
	r.text("source")
	r.text(d.Source.String())
}

func (r *reply) ruleFields(t *takeReply) {
	r.text("rule")
	if t.rule == nil {
		r.null()
	} else {
		r.text(t.rule.Name)
	}
	if mode := t.mode(); mode != "" {
		r.text("mode")
		r.text(mode)
	}
}
