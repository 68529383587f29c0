package rules

import "time"

// This file is about rules with settle: callers take an estimate under an ID, and settle it
// once the cost is known.

// maxHold is the longest time for which a store remembers an ID.
const maxHold = 24 * time.Hour

// hold reads how long an ID is remembered.
func (r *reader) hold(f field) time.Duration {
	d := r.duration(f)
	if d > maxHold {
		r.fail(f.line, "hold: want at most 24h, got %s", r.kindText(f.value))
	}
	return d
}

// checkSettle reports settings that contradict settle.
func (r *reader) checkSettle(s *limitSpec) {
	switch {
	case s.isSet("hold") && !s.settle:
		r.fail(s.lineOf("hold"), "hold: needs settle: true beside it")
	case s.settle && s.chargeAlways:
		r.fail(s.lineOf("settle"), "settle: cannot be combined with charge: always, which charges what was used already")
	}
}

// checkSettle reports rules with settle in a domain with compat: there hits are counted as
// Envoy's service counts them, which knows no ID.
func (p *parser) checkSettle(d *Domain) {
	if !d.CompatEnvoy {
		return
	}
	d.top.walk(func(n *node) {
		if n.rule != nil && n.rule.Settle && !n.sharesLimit {
			p.problems.add(n.rule.File, n.rule.Line, "settle: cannot be combined with compat: envoy of the domain '%s'", excerpt(d.Name))
		}
	})
}

// settleText describes for how long what was taken can be settled.
func settleText(hold time.Duration) string {
	if hold == 0 {
		return "what was taken under an ID, for one period and at most a day"
	}
	return "what was taken under an ID, for " + hold.String() + " or one period if that is longer"
}
