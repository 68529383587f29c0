package rules

import "github.com/penstock-io/penstock"

// Two settings that contradict each other are an error: whichever was ignored,
// somebody would rely on it.

// checkTogether reports what is missing from a limit, and what contradicts
// itself whatever the algorithm is. It returns whether all is well.
func (r *reader) checkTogether(s *limitSpec) bool {
	before := r.problems.count()
	switch {
	case s.unlimited:
		r.checkUnlimited(s)
	case s.has("limit"):
		r.checkText(s)
	case s.has("period"):
		r.checkPeriod(s)
	default:
		r.checkUnit(s)
	}
	for _, name := range s.replaces {
		if name == s.alias {
			r.fail(s.at("replaces"), "replaces should not contain name of same descriptor")
		}
	}
	if s.has("share") && (s.onStoreFailure == FailAllow || s.onStoreFailure == FailDeny) {
		r.fail(s.at("share"), "share: wants on_store_failure: local with it, and not %s", s.onStoreFailure)
	}
	return r.problems.count() == before
}

func (r *reader) checkUnlimited(s *limitSpec) {
	if _, valid := parseUnit(s.unit); valid {
		r.fail(s.at("unit"), "should not specify rate limit unit when unlimited")
	}
	name, ok := s.firstOf("limit", "period", "algorithm", "burst", "buckets", "zone",
		"on_store_failure", "share", "lease", "deny_cache")
	if ok {
		r.fail(s.at(name), "%s: has no meaning when unlimited, where nothing is counted", name)
	}
}

func (r *reader) checkText(s *limitSpec) {
	name, ok := s.firstOf("unit", "requests_per_unit", "period", "algorithm", "burst", "buckets", "zone")
	if ok {
		r.fail(s.at(name), "%s: has no place beside limit, on line %d, which says all of it", name, s.at("limit"))
	}
}

func (r *reader) checkPeriod(s *limitSpec) {
	switch {
	case s.has("unit"):
		r.fail(s.at("unit"), "unit: has no place beside period, on line %d", s.at("period"))
	case !s.has("requests_per_unit"):
		r.fail(s.at("period"), "period: wants requests_per_unit with it")
	}
	r.checkZone(s, unitOf(s.period))
}

func (r *reader) checkUnit(s *limitSpec) {
	unit, valid := parseUnit(s.unit)
	if !valid {
		r.fail(s.at("unit"), "invalid rate limit unit '%s'", shown(s.unit))
		return
	}
	r.checkZone(s, unit)
}

// checkZone reports a zone whose calendar has nothing to apply to.
func (r *reader) checkZone(s *limitSpec, unit Unit) {
	if _, ok := calendars[unit]; s.has("zone") && !ok {
		r.fail(s.at("zone"), "zone: wants a day, week, month or year with it")
	}
}

// checkAlgorithm reports what belongs to another algorithm than the limit's, and
// returns whether all is well.
func (r *reader) checkAlgorithm(s *limitSpec, a penstock.Algorithm) bool {
	before := r.problems.count()
	bucket := a == penstock.TokenBucket || a == penstock.LeakyBucket
	for _, c := range []struct {
		name    string
		belongs bool
		owner   string
	}{
		{"burst", bucket, "token-bucket or leaky-bucket"},
		{"buckets", a == penstock.RollingWindow, "rolling-window"},
		{"zone", a == penstock.FixedWindow, "fixed-window"},
		{"lease", a == penstock.TokenBucket || s.lease == nil || !*s.lease, "token-bucket"},
	} {
		if s.has(c.name) && !c.belongs {
			r.fail(s.at(c.name), "%s: wants algorithm: %s with it, and this is %s", c.name, c.owner, a)
		}
	}
	return r.problems.count() == before
}
