package takecall

import (
	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A Reply is the answer to a call, to one of its descriptors, or to a list of calls.
type Reply struct {
	Decision penstock.Decision
	Limited  bool           // false if no limit applied, or nothing is known of its key; then only Allowed has a meaning
	ByRules  bool           // whether rules decided
	Rule     *rules.Rule    // that decided; nil if none applied, or if the call brought its limit
	Limit    penstock.Limit // zero if there are parts
	Cost     int64          // what was asked for; zero if there are parts
	KeepFree int64          // what had to remain
	Parts    []Reply        // of descriptors, or of the calls of a list
}

// UnderLimit returns the reply to a request with a limit.
func UnderLimit(r *penstock.Request, d penstock.Decision) Reply {
	return Reply{Decision: d, Limited: engine.HasNumbers(&d), Limit: r.Limit, Cost: r.Cost, KeepFree: r.KeepFree}
}

// UnderRules returns the reply to each descriptor of the call, or of several calls on the same terms. A rule in shadow mode allows whatever its
// limit decided.
func (c *Call) UnderRules(result *engine.Result, ds []engine.Descriptor) []Reply {
	parts := make([]Reply, len(result.Statuses))
	for i := range result.Statuses {
		s := &result.Statuses[i]
		parts[i] = Reply{Decision: s.Decision, ByRules: true, Rule: s.Rule, Cost: ds[i].Cost}
		parts[i].Decision.Allowed = !s.OverLimit
		if s.Limited() {
			parts[i].Limited, parts[i].Limit, parts[i].KeepFree = true, s.Rule.Limit, max(s.Rule.KeepFree, c.Request.KeepFree)
		}
	}
	return parts
}

// Combine returns one reply for several: its decision is the tightest of those that agree
// with the outcome, and the longest delay of all. Shadow rules have no part in it.
func Combine(allowed bool, parts []Reply) Reply {
	agreeing := make([]penstock.Decision, 0, len(parts))
	at := make([]int, 0, len(parts))
	for i := range parts {
		if p := &parts[i]; p.Limited && p.Mode() != shadow && p.Decision.Allowed == allowed {
			agreeing, at = append(agreeing, p.Decision), append(at, i)
		}
	}
	whole := Reply{Decision: penstock.Tightest(agreeing), Limited: len(agreeing) > 0, Parts: parts}
	for n, d := range agreeing {
		if d.Delay = whole.Decision.Delay; d == whole.Decision {
			whole.Rule = parts[at[n]].Rule
			break
		}
	}
	whole.Decision.Allowed = allowed
	whole.ByRules = len(parts) > 0 && parts[0].ByRules
	return whole
}

// AllAllowed reports whether all of the replies are allowed.
func AllAllowed(parts []Reply) bool {
	for i := range parts {
		if !parts[i].Decision.Allowed {
			return false
		}
	}
	return true
}

const shadow = "shadow"

// Mode returns how the rule differs from one that denies by itself, or "".
func (r *Reply) Mode() string {
	switch {
	case r.Rule == nil:
	case r.Rule.Shadow:
		return shadow
	case r.Rule.Quota:
		return "quota"
	}
	return ""
}
