package rules

import (
	"strings"

	"github.com/penstock-io/penstock"
)

// Settings that contradict each other are an error: if one of them were ignored, its
// author would still rely on it.

// checkCombination reports missing settings, and contradictions that do not depend on
// the algorithm. It returns true if there are none.
func (r *reader) checkCombination(s *limitSpec) bool {
	before := r.problems.count()
	switch {
	case s.unlimited:
		r.checkUnlimited(s)
	case s.isSet("limit"):
		r.checkLimitText(s)
	case s.isSet("period"):
		r.checkPeriod(s)
	default:
		r.checkUnit(s)
	}
	for _, name := range s.replaces {
		if name == s.alias {
			r.fail(s.lineOf("replaces"), "replaces should not contain name of same descriptor: remove '%s'", excerpt(name))
		}
	}
	if s.isSet("share") && (s.onStoreFailure == FailAllow || s.onStoreFailure == FailDeny) {
		r.fail(s.lineOf("share"), "share: needs on_store_failure: local, but it is %s", s.onStoreFailure)
	}
	r.checkSettle(s)
	return r.problems.count() == before
}

func (r *reader) checkUnlimited(s *limitSpec) {
	if _, valid := parseUnit(s.unit); valid {
		r.fail(s.lineOf("unit"), "should not specify rate limit unit when unlimited: remove unit")
	}
	name, ok := s.firstSet("limit", "period", "algorithm", "burst", "buckets", "zone",
		"id", "on_store_failure", "share", "lease", "deny_cache", "charge", "penalty", "keep_free", "settle", "hold")
	if ok {
		r.fail(s.lineOf(name), "%s: cannot be combined with unlimited, which counts nothing: remove one of them", name)
	}
}

func (r *reader) checkLimitText(s *limitSpec) {
	name, ok := s.firstSet("unit", "requests_per_unit", "period", "algorithm", "burst", "buckets", "zone")
	if ok {
		r.fail(s.lineOf(name), "%s: cannot be combined with limit on line %d, which sets all of it: remove one of them", name, s.lineOf("limit"))
	}
}

func (r *reader) checkPeriod(s *limitSpec) {
	switch {
	case s.isSet("unit"):
		r.fail(s.lineOf("unit"), "unit: cannot be combined with period on line %d: remove one of them", s.lineOf("period"))
	case !s.isSet("requests_per_unit"):
		r.fail(s.lineOf("period"), "period: needs requests_per_unit beside it")
	}
	r.checkZone(s, unitOf(s.period))
}

// wantUnit returns the end of the message about an unknown unit.
func (r *reader) wantUnit(name string) string {
	if near := didYouMean(strings.ToLower(name), unitNames[Second:]); near != "" {
		return near
	}
	return ": want " + orList(unitNames[Second:]) + ", or use period"
}

func (r *reader) checkUnit(s *limitSpec) {
	unit, valid := parseUnit(s.unit)
	if !valid {
		r.fail(s.lineOf("unit"), "invalid rate limit unit '%s'%s", excerpt(s.unit), r.wantUnit(s.unit))
		return
	}
	if !s.isSet("requests_per_unit") { // valid for Envoy's service, and seldom meant
		r.warn(s.lineOf("unit"), "a limit without requests_per_unit is 0, and denies every request")
	}
	r.checkZone(s, unit)
}

// checkZone reports a zone with a unit that no calendar has.
func (r *reader) checkZone(s *limitSpec, unit Unit) {
	if _, ok := calendarAligns[unit]; s.isSet("zone") && !ok {
		r.fail(s.lineOf("zone"), "zone: needs a unit or period of a day, week, month or year")
	}
}

// checkAlgorithm reports settings of another algorithm than the limit's. It returns
// true if there are none.
func (r *reader) checkAlgorithm(s *limitSpec, a penstock.Algorithm) bool {
	before := r.problems.count()
	l := penstock.Limit{Algorithm: a}
	for _, c := range []struct {
		name    string
		belongs bool
		owner   string
	}{
		{"burst", l.IsBucket(), "token-bucket or leaky-bucket"},
		{"buckets", a == penstock.RollingWindow, "rolling-window"},
		{"zone", a == penstock.FixedWindow, "fixed-window"},
		{"lease", a == penstock.TokenBucket || s.lease == nil || !*s.lease, "token-bucket"},
		{"charge", !s.chargeAlways || l.CanOwe(), "token-bucket, leaky-bucket, fixed-window or sliding-window"},
	} {
		if s.isSet(c.name) && !c.belongs {
			r.fail(s.lineOf(c.name), "%s: needs algorithm: %s, but it is %s", c.name, c.owner, a)
		}
	}
	switch concurrent := l.HasPermits(); {
	case concurrent && s.id == "":
		r.fail(s.lineOf("limit"), "a concurrent limit needs id: and the key of the entry that names the permit, such as request_id")
	case concurrent && s.settle:
		r.fail(s.lineOf("settle"), "settle: cannot be combined with a concurrent limit, whose permits are released and not settled")
	case !concurrent && s.isSet("id"):
		r.fail(s.lineOf("id"), "id: needs algorithm: concurrent, but it is %s", a)
	}
	return r.problems.count() == before
}
